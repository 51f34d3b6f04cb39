"""Problems whose tuning is quick, and what the tests ask of the rows it leaves."""

from collections.abc import Iterable
from dataclasses import replace

from tests.device.fake import FakeCompiler, FakeDevice
from tests.study.doubles import MemoryRows
from tuner.config import KernelVariant
from tuner.device.protocol import Device
from tuner.search.sampler import Searcher
from tuner.search.space import menu
from tuner.shape import GemmShape, Problem
from tuner.study import Budget, Tools, tune
from tuner.trial import PROTOCOL_SCREEN, Measurement

# Skinny shapes: their menus are short, so the tests are quick.
PROBLEM = Problem(GemmShape(64, 2112, 7168), 132)
OTHER = Problem(GemmShape(64, 2048, 4096), 132)
THIRD = Problem(GemmShape(32, 2112, 7168), 132)
SQUARE = Problem(GemmShape(1024, 1024, 1024), 132)
SMALL = Budget(trials=24, batch=8, finalists=4, rounds_hot=5, rounds_cool=3)
FIRST = Searcher(PROBLEM, menu(PROBLEM)).ask(1)[0].variant


def tools(
    device: Device, rows: MemoryRows | None = None, compiler: FakeCompiler | None = None
) -> Tools:
    return Tools(device, compiler or FakeCompiler(), rows or MemoryRows(), run_id="run-1")


def first_variants(count: int) -> list[KernelVariant]:
    """What a search of PROBLEM measures first."""
    rows = MemoryRows()
    tune(PROBLEM, tools(FakeDevice(), rows), replace(SMALL, trials=2 * count))
    return list(dict.fromkeys(v for row in rows.rows if (v := variant(row))))[:count]


def variant(row: Measurement) -> KernelVariant | None:
    return row.contender.config.variant if row.contender.config else None


def screened(rows: Iterable[Measurement]) -> list[Measurement]:
    return [row for row in rows if row.protocol == PROTOCOL_SCREEN]
