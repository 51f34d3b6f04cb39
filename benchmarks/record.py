"""Record a GPU for replay: every config of a stated menu, proved, screened and raced.

    python -m benchmarks.record --shapes examples/shapes.txt --db sqlite:///tuner.db

The menu of a shape is a seeded uniform sample of its legal menu, half of it with launch knobs drawn
at random too; the article's config; the configs that the races in `--db` had as finalists, so that
the best found is among the recorded; and the winners of the other shapes, as they would be launched
here. Samples of different shapes prefer the same variants. All configs of a shape that are right
are raced with the libraries in the same shuffled rounds, hot and cool, so any subset of them is a
valid race. Shapes that the output file already holds, of the same kernel, are kept and not recorded
again.
"""

import argparse
import gzip
import os
import sys
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from tuner.compiler.pool import CompilePool
from tuner.config import KernelConfig
from tuner.device.attempts import Attempts
from tuner.device.cuda.exclusive import exclusive
from tuner.device.origin import Origin
from tuner.device.protocol import Device, Entrant
from tuner.device.replay import Recording
from tuner.hardware import DeviceIdentity
from tuner.legality import faults
from tuner.lookup.adapt import adapted
from tuner.search.space import article_config, sample, trusted_config
from tuner.settings import Settings
from tuner.shape import Problem
from tuner.shape_files import read_shape_files
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    CompileFailure,
    Contender,
    Cubin,
    Measurement,
    Sampled,
    Toolchain,
    TrialState,
)
from tuner.trial_json import write_lines

RECORDINGS = Path(__file__).parents[1] / "tuner" / "recordings"


