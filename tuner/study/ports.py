"""What a study needs of the other stages, and nothing more."""

from collections.abc import Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from tuner.config import KernelVariant
from tuner.device.protocol import Device, Menu
from tuner.lookup.cost_model import Estimate, estimate_us
from tuner.search.knowledge import Stored
from tuner.shape import Problem
from tuner.trial import CompileFailure, Cubin, Measurement, ShapeOutcome, Source, Toolchain


class Compiler(Protocol):
    """Where cubins come from."""

    def toolchain(self) -> Toolchain: ...

    def submit(self, variant: KernelVariant) -> Future[Cubin | CompileFailure]: ...


class Rows(Stored, Protocol):
    """Where rows are kept."""

    def add(self, rows: Sequence[Measurement], /) -> None: ...

    def setbacks(
        self, device_key: str, toolchain: Toolchain, *, sources: Collection[str]
    ) -> list[Measurement]: ...

    def outcome(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> ShapeOutcome | None: ...

    def finish_shape(self, outcome: ShapeOutcome, /) -> None: ...


class Lease(Protocol):
    """The right to tune a problem, for as long as the context lasts."""

    def __enter__(self) -> object: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def is_held(self) -> bool:
        """False if another driver has it by now."""
        ...


class Leases(Protocol):
    """Keeps several drivers off one problem."""

    def claim(
        self, problem: Problem, device_key: str, toolchain: Toolchain, source: Source
    ) -> Lease | None:
        """None while another driver has it."""
        ...


@dataclass(frozen=True, slots=True)
class Tools:
    """What tuning needs. `menu`: where a device can only answer for some configs, as replay.

    leases: None where no other driver tunes the same list.
    estimate: the analytic model that a search starts from.
    """

    device: Device
    compiler: Compiler
    repository: Rows
    run_id: str
    source: Source = "measured"
    worker: str = ""
    menu: Menu | None = None
    leases: Leases | None = None
    estimate: Estimate = estimate_us
