"""Finds the tuned problems nearest to one that is asked for, however many there are."""

from collections.abc import Iterable
from functools import cache
from heapq import nsmallest
from math import ceil

from tuner.lookup.distance import Coordinates, apart, coordinates
from tuner.shape import Problem

REACH = 6.0
"""Doublings beyond which a tuned shape teaches nothing; see `tuner.lookup.distance`."""
CELL = 0.5
"""Doublings across a cell, along each of M, N and K."""
SLACK = 3
"""Two points whose cells are r steps apart, summed over the three axes, are more than r - 3 cells
apart."""
FEW = 500
"""Problems that are compared one by one in less time than it takes to visit the cells."""
MOST_SHELLS = ceil(REACH / CELL) + SLACK
Cell = tuple[int, int, int]


class Neighbours:
    """Problems of one dtype, layout and epilogue, sorted into cells."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self._cells: dict[Cell, list[tuple[Coordinates, Problem]]] = {}
        self._size = 0
        for problem in problems:
            point = coordinates(problem)
            self._cells.setdefault(_cell(point), []).append((point, problem))
            self._size += 1

    def changed(self, gone: Iterable[Problem], come: Iterable[Problem]) -> "Neighbours":
        """These without some problems and with others; cells that do not change are shared."""
        after = Neighbours(())
        after._cells = dict(self._cells)
        for problem in gone:
            cell = _cell(coordinates(problem))
            after._cells[cell] = [one for one in after._cells[cell] if one[1] != problem]
        for problem in come:
            point = coordinates(problem)
            cell = _cell(point)
            after._cells[cell] = [*after._cells.get(cell, ()), (point, problem)]
        after._size = sum(map(len, after._cells.values()))
        return after

    def within(self, problem: Problem, reach: float, count: int) -> list[tuple[float, Problem]]:
        """Up to `count` problems at most `reach` <= REACH away, the nearest first.

        Equals keep a fixed order.
        """
        point = coordinates(problem)
        found = self._all(point, reach) if self._size <= FEW else self._around(point, reach, count)
        if len(found) > count:
            # Problems are slow to compare: only those that equal distances leave undecided.
            last = nsmallest(count, [away for away, _ in found])[-1]
            found = [near for near in found if near[0] <= last]
        return sorted(found)[:count]

    def _all(self, point: Coordinates, reach: float) -> list[tuple[float, Problem]]:
        distances = (
            (apart(point, other), tuned) for cell in self._cells.values() for other, tuned in cell
        )
        return [near for near in distances if near[0] <= reach]

    def _around(self, point: Coordinates, reach: float, count: int) -> list[tuple[float, Problem]]:
        """The `count` nearest at least, cell by cell from the inside out."""
        m, n, k = _cell(point)
        found: list[tuple[float, Problem]] = []
        for radius in range(MOST_SHELLS):
            certain = (radius - SLACK) * CELL  # nothing that near is in this shell or beyond it
            if certain >= reach or (
                len(found) >= count and sum(away <= certain for away, _ in found) >= count
            ):
                break
            for dm, dn, dk in _shell(radius):
                cell = self._cells.get((m + dm, n + dn, k + dk))
                if cell:
                    distances = ((apart(point, other), tuned) for other, tuned in cell)
                    found += [near for near in distances if near[0] <= reach]
        return found


def _cell(point: Coordinates) -> Cell:
    return int(point[0] // CELL), int(point[1] // CELL), int(point[2] // CELL)


@cache
def _shell(radius: int) -> tuple[Cell, ...]:
    """Every cell that is `radius` steps away."""
    return tuple(
        (m, n, k)
        for m in range(-radius, radius + 1)
        for n in range(abs(m) - radius, radius - abs(m) + 1)
        for k in {radius - abs(m) - abs(n), abs(m) + abs(n) - radius}
    )
