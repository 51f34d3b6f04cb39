"""The game that `benchmarks/score_search.py` plays: find a recorded shape's fastest config.

A move reveals what a search would see: how a config failed, or its recorded screening. A seed
scatters the screenings and shuffles the rounds of the recorded race. What was found after so many
moves is what the finalists' race of a study says, whoever made the moves: the fastest screened and
the fastest of a short hot race are raced hot over all recorded rounds. Its regret is against the
fastest config of the whole recorded hot race.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, inf
from random import Random
from statistics import median

from tuner.config import KernelConfig
from tuner.device.replay import COMPILE_STATES, Recording, ReplayDevice
from tuner.legality import faults
from tuner.search.finalists import LAST_HEAT, choose_finalists
from tuner.shape import Problem
from tuner.study.progress import Budget
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Measurement, TrialState

SCREENING_NOISE = 0.01
"""Standard deviation, in ln(time), of one screening against another of the same config."""


@dataclass(frozen=True, slots=True)
class Game:
    """One shape of a recording as one seed sees it; configs are known by their position.

    recording: the scattered rows, for a device that plays them. screened_us: None for a failure,
    of which half_price says whether it costs half a move. heats_us: for each lap of a study's last
    heat, medians of as many rounds of the shuffled race; hot_us: of all of them; inf for a failure.
    """

    problem: Problem
    recording: Recording
    configs: tuple[KernelConfig, ...]
    screened_us: tuple[float | None, ...]
    half_price: tuple[bool, ...]
    heats_us: tuple[tuple[float, ...], ...]
    hot_us: tuple[float, ...]

    @property
    def best_us(self) -> float:
        return min(self.hot_us)

    def regret(self, move: int) -> float:
        """How much slower hot than the best recorded: 0.03 is 3 %."""
        return self.hot_us[move] / self.best_us - 1

    def affordable(self, moves: Sequence[int], budget: int) -> Sequence[int]:
        """The moves that a budget of trials pays for: two failed compiles count as one."""
        halves = 0
        for count, move in enumerate(moves, start=1):
            halves += self.half_price[move]
            if count - halves // 2 >= budget:
                return moves[:count]
        return moves

    def found(self, moves: Sequence[int]) -> int | None:
        """The config that a study would end with after these moves; None if all of them failed."""
        worked = sorted((us, move) for move in moves if (us := self.screened_us[move]) is not None)
        if not worked:
            return None
        screened = [move for _, move in worked]
        hot = screened[: LAST_HEAT[0][0]]
        for (most, _), lap_us in zip(LAST_HEAT, self.heats_us, strict=True):
            hot = sorted(hot[:most], key=lambda move: (lap_us[move], move)) + hot[most:]
        position = {self.configs[move]: move for move in screened}
        finalists = choose_finalists(
            [self.configs[move] for move in screened],
            [self.configs[move] for move in hot],
            per_variant=2,
            per_tile=4,
        )[: Budget().finalists]
        return min((position[config] for config in finalists), key=self.hot_us.__getitem__)

    def moves_to_within(self, moves: Sequence[int], regret: float) -> int | None:
        """How many moves until a config is among them that is at most so much off the best."""
        hits = (count for count, move in enumerate(moves, 1) if self.regret(move) <= regret)
        return next(hits, None)


def playable(recording: Recording) -> list[Problem]:
    """Shapes that were raced hot and cool, so that a study can end on them."""
    return [p for p in recording.problems() if recording.race(p, PROTOCOL_COOL)]


def game(recording: Recording, problem: Problem, seed: int) -> Game:
    """The same for the same seed."""
    scattered = Recording(
        recording.name, recording.device, list(_scattered(recording, problem, seed))
    )
    rows = {row.contender.config: row for row in scattered.rows(problem) if row.race is None}
    race = {row.contender.config: row for row in scattered.race(problem, PROTOCOL_HOT)}
    configs = [
        config
        for config in ReplayDevice(scattered).recorded_configs(problem)
        if not faults(config, problem)
    ]
    worked = [rows[config].state is TrialState.OK for config in configs]
    return Game(
        problem,
        scattered,
        tuple(configs),
        tuple(rows[c].median_us if ok else None for c, ok in zip(configs, worked, strict=True)),
        tuple(rows[c].state in COMPILE_STATES for c in configs),
        tuple(
            tuple(
                median(race[c].samples_us[:rounds]) if ok else inf
                for c, ok in zip(configs, worked, strict=True)
            )
            for _, rounds in LAST_HEAT
        ),
        tuple(
            median(race[c].samples_us) if ok else inf for c, ok in zip(configs, worked, strict=True)
        ),
    )


def _scattered(recording: Recording, problem: Problem, seed: int) -> Iterator[Measurement]:
    random = Random(f"{problem} {seed}")
    race = recording.race(problem, PROTOCOL_HOT)
    raced = {id(row) for row in race}
    order = list(range(min((len(row.samples_us) for row in race), default=0)))
    random.shuffle(order)
    for row in recording.rows(problem):
        if row.race is None:
            factor = exp(random.gauss(0, SCREENING_NOISE))
            yield replace(row, samples_us=tuple(us * factor for us in row.samples_us))
        elif id(row) in raced:
            yield replace(row, samples_us=tuple(row.samples_us[i] for i in order))
        else:
            yield row
