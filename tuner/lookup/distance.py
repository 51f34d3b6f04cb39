"""How far one problem is from another: the one rule of every look-up.

Extents are compared as they are, never rounded to a grid: the distance is the number of doublings
between them, summed over M, N, K and the SM budget. So M = 2001 is 0.03 from 2048, and 9 is 0.17
from 8. A column-major output is the row-major output of the exchanged product, launched alike, so
M and N change places before they are compared.
"""

from math import log2

from tuner.shape import Problem

Coordinates = tuple[float, float, float, float]


def coordinates(problem: Problem) -> Coordinates:
    """Logarithms to base 2 of the extents of the row-major product, and of the SM budget."""
    shape = problem.shape
    m, n = (shape.m, shape.n) if problem.d == "row" else (shape.n, shape.m)
    return log2(m), log2(n), log2(shape.k), log2(problem.sms)


def distance(a: Problem, b: Problem) -> float:
    """Doublings from one to the other; 0 for problems that are launched alike."""
    return apart(coordinates(a), coordinates(b))


def apart(a: Coordinates, b: Coordinates) -> float:
    return abs(a[0] - b[0]) + abs(a[1] - b[1]) + abs(a[2] - b[2]) + abs(a[3] - b[3])
