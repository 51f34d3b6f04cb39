"""`python -m tuner.client`: what a program on this machine would be served, and from where."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from tuner.client import load
from tuner.errors import TunerError


def main(arguments: Sequence[str] | None = None) -> int:
    """1 if there is no snapshot, or no answer; in strict mode as well if one source was no use."""
    parser = argparse.ArgumentParser(prog="python -m tuner.client", description=__doc__)
    parser.add_argument("extents", nargs="*", type=int, metavar="M N K", help="answer for a shape")
    parser.add_argument("--device", metavar="KEY", help="such as sm90-132sm-141gb")
    parser.add_argument(
        "--generation", action="store_true", help="print the id to pin, and nothing else"
    )
    chosen = parser.parse_args(arguments)
    if len(chosen.extents) not in (0, 3):
        parser.error("give M, N and K, or none of them")
    try:
        configs = load(chosen.device)
        best = configs.best_config(*chosen.extents) if chosen.extents else None
    except TunerError as error:
        print(error, file=sys.stderr)
        return 1
    if chosen.generation:
        print(configs.generation or "")
        return int(configs.generation is None)
    told: dict[str, Any] = {
        "source": configs.source,
        "generation": configs.generation,
        "device": configs.device,
        "problems": list(configs.problems),
    }
    if best is None:
        print(json.dumps({**told, "shapes": [list(shape) for shape in configs.shapes]}, indent=1))
        return int(configs.generation is None)
    told |= {"tier": best.tier, "use": best.use, "reason": best.reason, "answer": best.answer}
    print(json.dumps(told, indent=1))
    return int(best.answer is None)


if __name__ == "__main__":
    sys.exit(main())
