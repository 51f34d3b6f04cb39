"""When a search has seen enough, though its budget would last.

It stops by budget (`Budget.trials`, `Budget.seconds_per_shape`), when nothing is left to propose,
and on a plateau: when as many trials as its patience allows have found nothing faster.
"""

from math import inf

PLATEAU_GAIN = 0.005
"""How much faster a config must be to end a plateau: no less than what look-ups call a tie."""


class Plateau:
    """Trials since the last that was clearly faster than all before it.

    patience: how many such trials end a search; None: no number does.
    """

    def __init__(self, patience: int | None) -> None:
        self._patience = patience
        self._best_us = inf
        self._since = 0

    @property
    def is_reached(self) -> bool:
        return self._patience is not None and self._since >= self._patience

    def observe(self, us: float | None) -> None:
        """A trial took so long; us: None for one that failed."""
        if us is not None and us < self._best_us * (1 - PLATEAU_GAIN):
            self._best_us, self._since = us, 0
        else:
            self._since += 1

    def begin_anew(self) -> None:
        """Be patient again: the search goes on among other configs."""
        self._since = 0
