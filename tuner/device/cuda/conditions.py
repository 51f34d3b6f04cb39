"""The state of the card around a measurement, read through NVML."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from statistics import median
from typing import Any

import pynvml

from tuner.trial import Conditions


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the card; None for what this card or driver does not tell."""

    sm_clock_mhz: int | None
    power_w: float | None
    temperature_c: int | None
    throttle_reasons: int | None


class Monitor:
    """NVML on one GPU, found by its place on the bus: CUDA and NVML number GPUs differently, and
    CUDA_VISIBLE_DEVICES renumbers them for CUDA alone."""

    def __init__(self, pci_bus_id: str) -> None:
        pynvml.nvmlInit()
        self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
        self.driver: str = pynvml.nvmlSystemGetDriverVersion()
        self.uuid: str = pynvml.nvmlDeviceGetUUID(self._handle)

    def memory_bytes(self) -> int:
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).total)

    def read(self) -> Reading:
        h = self._handle
        milliwatts = told(pynvml.nvmlDeviceGetPowerUsage, h)
        return Reading(
            sm_clock_mhz=told(pynvml.nvmlDeviceGetClockInfo, h, pynvml.NVML_CLOCK_SM),
            power_w=None if milliwatts is None else milliwatts / 1000,
            temperature_c=told(pynvml.nvmlDeviceGetTemperature, h, pynvml.NVML_TEMPERATURE_GPU),
            throttle_reasons=told(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, h),
        )


def told(query: Callable[..., int], *arguments: Any) -> int | None:
    """What NVML answers, or None if it does not support the question."""
    try:
        return query(*arguments)
    except pynvml.NVMLError:
        return None


def summarize(readings: Sequence[Reading], driver: str, cublas: str, uuid: str) -> Conditions:
    """Medians over a measurement's readings; throttle reasons are everything that was seen."""
    clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz is not None]
    powers = [r.power_w for r in readings if r.power_w is not None]
    temperatures = [r.temperature_c for r in readings if r.temperature_c is not None]
    reasons = [r.throttle_reasons for r in readings if r.throttle_reasons is not None]
    return Conditions(
        driver=driver,
        cublas_version=cublas,
        gpu_uuid=uuid,
        sm_clock_mhz=round(median(clocks)) if clocks else None,
        power_w=round(median(powers), 1) if powers else None,
        temperature_c=round(median(temperatures)) if temperatures else None,
        throttle_reasons=reduce(or_, reasons) if reasons else None,
    )
