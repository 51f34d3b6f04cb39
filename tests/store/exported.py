"""What the exported files of the fixtures hold."""

from tests.store.examples import DEVICE_KEY, PROBLEM
from tuner.store.repository import Repository
from tuner.trial import Measurement

COUNT = 12
"""Screenings in each of them."""


def stored(store: Repository) -> list[Measurement]:
    """The measured rows of the one problem they are of."""
    return store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])
