"""What the commands that measure on a GPU share: options, origin, and results kept as they come."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.laboratory import Laboratory, laboratory
from tuner.cli import evidence
from tuner.cli.provenance import commit_measured
from tuner.compiler.pool import CompilePool
from tuner.config import KernelConfig
from tuner.device.protocol import Entrant
from tuner.errors import InvalidConfig
from tuner.settings import Settings
from tuner.shape import GemmShape
from tuner.trial import CompileFailure, Contender

SHAPES = Path(__file__).parent / "shapes"
RESULTS = Path(__file__).parent / "results"


def parser(doc: str | None, module: str) -> argparse.ArgumentParser:
    """Options that every command has. `doc`: the module's docstring, shown as it is."""
    arguments = argparse.ArgumentParser(
        prog=f"python -m {module}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add_argument("--commit", help="the commit that is measured, where git cannot say")
    arguments.add_argument("--out", type=Path, help="where the JSON goes")
    return arguments


def gpu_parser(doc: str | None, module: str, *, database: bool = False) -> argparse.ArgumentParser:
    """The same with the options of commands that need a GPU, or what was tuned on one."""
    arguments = parser(doc, module)
    arguments.add_argument("--device", type=int, default=0, help="N of cuda:N")
    if database:
        arguments.add_argument("--db", help="the database of `tuner run`, for tuned configs")
    return arguments


def command_of(module: str, arguments: Sequence[str] | None = None) -> str:
    """The command line as evidence names it."""
    given = sys.argv[1:] if arguments is None else arguments
    return shlex.join(["python", "-m", module, *given])


@dataclass
class Results:
    """One file of evidence: what it says of its origin, and rows that are safe as they come.

    Until `finish` they stand in `OUT.partial`, which is written again after every row.
    """

    out: Path | None
    head: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def add(self, row: dict[str, Any], told: str) -> None:
        """Keep `row`, and print `told` with the seconds since the start."""
        print(f"[{time.monotonic() - self.started:6.1f} s] {told}", flush=True)
        self.rows.append(row)
        if self.out:
            evidence.write(self.partial(self.out), {**self.head, "rows": self.rows})

    def finish(self, summary: dict[str, Any]) -> None:
        """Write the file, the rows last; only now does it have its name."""
        seconds = round(time.monotonic() - self.started, 1)
        if self.out:
            body = {**self.head, **summary, "seconds": seconds, "rows": self.rows}
            evidence.write(self.out, body)
            self.partial(self.out).unlink(missing_ok=True)
        for name, value in {**summary, "seconds": seconds}.items():
            print(f"{name}: {value}", flush=True)

    @staticmethod
    def partial(out: Path) -> Path:
        return out.with_name(f"{out.name}.partial")


@dataclass(frozen=True, slots=True)
class Bench:
    """An open GPU, the compiler that serves it, and where the results go."""

    device: Laboratory
    pool: CompilePool
    results: Results

    @property
    def sms(self) -> int:
        return self.device.identify().sms

    def entrants(self, configs: Sequence[KernelConfig]) -> dict[KernelConfig, Entrant]:
        """Those of `configs` that compile; the others are named on stderr."""
        built = self.pool.compile(c.variant for c in configs)
        found: dict[KernelConfig, Entrant] = {}
        for config in configs:
            cubin = built[config.variant]
            if isinstance(cubin, CompileFailure):
                print(f"not compiled: {config}: {cubin.detail}", file=sys.stderr, flush=True)
            else:
                found[config] = Entrant(Contender("kernel", config), cubin)
        return found

    def entrant(self, config: KernelConfig) -> Entrant:
        """Raises: InvalidConfig if it does not compile."""
        if entrant := self.entrants([config]).get(config):
            return entrant
        raise InvalidConfig(f"{config} does not compile.")


@contextmanager
def gpu(chosen: argparse.Namespace, module: str) -> Iterator[Bench]:
    """The GPU that the options name, a compiler with the user's cache, and the evidence's head."""
    settings = Settings.from_environment(os.environ)
    if chosen.out:
        chosen.out.parent.mkdir(parents=True, exist_ok=True)  # now, not after the measuring
    with laboratory(chosen.device) as device, CompilePool(settings.cache_dir) as pool:
        origin = evidence.origin(
            command_of(module),
            commit_measured(chosen.commit),
            device.identify(),
            pool.toolchain(),
        )
        yield Bench(device, pool, Results(chosen.out, origin))


def extents(shape: GemmShape) -> dict[str, int]:
    """A shape as evidence names it."""
    return {"m": shape.m, "n": shape.n, "k": shape.k}
