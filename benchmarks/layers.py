"""What the answers between measured Ms lose:

    python -m benchmarks.layers --list
    python -m benchmarks.layers --db sqlite:///tuner.db --out layers.json

Three (N, K) of Llama-3-8B, which the command that `--list` prints has tuned at twelve Ms each, from
1 to 512. Then at every M the answer of its interval races, hot and in shuffled rounds, against what
might be better there: the winner at each measured M, launched for this one; the best modelled few;
and cuBLAS. One half of the rounds says which of them is fastest, the other how much slower the
answer is than that, so that chance in the choice is not counted as a loss; cuBLAS runs twice, which
shows the noise. Answers are those for the hot protocol. A config is proved at the first M that has
it; at every M the output of its graph is compared with the trusted config's after it was timed.

On an H200 tuning is expected to take 540 s and a race 0.8 s, so that every M of three layers takes
1260 s. `--step 4` measures every M up to 32 and then every fourth, which takes 400 s; `--layer` one
layer only. Configs are compiled before the first race.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from benchmarks.harness import Bench, gpu, gpu_parser
from benchmarks.layer_regret import CUBLAS, Loss, loss, row_of, summary, told
from tuner.cli.extents import parse_layer
from tuner.config import KernelConfig
from tuner.device.attempts import Attempts
from tuner.device.protocol import Device, Entrant
from tuner.errors import DeviceError, DeviceUnavailable, DoesNotFit, TunerError
from tuner.legality import faults
from tuner.lookup import Answer, Book, Layer, Terms, choose
from tuner.lookup.adapt import adapted
from tuner.lookup.cost_model import H200, estimate_us
from tuner.lookup.layer import at_m
from tuner.lookup.sound import sound_configs
from tuner.lookup.tiers import of_layer
from tuner.search.space import trusted_config
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.layers import layers_at
from tuner.store.repository import Repository
from tuner.trial import PROTOCOL_HOT, Toolchain, TrialState

MODULE = "benchmarks.layers"
LAYERS = ("6144,4096", "28672,4096", "4096,14336")
"""N,K of Llama-3-8B's qkv, gate_up and down, as benchmarks/shapes/llm-inference.txt lists them."""
LOW, HIGH = 1, 512
DENSE = 32
"""Up to this M none is left out."""
MODELLED = 3
ROUNDS = 14
MS_PER_ROW = 32
TERMS = Terms(PROTOCOL_HOT)


@dataclass(frozen=True, slots=True)
class Field:
    """One M: the answer of its interval, None if none holds it, and the configs of its race."""

    problem: Problem
    answer: Answer | None
    configs: tuple[KernelConfig, ...]


def ms_of(step: int) -> list[int]:
    """The Ms that are raced: all up to DENSE, then every `step`-th, and the last."""
    return sorted({*range(LOW, DENSE + 1), *range(DENSE, HIGH + 1, step), HIGH})


def winners(
    repository: Repository,
    layers: Sequence[Layer],
    key: Problem,
    device_key: str,
    toolchain: Toolchain,
) -> list[tuple[Problem, KernelConfig]]:
    """The best config at each measured M of a layer, by all its races, with where it won."""
    measured = {m for layer in layers for one in layer.intervals for m in one.measured}
    found = []
    for problem in (at_m(key, m) for m in sorted(measured)):
        races = repository.counted_races(problem, device_key)
        answer = choose([r for r in races if r.toolchain == toolchain], TERMS.protocol)
        if answer:
            found.append((problem, answer.config))
    return found


def field_of(problem: Problem, book: Book, won: Sequence[tuple[Problem, KernelConfig]]) -> Field:
    """The answer, every winner launched for this problem, and the best modelled."""
    answer = of_layer(problem, book, TERMS)
    lent = (adapted(config, won_on, problem) for won_on, config in won)
    legal = [c for c in sound_configs(problem, H200) if not faults(c, problem)]
    modelled = sorted(legal, key=lambda c: (estimate_us(problem, c), c))
    configs = [answer.config] if answer else []
    configs += [c for c in lent if c and not faults(c, problem)]
    configs += islice(modelled, MODELLED)
    return Field(problem, answer, tuple(dict.fromkeys(configs)))


