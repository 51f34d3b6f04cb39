"""Waiting for a database that is busy, restarting or full."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

from tuner.errors import StoreUnavailable

FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 5.0

T = TypeVar("T")
Say = Callable[[str], None]


def at_once(call: Callable[[], T]) -> T:
    """Make the call once, without patience."""
    return call()


class Backoff:
    """When to try again: at once, then after pauses that double up to a longest."""

    def __init__(self) -> None:
        self._pause_s = FIRST_PAUSE_S
        self._next_try = 0.0

    @property
    def due_in_s(self) -> float:
        """How long to wait before the next try."""
        return max(0.0, self._next_try - monotonic())

    def failed(self, took_s: float = 0.0) -> None:
        """Wait before the next try, and at least as long as this one took."""
        self._next_try = monotonic() + max(self._pause_s, took_s)
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


class Patience:
    """Makes calls again while the database cannot be used, for as long as `seconds`."""

    def __init__(self, seconds: float, say: Say) -> None:
        self._seconds, self._say = seconds, say

    def __call__(self, call: Callable[[], T]) -> T:
        """What `call` returns. Raises: what it raised last, once the time is over."""
        give_up_at = monotonic() + self._seconds
        backoff, told = Backoff(), False
        while True:
            try:
                return call()
            except StoreUnavailable as error:
                backoff.failed()
                if monotonic() + backoff.due_in_s > give_up_at:
                    raise
                if not told:
                    self._say(f"{error} Waiting for it, at most {self._seconds:.0f} s.")
                    told = True
                sleep(backoff.due_in_s)
