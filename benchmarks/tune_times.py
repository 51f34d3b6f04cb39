"""What tuning costs: `python -m benchmarks.tune_times --device cuda:0 --out results.json`.

Runs `tuner run` over a list twice, each time into a new database: with an empty cubin cache, then
with the cache that run left. Prints and stores, for each shape, the wall seconds, the configs
screened, the variants compiled, and the shares of the time that went into proving and timing.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tuner.cli import evidence
from tuner.cli.devices import parse_device
from tuner.cli.opening import opened
from tuner.cli.provenance import commit_measured
from tuner.store.engine import open_store
from tuner.trial import ShapeOutcome

SHAPES = Path(__file__).parent / "shapes" / "article.txt"


def described(outcome: ShapeOutcome) -> dict[str, Any]:
    """The cost of one shape."""
    shape = outcome.problem.shape
    return {
        "shape": [shape.m, shape.n, shape.k],
        "state": outcome.state,
        "seconds": round(outcome.seconds, 2),
        "configs": outcome.trials,
        "compiled": outcome.compiled,
        "verify_share": round(outcome.verify_seconds / outcome.seconds, 3),
        "measure_share": round(outcome.measure_seconds / outcome.seconds, 3),
    }


def tuned(shapes: Path, device: str, database: Path, cache: Path, more: list[str]) -> list[Any]:
    """Run the tuner in a process of its own, and read back what it stored."""
    url = f"sqlite:///{database}"
    code = "import sys; from tuner.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "run", "--shapes", str(shapes), "--device", device]
    environment = {**os.environ, "TUNER_CACHE_DIR": str(cache)}
    subprocess.run([*command, "--db", url, *more], env=environment, check=True)
    with open_store(url) as repository:
        (stored,) = repository.devices()
        return [described(outcome) for outcome in repository.shapes(stored.key)]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--shapes", type=Path, default=SHAPES)
    arguments.add_argument("--device", default="cuda:0")
    arguments.add_argument("--keep", type=Path, help="copy the first run's database here")
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path)
    chosen, more = arguments.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        command = " ".join(["python -m benchmarks.tune_times", *sys.argv[1:]])
        with opened(parse_device(chosen.device), base / "cache") as found:
            origin = evidence.origin(
                command,
                commit_measured(chosen.commit),
                found.device.identify(),
                found.compiler.toolchain(),
            )
            source = found.source
        times: dict[str, Any] = {
            **origin,
            "source": source,
            "cores": os.cpu_count(),
            "cold": tuned(chosen.shapes, chosen.device, base / "cold.db", base / "cache", more),
            "warm": tuned(chosen.shapes, chosen.device, base / "warm.db", base / "cache", more),
        }
        if chosen.keep:
            chosen.keep.write_bytes((base / "cold.db").read_bytes())
    for kind in ("cold", "warm"):
        for row in times[kind]:
            print(kind, *(f"{name}={value}" for name, value in row.items()))
    if chosen.out:
        chosen.out.write_text(json.dumps(times, indent=1) + "\n")


if __name__ == "__main__":
    main()
