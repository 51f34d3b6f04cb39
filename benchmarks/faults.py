"""What each fault of a candidate costs: `python -m benchmarks.faults --device fake`.

One candidate of a shape is made to hang, to write out of bounds, to trap, to drop its last K step,
or to report NaN as its time; the shape and the next one are tuned into a database. Each row holds
the state that was stored, how both shapes ended, and `delay_s`: the seconds from the call in which
the fault struck until the device works on the next candidate, less the deadline where the call
overran one. `--device fake` plants them in a device without a GPU, `--device cuda:0` in the
kernel's source. Exit 1 if a fault was not named, a shape not tuned or a row lost. `--out` stores
the result.
"""

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.faulty_kernels import FAULTS, broken_alone
from benchmarks.harness import Results, command_of, parser
from tuner.cli import evidence
from tuner.cli.devices import Cuda, parse_device
from tuner.cli.provenance import commit_measured
from tuner.compiler.pool import CompilePool
from tuner.config import KernelVariant
from tuner.device.cuda import cuda_device, open_cuda
from tuner.device.deadlines import Deadlines
from tuner.device.lock import device_lock
from tuner.device.process import DeviceFactory, DeviceProcess
from tuner.device.protocol import Device, Entrant, Prepared
from tuner.hardware import DeviceIdentity
from tuner.search.sampler import Searcher
from tuner.search.space import menu, trusted_config
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.study import Budget, Compiler, Event, Tools, TrialDone, run_all
from tuner.trial import Measurement, Sampled, ShapeState, TrialState

MODULE = "benchmarks.faults"
SHAPES = (GemmShape(2048, 1024, 512), GemmShape(1024, 4096, 512))
"""The one with the fault, and the next."""
BUDGET = Budget(trials=16, batch=8, finalists=4, rounds_hot=5, rounds_cool=5)
DEADLINES = Deadlines(verify=3.0, screen=3.0)
MOST_DELAY_S = 5.0
ASKED_EARLY = 8
NAN = "reports NaN as its time"
EXPECTED = {
    "never ends": TrialState.TIMEOUT,
    "writes out of bounds": TrialState.CRASHED,
    "traps": TrialState.CRASHED,
    "drops the last K step": TrialState.WRONG_RESULT,
    NAN: TrialState.IMPLAUSIBLE,
}


@dataclass(frozen=True)
class Planted:
    """A device with one fault and the compiler that serves it."""

    factory: DeviceFactory
    compiler: Compiler


Plant = Callable[[str, KernelVariant], Planted]


@dataclass
class Watched:
    """`device`, with the times at which `victim` was tried and the next candidate was."""

    device: Device
    victim: KernelVariant
    struck_at: float | None = None
    resumed_at: float | None = None

    def identify(self) -> DeviceIdentity:
        return self.device.identify()

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        return self.device.prepare(problem, trusted)

    def verify(self, entrant: Entrant) -> Sampled:
        now = time.monotonic()
        config = entrant.contender.config
        if config is not None and config.variant == self.victim:
            self.struck_at = self.struck_at or now
        elif self.struck_at is not None and self.resumed_at is None:
            self.resumed_at = now
        return self.device.verify(entrant)

    def screen(self, entrant: Entrant) -> Sampled:
        return self.device.screen(entrant)

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        return self.device.race(entrants, protocol, rounds)

    def close(self) -> None:
        self.device.close()


def victim_of(problem: Problem) -> KernelVariant:
    """What a search of `problem` measures early, and what takes every damaged line."""
    trusted = trusted_config(problem).variant
    return next(
        c.variant
        for c in Searcher(problem, menu(problem)).ask(ASKED_EARLY)
        if c.variant.store == "tma" and c.variant.reduction == "none" and c.variant != trusted
    )


def suffer(fault: str, sms: int, plant: Plant, folder: Path) -> dict[str, Any]:
    """Tune SHAPES with the fault in one candidate of the first; what became of all."""
    problems = [Problem(shape, sms) for shape in SHAPES]
    victim = victim_of(problems[0])
    planted = plant(fault, victim)
    told: list[Measurement] = []

    def follow(event: Event) -> None:
        if isinstance(event, TrialDone):
            told.append(event.measurement)

    url = f"sqlite:///{folder / fault.replace(' ', '-')}.db"
    with open_store(url) as store, DeviceProcess(planted.factory, DEADLINES) as process:
        device = Watched(process, victim)
        tools = Tools(device, planted.compiler, store, run_id="faults")
        outcomes = run_all(problems, tools, BUDGET, follow)
        key = device.identify().key
        kept = [r for p in problems for r in store.attempts(p, key, sources=["measured"])]
    struck = [
        row
        for row in kept
        if row.contender.config
        and row.contender.config.variant == victim
        and row.problem == problems[0]
    ]
    failed = [row for row in struck if row.state is not TrialState.OK]
    state = failed[0].state if failed else None
    deadline_s = DEADLINES.to_verify(problems[0]) if state is TrialState.TIMEOUT else 0.0
    took_s = (device.resumed_at or math.inf) - (device.struck_at or -math.inf)
    delay_s = round(took_s - deadline_s, 3)
    ended = [outcome.state for outcome in outcomes]
    return {
        "fault": fault,
        "state": state,
        "detail": failed[0].detail if failed else "",
        "tried": len(struck),
        "shape": ended[0],
        "next_shape": ended[1],
        "deadline_s": round(deadline_s, 2),
        "delay_s": delay_s if math.isfinite(delay_s) else None,
        "rows_told": len(told),
        "rows_lost": len(set(told) - set(kept)),
    }


