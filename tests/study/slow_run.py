"""A run over a fake device that is slow on its last shape, to be killed in a process of its own."""

import os
from multiprocessing.connection import Connection
from pathlib import Path

from tests.device.fake import FakeCompiler, FakeFactory, Faults
from tests.forks import write_to
from tuner.device.process import DeviceProcess
from tuner.search.space import menu
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.study import Budget, Event, Tools, run_all

SHAPES = [
    Problem(GemmShape(64, 2112, 7168), 132),
    Problem(GemmShape(64, 2048, 4096), 132),
    Problem(GemmShape(128, 512, 1024), 132),
]
BUDGET = Budget(trials=12, batch=4, finalists=3, rounds_hot=5, rounds_cool=5)


def run_slowly(url: str, told: Connection) -> None:
    """Tune SHAPES, and tell the name of every event."""
    write_to(Path(os.devnull), 2)  # where an interrupt leaves its traceback

    def tell(event: Event) -> None:
        told.send(type(event).__name__)

    slow = frozenset(config.variant for config in menu(SHAPES[2]))
    device = DeviceProcess(FakeFactory(Faults(slow=slow, slow_s=0.1)))
    with open_store(url) as store, device:
        run_all(SHAPES, Tools(device, FakeCompiler(), store, "run-1"), BUDGET, tell)
