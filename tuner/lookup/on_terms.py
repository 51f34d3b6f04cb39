"""Everything that may be asked of one problem, answered at once."""

from collections.abc import Mapping, Sequence

from tuner.lookup.answer import Answer
from tuner.lookup.choose import choose
from tuner.lookup.race import Race
from tuner.lookup.terms import ALL_TERMS, Terms
from tuner.trial import Toolchain


def answers_on_terms(
    races: Sequence[Race],
    current: Toolchain | None = None,
    current_driver: str | None = None,
) -> tuple[Answer, Mapping[str, Answer]] | None:
    """The best answer of one problem, and the best on other terms by label; see `choose`.

    None if the races show none. Terms that no raced config meets are left out.
    """
    configs = {
        config
        for race in races
        for row in race.measurements
        if (config := row.contender.config) is not None
    }
    all_plain = all(Terms(plain=True).admit(config) for config in configs)
    all_invariant = all(Terms(invariant=True).admit(config) for config in configs)
    found: dict[str, Answer] = {}
    for terms in ALL_TERMS:
        # What every config meets needs no search of its own.
        same = Terms(
            terms.protocol, terms.plain and not all_plain, terms.invariant and not all_invariant
        )
        if terms != same and same.label in found:
            found[terms.label] = found[same.label].promising(terms.numerics)
        elif terms == same and (
            answer := choose(
                races,
                terms.protocol,
                current,
                current_driver,
                plain=terms.plain,
                numerics=terms.numerics,
            )
        ):
            found[terms.label] = answer
    best = found.pop("", None)
    return (best, found) if best else None
