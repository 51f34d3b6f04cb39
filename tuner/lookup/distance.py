"""How far one problem is from another: the one rule of every look-up.

Extents are compared as they are, never rounded to a grid: the distance is the number of doublings
between them, summed over M, N, K and the SM budget. So M = 2001 is 0.03 from 2048, and 9 is 0.17
from 8. Rows that begin on lines of L2 and rows that do not are OFF_LINES apart: other clusters win
on them, however near K is. A column-major output is the row-major output of the exchanged product,
launched alike, so M and N change places before they are compared.
"""

from math import log2

from tuner.lookup.cost_model import rows_on_lines
from tuner.shape import Problem

Coordinates = tuple[float, float, float, float, float]
OFF_LINES = 2.0
"""Doublings; a guess. 1000 and 1024 cubed lose a fifth by each other's winner."""


def coordinates(problem: Problem) -> Coordinates:
    """Base-2 logarithms of the row-major product's extents and the SM budget; how rows lie."""
    shape = problem.shape
    m, n = (shape.m, shape.n) if problem.d == "row" else (shape.n, shape.m)
    off_lines = 0.0 if rows_on_lines(problem) else OFF_LINES
    return log2(m), log2(n), log2(shape.k), log2(problem.sms), off_lines


def distance(a: Problem, b: Problem) -> float:
    """Doublings from one to the other; 0 for problems that are launched alike."""
    return apart(coordinates(a), coordinates(b))


def apart(a: Coordinates, b: Coordinates) -> float:
    extents = abs(a[0] - b[0]) + abs(a[1] - b[1]) + abs(a[2] - b[2])
    return extents + abs(a[3] - b[3]) + abs(a[4] - b[4])
