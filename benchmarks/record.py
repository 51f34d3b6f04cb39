"""Record a GPU for replay: every config of a stated menu, proved, screened and raced.

    python -m benchmarks.record --shapes examples/shapes.txt --db sqlite:///tuner.db

The menu of a shape is a seeded uniform sample of its legal menu, half of it with launch knobs drawn
at random too; the article's config; and the configs that the last race in `--db` had as finalists,
so that the best found is among the recorded. All configs of a shape that are right are raced with
the libraries in the same shuffled rounds, hot and cool, so any subset of them is a valid race.
"""

import argparse
import gzip
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from uuid import uuid4

from tuner.compiler.pool import CompilePool
from tuner.config import KernelConfig
from tuner.device.bench import Bench
from tuner.device.cuda import open_cuda
from tuner.device.process import DeviceProcess
from tuner.device.protocol import Entrant
from tuner.hardware import DeviceIdentity
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
from tuner.trial_json import to_json

RECORDINGS = Path(__file__).parents[1] / "tuner" / "recordings"


def stated_menu(
    problem: Problem, count: int, seed: int, found: list[KernelConfig]
) -> list[KernelConfig]:
    """What is recorded of `problem`, in a fixed order and without repeats."""
    plain = sample(problem, count - count // 2, seed)
    relaunched = sample(problem, count // 2, seed + 1, any_knobs=True)
    return list(dict.fromkeys([article_config(problem), *found, *plain, *relaunched]))


def finalists(repository: Repository, problem: Problem, device_key: str) -> list[KernelConfig]:
    """Our configs in the stored races of `problem`."""
    raced = [row for race in repository.races(problem, device_key) for row in race.measurements]
    return list(dict.fromkeys(r.contender.config for r in raced if r.contender.config))


def record(
    problem: Problem,
    configs: list[KernelConfig],
    device: DeviceProcess,
    pool: CompilePool,
    rounds: dict[str, int],
) -> Iterator[Measurement]:
    """One row per config for the screening, and one for each race it was in."""
    identity, toolchain = device.identify(), pool.toolchain()
    trusted = trusted_config(problem)
    compiled = pool.compile([trusted.variant, *(c.variant for c in configs)])
    cubin = compiled[trusted.variant]
    assert isinstance(cubin, Cubin), cubin.detail
    bench = Bench(device, problem, Entrant(Contender("kernel", trusted), cubin))
    racing = [Entrant(Contender("cublas")), Entrant(Contender("cublaslt"))]
    for config in configs:
        contender, built = Contender("kernel", config), compiled[config.variant]
        if isinstance(built, CompileFailure):
            sampled = Sampled(contender, built.state, detail=built.detail)
        else:
            entrant = Entrant(contender, built)
            sampled = bench.attempt(entrant)
            if sampled.state is TrialState.OK:
                racing.append(entrant)
        yield row(problem, identity, toolchain, PROTOCOL_SCREEN, sampled, None)
    for protocol, count in rounds.items():
        race = uuid4().hex
        for sampled in bench.race(racing, protocol, count).sampled:
            yield row(problem, identity, toolchain, protocol, sampled, race)


def row(
    problem: Problem,
    identity: DeviceIdentity,
    toolchain: Toolchain,
    protocol: str,
    sampled: Sampled,
    race: str | None,
) -> Measurement:
    return Measurement(
        problem,
        identity.key,
        identity.name,
        protocol,
        sampled.contender,
        toolchain,
        sampled.state,
        tuple(round(us, 4) for us in sampled.samples_us),
        sampled.detail,
        sampled.conditions,
        race=race,
    )


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
    repository = open_store(chosen.db)
    rounds = {PROTOCOL_HOT: chosen.rounds_hot, PROTOCOL_COOL: chosen.rounds_cool}
    shapes = read_shape_files(chosen.shapes).shapes
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    with (
        CompilePool(settings.cache_dir) as pool,
        DeviceProcess(partial(open_cuda, chosen.device)) as device,
        gzip.open(chosen.out, "wt", encoding="utf-8", compresslevel=9) as out,
    ):
        identity = device.identify()
        header = {"format": "gemm-tuner-rows/1", "device": asdict(identity)}
        out.write(json.dumps(header, sort_keys=True) + "\n")
        for shape in shapes:
            problem = Problem(shape, identity.sms)
            found = finalists(repository, problem, identity.key)
            configs = stated_menu(problem, chosen.count, chosen.seed, found)
            states: dict[str, int] = {}
            for measurement in record(problem, configs, device, pool, rounds):
                out.write(json.dumps(to_json(measurement), sort_keys=True) + "\n")
                states[measurement.state] = states.get(measurement.state, 0) + 1
            print(f"{shape}: {len(configs)} configs, rows by state {states}", flush=True)
    print(f"{chosen.out}: {chosen.out.stat().st_size} B", file=sys.stderr)


if __name__ == "__main__":
    main()
