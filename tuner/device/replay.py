"""A recorded device: real measurements, played through the same search, store and service.

A recording holds, for each shape, a screen of every config, one hot and one cool race of them all
against the libraries, and the configs that failed. All contenders of a race were sampled in the
same rounds, so that any of them, in any number, are a valid race again.
"""

import gzip
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from importlib.resources import files
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.config import KernelConfig, KernelVariant
from tuner.device.protocol import Entrant, Prepared
from tuner.errors import DeviceError, DeviceUnavailable
from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    CompileFailure,
    Contender,
    Cubin,
    Measurement,
    Sampled,
    Toolchain,
    TrialState,
)
from tuner.trial_json import InvalidRow, read_lines

COMPILE_STATES = frozenset({TrialState.COMPILE_REFUSED, TrialState.COMPILE_TIMEOUT})


class Recording:
    """Recorded rows of one device and one kernel, looked up by what was asked.

    Raises: DeviceUnavailable, naming the file, for rows that do not belong together.
    """

    def __init__(self, name: str, device: DeviceIdentity, rows: Sequence[Measurement]) -> None:
        toolchains = {row.toolchain for row in rows}
        if len(toolchains) != 1:
            raise DeviceUnavailable(
                f"the recording {name} holds rows of {len(toolchains)} kernels; one is needed."
            )
        if strangers := {row.device_key for row in rows} - {device.key}:
            raise DeviceUnavailable(
                f"the recording {name} is of {device.key} but has rows of {sorted(strangers)}."
            )
        self.name = name
        self.device = device
        (self.toolchain,) = toolchains
        self._of_problem: dict[Problem, list[Measurement]] = {}
        for row in rows:
            self._of_problem.setdefault(row.problem, []).append(row)

    @classmethod
    def load(cls, source: Path | str) -> Self:
        """A file, or the name of one that is shipped with the package.

        Raises: DeviceUnavailable if there is none, or it is damaged.
        """
        name = str(source)
        try:
            data = _packaged(name) if isinstance(source, str) else source.read_bytes()
            text = gzip.decompress(data).decode("utf-8")
            device, rows = read_lines(text.splitlines(), name)
        except (OSError, EOFError, ValueError, zlib.error, InvalidRow) as error:
            raise DeviceUnavailable(f"the recording {name} cannot be read: {error}") from error
        if device is None:
            raise DeviceUnavailable(f"the recording {name} does not say what device it is of.")
        return cls(name, device, rows)

    def problems(self) -> list[Problem]:
        return sorted(self._of_problem)

    def rows(self, problem: Problem) -> Sequence[Measurement]:
        return self._of_problem.get(problem, ())

    def variants(self) -> dict[KernelVariant, Measurement]:
        """Every recorded variant with one of its rows, a failed compile before any other."""
        found: dict[KernelVariant, Measurement] = {}
        for row in (row for rows in self._of_problem.values() for row in rows):
            config = row.contender.config
            if config and (config.variant not in found or row.state in COMPILE_STATES):
                found[config.variant] = row
        return found

    def race(self, problem: Problem, protocol: str) -> list[Measurement]:
        """The rows of the largest race, the latest among equals; empty if none was recorded."""
        races: dict[str, list[Measurement]] = {}
        for row in self.rows(problem):
            if row.protocol == protocol and row.race is not None:
                races.setdefault(row.race, []).append(row)
        return max(reversed(races.values()), key=len, default=[])


