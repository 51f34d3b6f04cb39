"""A driver with a fake device, to be run as a process of its own."""

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tests.device.fake import FakeCompiler, FakeDevice
from tests.forks import write_to
from tuner.device.protocol import Entrant
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.leases import Leases
from tuner.store.spooling import SpoolingRepository
from tuner.study import Budget, Event, Tools, run_all
from tuner.study import run as study_run
from tuner.trial import Sampled, ShapeOutcome

SHAPES = [Problem(GemmShape(m, 512, 1024), 132) for m in (16, 32, 64, 128)]
BUDGET = Budget(trials=6, batch=2, finalists=2, rounds_hot=3, rounds_cool=3)


class SlowDevice(FakeDevice):
    def screen(self, entrant: Entrant) -> Sampled:
        time.sleep(0.05)
        return super().screen(entrant)


def drive(url: str, seconds: float, name: str, told: Connection) -> None:
    """Tune SHAPES with leases of `seconds`, and tell every event and, at last, the outcomes."""
    write_to(Path(f"{name}.stderr"), 2)
    study_run.WAIT_S = 0.05

    def tell(event: Event) -> None:
        told.send(f"{type(event).__name__} {getattr(event, 'text', '')}")

    said: Callable[[str], None] = told.send
    with (
        open_store(url) as store,
        SpoolingRepository(store, Path(f"{name}.spool"), said) as spooling,
    ):
        leases = Leases(store, seconds=seconds, patiently=spooling.patiently)
        tools = Tools(SlowDevice(), FakeCompiler(), spooling, name, leases=leases)
        outcomes: list[ShapeOutcome] = run_all(SHAPES, tools, BUDGET, tell)
    told.send([(Path(o.run_id).name, o.state, o.trials) for o in outcomes])