def stated_menu(
    problem: Problem, count: int, seed: int, found: list[KernelConfig]
) -> list[KernelConfig]:
    """What is recorded of `problem`, in a fixed order and without repeats."""
    plain = sample(problem, count - count // 2, seed)
    relaunched = sample(problem, count // 2, seed + 1, any_knobs=True)
    return list(dict.fromkeys([article_config(problem), *found, *plain, *relaunched]))


def winners(repository: Repository, problem: Problem, device_key: str) -> list[KernelConfig]:
    """The fastest of our configs in the stored races of `problem`, one of each protocol."""
    best = []
    for protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
        timed = [
            (row.median_us, row.contender.config)
            for race in repository.races(problem, device_key, protocol)
            for row in race.measurements
            if row.median_us and row.contender.config
        ]
        best += [min(timed)[1]] if timed else []
    return list(dict.fromkeys(best))


def borrowed(
    repository: Repository, problem: Problem, others: list[Problem], device_key: str
) -> list[KernelConfig]:
    """What won on `others`, as `problem` would launch it, without dependent launches."""
    found = []
    for other in others:
        for config in winners(repository, other, device_key) if other != problem else ():
            here = adapted(config, other, problem)
            if here is not None:
                here = replace(here, knobs=replace(here.knobs, dependent_launch=False))
                found += [here] if not faults(here, problem) else []
    return list(dict.fromkeys(found))


def finalists(repository: Repository, problem: Problem, device_key: str) -> list[KernelConfig]:
    """Our configs in the stored races of `problem`, heats apart."""
    races = [
        race
        for protocol in (PROTOCOL_HOT, PROTOCOL_COOL)
        for race in repository.races(problem, device_key, protocol)
    ]
    raced = [row.contender.config for race in races for row in race.measurements]
    return list(dict.fromkeys(config for config in raced if config))


def already_recorded(out: Path, toolchain: Toolchain) -> list[Measurement]:
    """The rows of shapes that `out` holds to the end of their last race, for this kernel."""
    if not out.exists():
        return []
    recording = Recording.load(out)
    if recording.toolchain != toolchain:
        return []
    done = [p for p in recording.problems() if recording.race(p, PROTOCOL_COOL)]
    return [row for problem in done for row in recording.rows(problem)]


def write(out: Path, identity: DeviceIdentity, rows: list[Measurement]) -> None:
    """Replace `out` as a whole, so that an interrupted recording keeps its finished shapes."""
    partial_file = out.with_suffix(".partial")
    text = "".join(write_lines(identity, rows))
    partial_file.write_bytes(gzip.compress(text.encode(), mtime=0))
    partial_file.replace(out)


def record(
    origin: Origin,
    configs: list[KernelConfig],
    device: Device,
    pool: CompilePool,
    rounds: dict[str, int],
) -> list[Measurement]:
    """One row per config for the screening, and one for each race it was in.

    A config that breaks a race is recorded as failed, and not as screened.
    """
    trusted = trusted_config(origin.problem)
    compiled = pool.compile([trusted.variant, *(c.variant for c in configs)])
    cubin = compiled[trusted.variant]
    assert isinstance(cubin, Cubin), cubin.detail
    attempts = Attempts(device, origin.problem, Entrant(Contender("kernel", trusted), cubin))
    racing = {Contender(name): Entrant(Contender(name)) for name in ("cublas", "cublaslt")}
    screened: dict[Contender, Sampled] = {}
    for config in configs:
        contender, built = Contender("kernel", config), compiled[config.variant]
        if isinstance(built, CompileFailure):
            screened[contender] = Sampled(contender, built.state, detail=built.detail)
            continue
        racing[contender] = Entrant(contender, built)
        screened[contender] = attempts.attempt(racing[contender])
        if screened[contender].state is not TrialState.OK:
            del racing[contender]
    raced: list[Measurement] = []
    for protocol, count in rounds.items():
        result = attempts.race(list(racing.values()), protocol, count)
        for failed in result.removed:
            del racing[failed.contender]
            if failed.contender in screened:
                screened[failed.contender] = failed
        race = uuid4().hex
        raced += [origin.row(shortened(sampled), protocol, race) for sampled in result.sampled]
    rows = [origin.row(shortened(sampled), PROTOCOL_SCREEN) for sampled in screened.values()]
    return [*rows, *raced]


def shortened(sampled: Sampled) -> Sampled:
    """Samples to a tenth of a nanosecond, far below their noise: a recording stays small."""
    return replace(sampled, samples_us=tuple(round(us, 4) for us in sampled.samples_us))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--shapes", type=Path, nargs="+", required=True)
    arguments.add_argument("--db", required=True, help="where the shapes have been tuned")
    arguments.add_argument("--device", type=int, default=0)
    arguments.add_argument("--count", type=int, default=240, help="sampled configs per shape")
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--rounds-hot", type=int, default=15)
    arguments.add_argument("--rounds-cool", type=int, default=7)
    arguments.add_argument("--out", type=Path, default=RECORDINGS / "h200.jsonl.gz")
    chosen = arguments.parse_args()
    settings = Settings.from_environment(os.environ)
    rounds = {PROTOCOL_HOT: chosen.rounds_hot, PROTOCOL_COOL: chosen.rounds_cool}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        open_store(chosen.db) as repository,
        exclusive(chosen.device, partial(print, file=sys.stderr)) as device,
        CompilePool(settings.cache_dir) as pool,
    ):
        identity = device.identify()
        rows = already_recorded(chosen.out, pool.toolchain())
        recorded = {row.problem for row in rows}
        shapes = read_shape_files(chosen.shapes).shapes
        problems = [Problem(shape, identity.sms) for shape in shapes]
        for problem in problems:
            shape = problem.shape
            if problem in recorded:
                print(f"{shape}: recorded already", flush=True)
                continue
            found = finalists(repository, problem, identity.key)
            found += borrowed(repository, problem, problems, identity.key)
            configs = stated_menu(problem, chosen.count, chosen.seed, found)
            origin = Origin(problem, identity, pool.toolchain())
            taken = record(origin, configs, device, pool, rounds)
            rows += taken
            write(chosen.out, identity, rows)
            states = Counter(row.state.value for row in taken)
            print(f"{shape}: {len(configs)} configs, rows by state {dict(states)}", flush=True)


if __name__ == "__main__":
    main()
