"""`tuner` with a slow fake GPU as cuda:0, for tests that interrupt it from outside."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.device.fake import FakeCompiler, FakeDevice
from tuner.cli import opening
from tuner.cli.main import main
from tuner.device.protocol import Entrant
from tuner.trial import Sampled


class SlowDevice(FakeDevice):
    """A tenth of a second for every candidate, except of the smallest shape."""

    def screen(self, entrant: Entrant) -> Sampled:
        if self._problem is not None and self._problem.shape.m > 512:
            time.sleep(0.1)
        return super().screen(entrant)


@contextmanager
def opened(*_: object) -> Iterator[opening.Opened]:
    yield opening.Opened(SlowDevice(), FakeCompiler(), "measured")


if __name__ == "__main__":
    opening.opened = opened  # type: ignore[assignment]
    sys.exit(main())