class ReplayDevice:
    """Implements `Device` and `Menu` from a recording.

    recording: one that is loaded, its file, or the name of one that is shipped.
    realtime: take as long as the recorded samples did; otherwise answers come at once.
    """

    def __init__(
        self,
        recording: Recording | Path | str,
        realtime: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        loaded = recording if isinstance(recording, Recording) else Recording.load(recording)
        self.recording = loaded
        self._sleep = sleep if realtime else None
        self._problem: Problem | None = None

    def identify(self) -> DeviceIdentity:
        return self.recording.device

    def recorded_configs(self, problem: Problem) -> Sequence[KernelConfig]:
        """Configs that a study can take to the end: raced both ways, or failed on the way."""
        raced = [
            {row.contender.config for row in self.recording.race(problem, protocol)}
            for protocol in (PROTOCOL_HOT, PROTOCOL_COOL)
        ]
        found: dict[KernelConfig, None] = {}
        for row in self.recording.rows(problem):
            config = row.contender.config
            if config is None or row.race is not None:
                continue
            if row.state is not TrialState.OK or all(config in race for race in raced):
                found[config] = None
        return list(found)

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:  # noqa: ARG002
        """Nothing is allocated and nothing is compared: the recorder did both."""
        if not self.recording.rows(problem):
            raise DeviceError(f"the recording {self.recording.name} has no {problem.shape}.")
        self._problem = problem
        return Prepared(operand_sets=0, reference_error=0.0)

    def verify(self, entrant: Entrant) -> Sampled:
        row = self._screened(entrant.contender)
        if row.state is TrialState.OK:
            return Sampled(entrant.contender, TrialState.OK, conditions=row.conditions)
        return _sampled(row)

    def screen(self, entrant: Entrant) -> Sampled:
        return self._played([self._screened(entrant.contender)])[0]

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        """The recorded samples of the first `rounds` rounds, or of as many as there are."""
        recorded = self.recording.race(self._require_problem(), protocol)
        rows = [self._raced(e.contender, recorded, protocol) for e in entrants]
        found = [row for row in rows if isinstance(row, Measurement)]
        played = iter(self._played(found, rounds))
        return [next(played) if isinstance(row, Measurement) else row for row in rows]

    def close(self) -> None:
        self._problem = None

    def _screened(self, contender: Contender) -> Measurement:
        for row in self.recording.rows(self._require_problem()):
            if row.contender == contender and row.race is None:
                return row
        raise DeviceError(f"the recording has no screening of {contender.config}.")

    def _raced(
        self, contender: Contender, recorded: Iterable[Measurement], protocol: str
    ) -> Measurement | Sampled:
        unnamed = contender.name == "cublaslt" and contender.algorithm is None
        rows = [
            row
            for row in recorded
            if row.contender == contender or (unnamed and row.contender.name == "cublaslt")
        ]
        if not rows:
            detail = f"the recorded {protocol} race did not have it."
            return Sampled(contender, TrialState.UNSTABLE, detail=detail)
        return min(rows, key=lambda row: row.median_us or float("inf"))

    def _played(self, rows: Sequence[Measurement], rounds: int | None = None) -> list[Sampled]:
        sampled = [_sampled(row, rounds) for row in rows]
        if self._sleep is not None:
            self._sleep(sum(sum(s.samples_us) for s in sampled) / 1e6)
        return sampled

    def _require_problem(self) -> Problem:
        if self._problem is None:
            raise DeviceError("the replay device has no problem; prepare one first.")
        return self._problem


class RecordedCompiler:
    """The toolchain and compile outcomes of what `device` plays; compiles nothing."""

    def __init__(self, device: ReplayDevice) -> None:
        self._recording = device.recording
        self._variants = device.recording.variants()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def toolchain(self) -> Toolchain:
        return self._recording.toolchain

    def submit(self, variant: KernelVariant) -> Future[Cubin | CompileFailure]:
        """Done at once: the recorded failure, or a cubin without bytes, never to be loaded."""
        future: Future[Cubin | CompileFailure] = Future()
        row = self._variants.get(variant)
        if row is not None and row.state in COMPILE_STATES:
            future.set_result(CompileFailure(variant, row.state, row.detail))
        else:
            future.set_result(Cubin(variant, "", 0, 0, 0.0, cached=True))
        return future

    def close(self) -> None:
        """Nothing to end."""


def packaged_recordings() -> list[str]:
    """Names of the recordings that are shipped."""
    folder = files("tuner") / "recordings"
    if not folder.is_dir():
        return []
    return sorted(
        entry.name.removesuffix(".jsonl.gz")
        for entry in folder.iterdir()
        if entry.name.endswith(".jsonl.gz")
    )


def _packaged(name: str) -> bytes:
    names = packaged_recordings()
    if name not in names:
        raise DeviceUnavailable(
            f"there is no recording named {name!r}; shipped are: {', '.join(names) or 'none'}."
        )
    return (files("tuner") / "recordings" / f"{name}.jsonl.gz").read_bytes()


def _sampled(row: Measurement, rounds: int | None = None) -> Sampled:
    samples = row.samples_us[:rounds]
    return Sampled(row.contender, row.state, samples, row.detail, row.conditions)
