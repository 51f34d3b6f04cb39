"""The fastest stored config of some kind: dependent, invariant, or any."""

from collections.abc import Callable, Sequence

from tuner.config import KernelConfig
from tuner.lookup import Race
from tuner.lookup.choose import best_of
from tuner.lookup.race import Candidate, candidates
from tuner.shape import Problem
from tuner.store.repository import Repository
from tuner.trial import PROTOCOL_HOT, Toolchain

Accept = Callable[[KernelConfig], bool]


def raced(
    repository: Repository | None, problem: Problem, device_key: str, toolchain: Toolchain
) -> list[Candidate]:
    """Our configs in the hot races of `problem` that this kernel ran; none without a database."""
    races = repository.races(problem, device_key, PROTOCOL_HOT) if repository else []
    return ours(races, toolchain)


def ours(races: Sequence[Race], toolchain: Toolchain) -> list[Candidate]:
    """Our configs in the hot races of one kernel, with what they showed beside cuBLAS."""
    of_kernel = [race for race in races if race.toolchain == toolchain]
    return [c for c in candidates(of_kernel, [PROTOCOL_HOT]) if c.contender.config is not None]


def fastest(found: Sequence[Candidate], accept: Accept = lambda _: True) -> KernelConfig | None:
    """The best of `found` that `accept` takes, by the rules of a look-up."""
    fitting = [c for c in found if c.contender.config and accept(c.contender.config)]
    return best_of(fitting)[0].contender.config if fitting else None


def ordered(found: Sequence[Candidate], accept: Accept = lambda _: True) -> list[KernelConfig]:
    """All of `found` that `accept` takes, the fastest first."""
    by_score = sorted(found, key=lambda c: -c.score)
    configs = [c.contender.config for c in by_score if c.contender.config]
    return [config for config in configs if accept(config)]
