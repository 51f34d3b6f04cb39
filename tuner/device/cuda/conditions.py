"""The state of the card around a measurement, read through NVML."""

from dataclasses import dataclass
from statistics import median

import pynvml

from tuner.trial import Conditions


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the card."""

    sm_clock_mhz: int
    power_w: float
    temperature_c: int
    throttle_reasons: int


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

    def max_sm_clock_mhz(self) -> int:
        return int(pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM))

    def other_processes(self, own_pid: int) -> list[int]:
        """Processes that compute on the GPU besides this one."""
        running = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        return [p.pid for p in running if p.pid != own_pid]

    def read(self) -> Reading:
        h = self._handle
        return Reading(
            sm_clock_mhz=pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
            power_w=pynvml.nvmlDeviceGetPowerUsage(h) / 1000,
            temperature_c=pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
            throttle_reasons=pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(h),
        )


def summarize(readings: list[Reading], driver: str, cublas: str, uuid: str) -> Conditions:
    """Medians over a measurement's readings; throttle reasons are everything that was seen."""
    reasons = 0
    for reading in readings:
        reasons |= reading.throttle_reasons
    if not readings:
        return Conditions(driver, cublas, uuid)
    return Conditions(
        driver=driver,
        cublas_version=cublas,
        gpu_uuid=uuid,
        sm_clock_mhz=round(median(r.sm_clock_mhz for r in readings)),
        power_w=round(median(r.power_w for r in readings), 1),
        temperature_c=round(median(r.temperature_c for r in readings)),
        throttle_reasons=reasons,
    )
