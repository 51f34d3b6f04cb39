"""A row's bits at every batch, and what that promise costs:

    python -m benchmarks.invariance --db sqlite:///tuner.db --out invariance.json

Ten (N, K) of real models, at M = 1, 16, 17, 128 and 4096 with the same leading rows of A. Several
configs that do not split K run each product, the best stored ones among them (launched plainly):
every row of every output must be, bit for bit, that of the trusted config at the largest M. The
same is counted for cuBLAS against its own output at the largest M, and for the tuned config where
that splits K.
Then, for each (N, K, M), the best of those configs races cuBLAS (twice, for the noise) on fresh
samples, hot: the cost of the promise is the geometric mean of cuBLAS's time over ours.
`--list` prints the shapes, to be tuned first; without `--db` the configs are the best modelled.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from statistics import geometric_mean, median
from typing import Any

from benchmarks.harness import Bench, extents, gpu, gpu_parser
from benchmarks.invariance_on_device import Bits, CompareRows
from benchmarks.kinds import KINDS
from benchmarks.stored import fastest, ordered, raced
from tuner.config import KernelConfig
from tuner.device.attempts import Attempts
from tuner.device.protocol import CUBLAS, Entrant
from tuner.errors import DeviceError, DeviceUnavailable, DoesNotFit
from tuner.legality import faults
from tuner.lookup.launches import default_knobs
from tuner.lookup.race import Candidate
from tuner.search.seeds import ranked
from tuner.search.space import menu, trusted_config
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.trial import PROTOCOL_HOT, TrialState, paired_ratio

MODULE = "benchmarks.invariance"
BATCHES = (1, 16, 17, 128, 4096)
LAYERS = (
    (6144, 4096),
    (28672, 4096),
    (4096, 14336),
    (10240, 8192),
    (8192, 8192),
    (57344, 8192),
    (8192, 28672),
    (3584, 18944),
    (2112, 7168),
    (7168, 16384),
)
"""(N, K) of Llama-3-8B and 70B, Qwen2.5-7B and DeepSeek-V3, as benchmarks/shapes/ lists them."""
BESIDE = (
    *("cooperative 128x256, cluster 2x1", "ping-pong, exchanged", "three consumers"),
    *("one consumer, four slabs", "uneven, cluster 1x7, exchanged"),
)
STORED = 3
MODELLED = 6
RACING = 4
HEAT_ROUNDS = 7
DEADLINE_S = 90.0


@dataclass(frozen=True, slots=True)
class Field:
    """The configs of one problem.

    whole: those that do not split K, which may race. beside: others of those whose bits alone are
    looked at, whatever they suit. tuned: the fastest stored, which may split K.
    """

    whole: tuple[KernelConfig, ...]
    beside: tuple[KernelConfig, ...]
    tuned: KernelConfig | None

    @property
    def split(self) -> KernelConfig | None:
        return self.tuned if self.tuned and not is_whole(self.tuned) else None


def is_whole(config: KernelConfig) -> bool:
    """Adds up all of K in one order, so that its bits are those of every other such config."""
    return config.variant.reduction == "none"


def field_of(problem: Problem, found: Sequence[Candidate]) -> Field:
    """The fastest stored, then the best modelled of each kind; beside them very different ones."""
    stored = list(dict.fromkeys(map(plainly, ordered(found, is_whole))))[:STORED]
    modelled = diverse([c for c in ranked(problem, menu(problem)) if is_whole(c)], MODELLED)
    varied = [KernelConfig(KINDS[kind], default_knobs(problem, KINDS[kind])) for kind in BESIDE]
    beside = [config for config in varied if not faults(config, problem)]
    return Field(tuple(dict.fromkeys([*stored, *modelled])), tuple(beside), fastest(found))


def plainly(config: KernelConfig) -> KernelConfig:
    """The same launched plainly: dependent launch is no part of this promise or of its cost."""
    return replace(config, knobs=replace(config.knobs, dependent_launch=False))


def diverse(configs: Sequence[KernelConfig], count: int) -> list[KernelConfig]:
    """The first of each kind, in the order given, up to `count`."""
    first: dict[tuple[object, ...], KernelConfig] = {}
    for config in configs:
        v = config.variant
        kind = (v.schedule, v.consumers, v.split, v.transposed_store, v.cluster_size > 1)
        first.setdefault(kind, config)
    return list(first.values())[:count]


@dataclass(frozen=True, slots=True)
class Cost:
    """One race: µs by round of our best config that does not split K, and of cuBLAS twice."""

    config: KernelConfig
    ours_us: tuple[float, ...]
    cublas_us: tuple[float, ...]
    again_us: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        rounds = {"ours": self.ours_us, "cublas": self.cublas_us, "cublas_again": self.again_us}
        return {
            "config": self.config.to_dict(),
            "ours_us": median(self.ours_us),
            "cublas_us": median(self.cublas_us),
            "ratio_cublas": paired_ratio(self.cublas_us, self.ours_us),
            "noise": paired_ratio(self.again_us, self.cublas_us),
            "rounds": {who: [round(us, 4) for us in of_one] for who, of_one in rounds.items()},
        }


def cost(bench: Bench, problem: Problem, entrants: Sequence[Entrant], rounds: int) -> Cost:
    """Prove and screen all, a short race of the best, then the best of those against cuBLAS.

    Raises: DeviceError if none is left, or cuBLAS fails.
    """
    attempts = Attempts(bench.device, problem, bench.entrant(trusted_config(problem)))
    screened: list[tuple[float, Entrant]] = []
    for entrant in entrants:
        one = attempts.attempt(entrant)
        if one.state is TrialState.OK:
            screened.append((median(one.samples_us), entrant))
        else:
            told = f"{problem.shape}: {entrant.contender.config}: {one.state} {one.detail}"
            print(told, file=sys.stderr, flush=True)
    # Stored ones first: a screening, on a cool card, must not throw a hot winner out.
    by_time = [entrant for _, entrant in sorted(screened, key=lambda pair: pair[0])]
    proven = [entrant for _, entrant in screened]
    heat = list(dict.fromkeys([*proven[:STORED], *by_time]))[:RACING]
    raced = attempts.race(heat, PROTOCOL_HOT, HEAT_ROUNDS).sampled
    sound = [one for one in raced if one.state is TrialState.OK]
    if not sound:
        raise DeviceError(f"{problem.shape}: no config that does not split K is right.")
    best = min(sound, key=lambda one: median(one.samples_us)).contender
    ours = next(entrant for entrant in heat if entrant.contender == best)
    libraries = [CUBLAS] * 2
    final = attempts.race([ours, *libraries], PROTOCOL_HOT, rounds)
    if len(final.sampled) != 3 or any(one.state is not TrialState.OK for one in final.sampled):
        raise DeviceError(f"{problem.shape}: the race broke: {final}")
    mine, cublas, again = (one.samples_us for one in final.sampled)
    assert best.config is not None
    return Cost(best.config, mine, cublas, again)


def described(n: int, k: int, bits: Sequence[Bits], costs: dict[int, Cost]) -> dict[str, Any]:
    """One row of the evidence: one (N, K) at every M."""
    whole = [one for one in bits if one.who == "whole"]
    return {
        "n": n,
        "k": k,
        "configs": len({one.config for one in whole}),
        "first_row_same": len({one.first_row for one in whole}) == 1,
        "rows_differing": sum(one.differing for one in whole),
        "cublas_first_row_same": len({one.first_row for one in bits if one.who == "cublas"}) < 2,
        "bits": [one.to_json() for one in bits],
        "costs": [{**extents(GemmShape(m, n, k)), **one.to_json()} for m, one in costs.items()],
    }


def told(row: dict[str, Any]) -> str:
    ratios = " ".join(f"M={one['m']} {one['ratio_cublas']:.3f}" for one in row["costs"])
    same = row["first_row_same"] and not row["rows_differing"]
    return (
        f"N={row['n']} K={row['k']}: {row['configs']} configs, "
        f"{'all rows the same' if same else 'ROWS DIFFER'}; cuBLAS's first row "
        f"{'stays' if row['cublas_first_row_same'] else 'changes'}; cuBLAS / ours: {ratios}"
    )


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all rows: whether the promise holds, whether cuBLAS keeps it, and what it costs."""
    ratios = [one["ratio_cublas"] for row in rows for one in row["costs"]]
    return {
        "invariant": bool(rows)
        and all(row["first_row_same"] and not row["rows_differing"] for row in rows),
        "cublas_changes_first_row": sum(not row["cublas_first_row_same"] for row in rows),
        "layers": len(rows),
        "races": len(ratios),
        "ratio_cublas_geometric_mean": geometric_mean(ratios) if ratios else None,
        "ratio_cublas_least": min(ratios, default=None),
    }


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE, database=True)
    arguments.add_argument("--list", action="store_true", help="print the shapes and end")
    arguments.add_argument("--rounds", type=int, default=30)
    chosen = arguments.parse_args()
    if chosen.list:
        print("\n".join(f"{m} {n} {k}" for n, k in LAYERS for m in BATCHES))
        return
    store = open_store(chosen.db, create=False) if chosen.db else nullcontext()
    with store as repository, gpu(chosen, MODULE) as bench:
        key, failed = bench.device.identify().key, []
        for n, k in LAYERS:
            costs: dict[int, Cost] = {}
            entrants: dict[int, tuple[Entrant, ...]] = {}
            problems = {m: Problem(GemmShape(m, n, k), bench.sms) for m in BATCHES}
            try:
                for m, problem in problems.items():
                    found = raced(repository, problem, key, bench.pool.toolchain())
                    field = field_of(problem, found)
                    split = [field.split] if field.split else []
                    built = bench.entrants([*field.whole, *field.beside, *split])
                    entrants[m] = tuple(built.values())
                    whole = [built[c] for c in field.whole if c in built]
                    costs[m] = cost(bench, problem, whole, chosen.rounds)
                trusted = bench.entrant(trusted_config(problems[max(BATCHES)]))
                bits = bench.device.ask(CompareRows(n, k, bench.sms, entrants, trusted), DEADLINE_S)
            except DeviceUnavailable:
                raise
            except (DeviceError, DoesNotFit) as error:
                failed.append(f"N={n} K={k}: {error}")
                print(failed[-1], flush=True)
                continue
            row = described(n, k, bits, costs)
            bench.results.add(row, told(row))
        found_all = summary(bench.results.rows)
        bench.results.finish({**found_all, "failed": failed})
    if failed or not found_all["invariant"]:
        raise SystemExit(os.EX_SOFTWARE)


if __name__ == "__main__":
    main()
