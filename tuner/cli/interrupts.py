"""Ctrl-C, and signals that ask for the same."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

ASKS_TO_STOP = (signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise KeyboardInterrupt in the main thread, as Ctrl-C does."""
    before = {number: signal.signal(number, _interrupt) for number in ASKS_TO_STOP}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt
