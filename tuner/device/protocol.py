"""What a device can be asked. `cuda` and `replay` answer; so does the fake in the tests."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tuner.config import KernelConfig
from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.trial import Contender, Cubin, Sampled


@dataclass(frozen=True, slots=True)
class Entrant:
    """A contender of a race, with the cubin it needs; libraries bring their own."""

    contender: Contender
    cubin: Cubin | None = None


CUBLAS = Entrant(Contender("cublas"))
BEST_ALGORITHM = Entrant(Contender("cublaslt"))
"""The fastest that cuBLASLt's heuristic offers, chosen under the protocol of the race."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Operands are on the device and the trusted config agrees with a higher-precision product."""

    operand_sets: int
    reference_error: float
    """Largest error of the trusted config, as a share of the allowed error; at most 1."""


class Device(Protocol):
    """One device. Calls are made one at a time, by one caller.

    A call that overruns raises DeviceTimeout and one that breaks the device raises DeviceCrashed;
    after either the device is fresh again, and `prepare` must be called before anything else.
    """

    def identify(self) -> DeviceIdentity:
        """Raises: DeviceError if there is no usable device."""
        ...

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        """Make operands for `problem`, replacing those of another.

        Raises: DoesNotFit, naming the bytes needed; DeviceError if the trusted config and the
        reference disagree.
        """
        ...

    def verify(self, entrant: Entrant) -> Sampled:
        """Prove one candidate on fresh data, its whole output; no samples, `ok` or the failure."""
        ...

    def screen(self, entrant: Entrant) -> Sampled:
        """Time one verified candidate quickly, under PROTOCOL_SCREEN."""
        ...

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        """Time all in shuffled rounds; sample i of each result was taken in round i.

        Baselines that the caller names run beside the kernels; a `cublaslt` contender without an
        algorithm stands for the fastest that the library's heuristic offers, and comes back with
        its attributes filled in.
        """
        ...

    def close(self) -> None:
        """Give the device back; further calls are errors."""
        ...


class Menu(Protocol):
    """A device that can only answer for some configs, as a recording can."""

    def recorded_configs(self, problem: Problem) -> Sequence[KernelConfig]:
        """Every config that can be asked about `problem`; empty if the shape is not recorded."""
        ...
