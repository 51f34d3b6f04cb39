"""A driver with a fake device, started as a process by the tests: URL, seconds of a lease."""

import json
import sys
import time
from pathlib import Path

from tests.device.fake import FakeCompiler, FakeDevice
from tuner.device.protocol import Entrant
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.leases import Leases
from tuner.store.spooling import SpoolingRepository
from tuner.study import Budget, Event, Tools, run_all
from tuner.trial import Sampled

SHAPES = [Problem(GemmShape(m, 512, 1024), 132) for m in (16, 32, 64, 128)]
BUDGET = Budget(trials=6, batch=2, finalists=2, rounds_hot=3, rounds_cool=3)


class SlowDevice(FakeDevice):
    def screen(self, entrant: Entrant) -> Sampled:
        time.sleep(0.05)
        return super().screen(entrant)


def drive(url: str, seconds: float, name: str) -> None:
    """Tune SHAPES and print every event, the outcomes as JSON."""

    def tell(event: Event) -> None:
        print(type(event).__name__, getattr(event, "text", ""), flush=True)

    with (
        open_store(url) as store,
        SpoolingRepository(store, Path(f"{name}.spool"), print) as spooling,
    ):
        leases = Leases(store, seconds=seconds, patiently=spooling.patiently)
        tools = Tools(SlowDevice(), FakeCompiler(), spooling, name, leases=leases)
        outcomes = run_all(SHAPES, tools, BUDGET, tell)
    print(json.dumps([[o.run_id, o.state, o.trials] for o in outcomes]))


if __name__ == "__main__":
    drive(sys.argv[1], float(sys.argv[2]), sys.argv[3])