def failed(row: dict[str, Any]) -> bool:
    """Whether a fault was not named as it must be, or cost more than it may."""
    named = row["state"] == EXPECTED[row["fault"]] and row["tried"] == 1
    tuned = row["shape"] == row["next_shape"] == ShapeState.TUNED
    quick = row["delay_s"] is not None and row["delay_s"] <= MOST_DELAY_S
    return not (named and tuned and quick and row["rows_lost"] == 0)


@contextmanager
def fake() -> Iterator[tuple[DeviceIdentity, Compiler, Plant]]:
    """Faults in the device that the tests use; its times are made up."""
    from tests.device.fake import H200, FakeCompiler, FakeFactory, Faults

    kinds = {
        "never ends": "hang",
        "writes out of bounds": "sticky",
        "traps": "sticky",
        "drops the last K step": "wrong",
        NAN: "nan",
    }

    def plant(fault: str, victim: KernelVariant) -> Planted:
        planted = Faults(**{kinds[fault]: frozenset([victim])})  # type: ignore[arg-type]
        return Planted(FakeFactory(planted), FakeCompiler())

    yield H200, FakeCompiler(), plant


@contextmanager
def cuda(index: int, cache: Path) -> Iterator[tuple[DeviceIdentity, Compiler, Plant]]:
    """Faults in the kernel's source, and NaN from the clock of a device that is sound."""
    identity = cuda_device(index)
    pools: list[CompilePool] = []

    def pool(fault: str, victim: KernelVariant) -> CompilePool:
        if fault not in FAULTS:
            made = CompilePool(cache)
        else:
            file, sound, instead = FAULTS[fault]
            damaged = partial(broken_alone, victim=victim, file=file, sound=sound, fault=instead)
            made = CompilePool(cache, render_source=damaged)
        pools.append(made.__enter__())
        return made

    def plant(fault: str, victim: KernelVariant) -> Planted:
        opened = partial(open_without_clock, index, victim if fault == NAN else None)
        return Planted(opened, pool(fault, victim))

    with device_lock(identity.uuid), CompilePool(cache) as sound:
        try:
            yield identity, sound, plant
        finally:
            for made in pools:
                made.__exit__(None, None, None)


def open_without_clock(index: int, victim: KernelVariant | None) -> Device:
    """The GPU at `index`; the times of `victim` are NaN."""
    device = open_cuda(index)
    measured = device.screen

    def screen(entrant: Entrant) -> Sampled:
        sampled, config = measured(entrant), entrant.contender.config
        if config is None or config.variant != victim:
            return sampled
        return replace(sampled, samples_us=(math.nan,) * len(sampled.samples_us))

    device.screen = screen  # type: ignore[method-assign]
    return device


def main() -> None:
    arguments = parser(__doc__, MODULE)
    arguments.add_argument("--device", default="fake", help="fake, or cuda:N")
    chosen = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-faults-") as made:
        folder = Path(made)
        where = None if chosen.device == "fake" else parse_device(chosen.device)
        opened = cuda(where.index, folder) if isinstance(where, Cuda) else fake()
        with opened as (identity, compiler, plant):
            commit = commit_measured(chosen.commit)
            head = evidence.origin(command_of(MODULE), commit, identity, compiler.toolchain())
            results = Results(chosen.out, {**head, "real_device": isinstance(where, Cuda)})
            for fault in EXPECTED:
                row = suffer(fault, identity.sms, plant, folder)
                verdict = "FAILED" if failed(row) else "ok"
                results.add(
                    row,
                    f"{fault}: {verdict}; {row['state']}, next shape {row['next_shape']}, "
                    f"delay {row['delay_s']} s, {row['rows_lost']} rows lost",
                )
            bad = sum(map(failed, results.rows))
            results.finish({"faults": len(results.rows), "failed": bad})
    if bad:
        sys.exit(1)


if __name__ == "__main__":
    main()
