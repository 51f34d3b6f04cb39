"""Twenty shapes that nobody tuned by hand: `python -m benchmarks.draw_shapes`.

Writes benchmarks/shapes/heldout20.txt: distinct shapes drawn evenly, by a stated seed, from the
lists of inference and DeepGEMM shapes, of those that the kernel can run (K % 8 == 0), that fit
8 GiB, and that are not among the thirty-four that the kernel was built on.
"""

import argparse
from pathlib import Path
from random import Random

from benchmarks.harness import SHAPES
from tuner.shape import GemmShape
from tuner.shape_files import read_shape_files

SOURCES = ("llm-inference.txt", "deepgemm.txt")
KNOWN = "mixed34.txt"
SEED = 20
COUNT = 20
LIMIT_BYTES = 8 * 2**30
HEADER = (
    "# M N K. Held out: written by `python -m benchmarks.draw_shapes`, which drew {count} of the\n"
    "# {pool} runnable shapes of {sources}\n"
    "# that are not in {known}, with seed {seed}.\n"
)


def pool() -> list[GemmShape]:
    """What is drawn from, sorted, so that the order of the lists does not matter."""
    known = set(read_shape_files([SHAPES / KNOWN]).shapes)
    listed = read_shape_files([SHAPES / name for name in SOURCES]).shapes
    return sorted(
        shape
        for shape in set(listed) - known
        if shape.unsupported_reason() is None and shape.operand_bytes <= LIMIT_BYTES
    )


def drawn(seed: int = SEED, count: int = COUNT) -> list[GemmShape]:
    """`count` distinct shapes, sorted."""
    return sorted(Random(seed).sample(pool(), count))


def text(seed: int = SEED, count: int = COUNT) -> str:
    """The file."""
    header = HEADER.format(
        count=count, pool=len(pool()), sources=" and ".join(SOURCES), known=KNOWN, seed=seed
    )
    return header + "".join(f"{s.m} {s.n} {s.k}\n" for s in drawn(seed, count))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--out", type=Path, default=SHAPES / "heldout20.txt")
    chosen = arguments.parse_args()
    chosen.out.write_text(text(), encoding="utf-8")
    print(f"{chosen.out}: {COUNT} of {len(pool())} shapes")


if __name__ == "__main__":
    main()
