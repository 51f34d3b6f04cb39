"""The fewest sets that together hold everything: a greedy cover, then an exact search.

Sets are integers, one bit for each thing. The exact search asks for ever larger covers, so that
when its time is up it has proved how many are needed at least.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cover:
    """chosen: places in the list of sets. at_least: no cover is smaller; equal if it was proved."""

    chosen: tuple[int, ...]
    at_least: int
    greedy: int

    @property
    def proved(self) -> bool:
        return len(self.chosen) == self.at_least


def smallest_cover(
    sets: Sequence[int], seconds: float = 20.0, clock: Callable[[], float] = time.monotonic
) -> Cover:
    """The smallest cover of the union of `sets` that was found within `seconds`.

    Of equals the earlier set is preferred, so a list in order of preference stays meaningful.
    """
    places = _useful(sets)
    useful = [sets[place] for place in places]
    greedy = _greedy(useful)
    search = _Search(useful, clock() + seconds, clock)
    chosen, at_least = greedy, search.lower_bound(search.universe)
    while at_least < len(chosen):
        try:
            smaller = search.within(search.universe, at_least)
        except _OutOfTime:
            break
        if smaller is not None:
            chosen = smaller
            break
        at_least += 1
    return Cover(tuple(sorted(places[i] for i in chosen)), at_least, len(greedy))


def _useful(sets: Sequence[int]) -> list[int]:
    """Places of the sets that no other contains; the earliest of equals."""
    first: dict[int, int] = {}
    for place, members in enumerate(sets):
        first.setdefault(members, place)
    by_size = sorted(first, key=lambda members: (-members.bit_count(), first[members]))
    kept: list[int] = []
    for members in by_size:
        if members and not any(members & ~other == 0 for other in kept):
            kept.append(members)
    return sorted(first[members] for members in kept)


def _greedy(sets: Sequence[int]) -> list[int]:
    left = _union(sets)
    chosen = []
    while left:
        best = max(range(len(sets)), key=lambda i: ((sets[i] & left).bit_count(), -i))
        chosen.append(best)
        left &= ~sets[best]
    return chosen


class _OutOfTime(Exception):
    pass


class _Search:
    """Depth-first over the sets that hold whatever the fewest sets hold."""

    def __init__(self, sets: Sequence[int], deadline: float, clock: Callable[[], float]) -> None:
        self.universe = _union(sets)
        self._sets, self._deadline, self._clock = sets, deadline, clock
        self._holders = {
            bit: [i for i, members in enumerate(sets) if members >> bit & 1]
            for bit in range(self.universe.bit_length())
            if self.universe >> bit & 1
        }
        # Things that share a set with a thing, itself among them.
        self._near = {bit: _union([sets[i] for i in of]) for bit, of in self._holders.items()}
        self._rare = sorted(self._holders, key=lambda bit: (len(self._holders[bit]), bit))
        self._hopeless: dict[int, int] = {}  # what is left -> sets that were not enough for it

    def lower_bound(self, left: int) -> int:
        """Things of `left` no two of which share a set: each needs a set of its own."""
        alone = 0
        for bit in self._rare:
            if left >> bit & 1:
                alone += 1
                left &= ~self._near[bit]
        return alone

    def within(self, left: int, limit: int) -> list[int] | None:
        """A cover of `left` with at most `limit` sets, or None. Raises: _OutOfTime."""
        if not left:
            return []
        if self._clock() > self._deadline:
            raise _OutOfTime
        if self._hopeless.get(left, -1) >= limit or self.lower_bound(left) > limit:
            return None
        rarest = next(bit for bit in self._rare if left >> bit & 1)
        holders = self._holders[rarest]
        for i in sorted(holders, key=lambda i: (-(self._sets[i] & left).bit_count(), i)):
            found = self.within(left & ~self._sets[i], limit - 1)
            if found is not None:
                return [i, *found]
        self._hopeless[left] = limit
        return None


def _union(sets: Sequence[int]) -> int:
    union = 0
    for members in sets:
        union |= members
    return union
