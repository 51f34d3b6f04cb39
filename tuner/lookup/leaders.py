"""The few configs of a problem that are worth timing again."""

from collections.abc import Sequence

from tuner.lookup.choose import DEFAULT_PROTOCOLS, best_of, by_preference
from tuner.lookup.race import Candidate, Race, candidates


def leaders(races: Sequence[Race], count: int) -> list[Candidate]:
    """Up to `count` configs as `choose` ranks them: the winner, what ties with it, then by ratio.

    Of the kernel whose races `choose` would rest on; empty if no race has a config and cuBLAS.
    """
    for group in by_preference(races, None):
        for protocols in DEFAULT_PROTOCOLS:
            found = [c for c in candidates(group, protocols) if c.contender.config is not None]
            if not found:
                continue
            winner, ties = best_of(found)
            others = [c for c in found if c is not winner and c not in ties]
            others.sort(key=lambda c: (c.loses, -c.score, c.contender.config))
            return [winner, *ties, *others][:count]
    return []
