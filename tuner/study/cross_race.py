"""A cross race: the best configs of all Ms of a layer, proved and raced at one of them."""

from collections.abc import Iterable, Sequence
from uuid import uuid4

from tuner.config import KernelConfig
from tuner.device.attempts import Attempts
from tuner.device.protocol import CUBLAS, Entrant
from tuner.legality import faults
from tuner.lookup import choose
from tuner.lookup.adapt import adapted
from tuner.lookup.cross_races import Span, cross_race_id, span_of
from tuner.lookup.race import Race, races_of
from tuner.shape import Problem
from tuner.study.pipeline import Study
from tuner.study.ports import Tools
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Measurement, TrialState

ROUNDS_SHARE = 0.6
"""Of a final race's rounds, what a cross race has: most of its entrants are far apart."""
Winner = tuple[Problem, KernelConfig]
"""A config, and the problem that it is best on."""


class CrossRace(Study):
    """What `winners` of other Ms do at this one; every row is kept, as in any study."""

    def run_over(self, span: Span, winners: Iterable[Winner]) -> bool:
        """Whether the winners have raced here, now or before; False if no kernel could.

        Raises: DeviceError, DoesNotFit.
        """
        stored = stored_rows(self._problem, self._tools)
        self._rows = [row for row in stored if row.race is None]
        wanted = self._launches(winners)
        failed = {r.contender.config for r in self._rows if r.state is not TrialState.OK}
        if _crossed(stored, span, [config for config in wanted if config not in failed]):
            return True
        trusted = self._trusted()
        self._attempts = attempts = Attempts(self._tools.device, self._problem, trusted)
        known = {row.contender.config for row in self._rows}
        for config in wanted:
            if config not in known:
                compiled = self._tools.compiler.submit(config.variant).result()
                self._keep(self._attempt(attempts, config, compiled))
        kernels = self._kernels(wanted)
        if not kernels:
            return False
        rounds = self._budget.rounds_hot, self._budget.rounds_cool
        entrants: Sequence[Entrant] = [*kernels, CUBLAS]
        for protocol, full in zip((PROTOCOL_HOT, PROTOCOL_COOL), rounds, strict=True):
            fewer = max(round(full * ROUNDS_SHARE), 1)
            race_id = cross_race_id(span, uuid4().hex)
            raced = self._race(attempts, entrants, protocol, fewer, race_id=race_id)
            finished = {row.contender for row in raced}
            entrants = [entrant for entrant in entrants if entrant.contender in finished]
        return True

    def _launches(self, winners: Iterable[Winner]) -> list[KernelConfig]:
        """The winners as they won, and as a look-up would launch them here."""
        found: dict[KernelConfig, None] = {}
        for won_on, config in winners:
            for launch in (config, adapted(config, won_on, self._problem)):
                if launch and not faults(launch, self._problem):
                    found[launch] = None
        if self._tools.menu is not None:
            recorded = set(self._tools.menu.recorded_configs(self._problem))
            return [config for config in found if config in recorded]
        failed = {
            row.contender.config.variant
            for row in self._setbacks
            if row.contender.config and not row.contender.config.knobs.dependent_launch
        }
        return [config for config in found if config.variant not in failed]


def stored_rows(problem: Problem, tools: Tools) -> list[Measurement]:
    """All rows of a problem that this device and kernel left."""
    key, toolchain = tools.device.identify().key, tools.compiler.toolchain()
    rows = tools.repository.attempts(problem, key, sources=(tools.source,))
    return [row for row in rows if row.toolchain == toolchain]


def winners(problem: Problem, tools: Tools) -> list[KernelConfig]:
    """The best config by the problem's own races, and the best that is launched plainly.

    Cross races do not count, so that what was planned before them stays planned after them.
    """
    own = [race for race in _races(stored_rows(problem, tools)) if span_of(race.id) is None]
    answers = (choose(own), choose(own, plain=True))
    return list(dict.fromkeys(answer.config for answer in answers if answer))


def _crossed(stored: Iterable[Measurement], span: Span, configs: Sequence[KernelConfig]) -> bool:
    """Whether all configs were in the span's cross races, hot and cool."""
    races = [race for race in _races(stored) if span_of(race.id) == span]
    raced: dict[str, set[KernelConfig | None]] = {PROTOCOL_HOT: set(), PROTOCOL_COOL: set()}
    for race in races:
        raced[race.protocol] |= {row.contender.config for row in race.measurements}
    return bool(configs) and all(of_protocol.issuperset(configs) for of_protocol in raced.values())


def _races(rows: Iterable[Measurement]) -> list[Race]:
    counted = (PROTOCOL_HOT, PROTOCOL_COOL)
    return races_of(row for row in rows if row.race is not None and row.protocol in counted)
