"""Where rows come from: one problem, one device, one kernel, one run."""

from dataclasses import dataclass

from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.trial import Measurement, Sampled, ShapeOutcome, ShapeState, Source, Toolchain


@dataclass(frozen=True, slots=True)
class Origin:
    """What all rows of one study have in common."""

    problem: Problem
    device: DeviceIdentity
    toolchain: Toolchain
    source: Source = "measured"
    run_id: str = ""
    worker: str = ""

    def row(self, sampled: Sampled, protocol: str, race: str | None = None) -> Measurement:
        """What the device reported, as a row."""
        return Measurement(
            self.problem,
            self.device.key,
            self.device.name,
            protocol,
            sampled.contender,
            self.toolchain,
            sampled.state,
            sampled.samples_us,
            sampled.detail,
            sampled.conditions,
            self.source,
            self.run_id,
            race,
            self.worker,
        )

    def outcome(self, state: ShapeState, detail: str) -> ShapeOutcome:
        """How the study ended; what it took is for the caller to fill in."""
        return ShapeOutcome(
            self.problem,
            self.device.key,
            self.device.name,
            self.toolchain,
            state,
            detail,
            source=self.source,
            run_id=self.run_id,
        )