@dataclass
class Races:
    """Where the Ms of one layer are raced; a config is proved at the first M that has it.

    built: what compiled. proven: whether a config was right, of those that were looked at.
    """

    device: Device
    built: Mapping[KernelConfig, Entrant]
    rounds: int
    proven: dict[KernelConfig, bool] = field(default_factory=dict)

    def race(self, chosen: Field) -> Loss:
        """Race one M. Raises: DeviceError if the answer or cuBLAS has no usable time."""
        assert chosen.answer is not None
        trusted = self.built[trusted_config(chosen.problem)]
        attempts = Attempts(self.device, chosen.problem, trusted)
        entrants = [self.built[config] for config in chosen.configs if config in self.built]
        for entrant in entrants:
            config = entrant.contender.config
            if config is not None and config not in self.proven:
                self.proven[config] = attempts.attempt(entrant).state is TrialState.OK
        right = [e for e in entrants if e.contender.config and self.proven[e.contender.config]]
        both = [Entrant(CUBLAS), Entrant(CUBLAS)]
        result = attempts.race([*right, *both], PROTOCOL_HOT, self.rounds)
        return loss(chosen.problem.shape.m, chosen.answer, result.sampled)


def fields_of(
    repository: Repository, key: Problem, device_key: str, toolchain: Toolchain, ms: Sequence[int]
) -> list[Field]:
    """What is raced at every M of one layer. Raises: NotTuned."""
    layers = layers_at(repository, key, device_key, toolchain)
    if not any((layer.terms, layer.toolchain) == (TERMS, toolchain) for layer in layers):
        shape = key.shape
        raise NotTuned(
            f"N={shape.n} K={shape.k} has no intervals of this kernel. Tune it first: "
            f"{_tuning(repository.location)}"
        )
    won = winners(repository, layers, key, device_key, toolchain)
    book = Book(device_key, device_key, layers=layers)
    return [field_of(at_m(key, m), book, won) for m in ms]


class NotTuned(TunerError):
    """A layer that no interval is stored of."""


def _tuning(database: str) -> str:
    layers = " ".join(f"--layer {layer}" for layer in LAYERS)
    return f"tuner run {layers} --m {LOW}..{HIGH} --device cuda:0 --db {database}"


def measured(
    bench: Bench, fields: Sequence[Field], rounds: int, failed: list[str]
) -> Iterator[list[Loss]]:
    """The races of one layer, some at a time; what goes wrong at one M is noted in `failed`."""
    configs = dict.fromkeys(config for one in fields for config in one.configs)
    trusted = dict.fromkeys(trusted_config(one.problem) for one in fields)
    races = Races(bench.device, bench.entrants([*configs, *trusted]), rounds)
    for start in range(0, len(fields), MS_PER_ROW):
        losses = []
        for one in fields[start : start + MS_PER_ROW]:
            try:
                losses.append(races.race(one))
            except DeviceUnavailable:
                raise
            except (DeviceError, DoesNotFit) as error:
                failed.append(f"{one.problem.shape}: {error}")
                print(failed[-1], flush=True)
        if losses:
            yield losses


def main() -> None:
    arguments = gpu_parser(__doc__, MODULE, database=True)
    arguments.add_argument("--list", action="store_true", help="print how to tune, and end")
    arguments.add_argument("--layer", action="append", help="N,K of one layer; may be repeated")
    arguments.add_argument("--step", type=int, default=1, help=f"between Ms above {DENSE}")
    arguments.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = arguments.parse_args()
    if chosen.list or not chosen.db:
        print(_tuning(chosen.db or "sqlite:///tuner.db"))
        return
    shapes: list[GemmShape] = [parse_layer(layer) for layer in chosen.layer or LAYERS]
    with open_store(chosen.db, create=False) as repository, gpu(chosen, MODULE) as bench:
        key, failed = bench.device.identify().key, list[str]()
        unanswered: dict[str, list[int]] = {}
        by_problem = {
            problem: fields_of(
                repository, problem, key, bench.pool.toolchain(), ms_of(max(chosen.step, 1))
            )
            for problem in (Problem(shape, bench.sms) for shape in shapes)
        }
        for problem, fields in by_problem.items():
            name = f"{problem.shape.n}x{problem.shape.k}"
            unanswered[name] = [f.problem.shape.m for f in fields if f.answer is None]
            answered = [one for one in fields if one.answer]
            for losses in measured(bench, answered, chosen.rounds, failed):
                row = row_of(problem, losses)
                bench.results.add(row, told(row))
        found = summary(bench.results.rows, unanswered)
        bench.results.finish({**found, "rounds": chosen.rounds, "failed": failed})
    if failed:
        raise SystemExit(os.EX_SOFTWARE)


if __name__ == "__main__":
    main()
