"""`cuda:N` is CUDA's number, whatever NVML's order is and whatever is hidden from CUDA."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.device.cuda import enumerate as module
from tuner.device.cuda.enumerate import cuda_device, cuda_devices, other_processes
from tuner.errors import DeviceError

BUS_IDS = ["0000:17:00.0", "0000:AB:00.0"]
"""In NVML's order. CUDA shows the second alone, as CUDA_VISIBLE_DEVICES=1 has it."""


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_DEVICE = 101


class Driver:
    """The few calls of `cuda.bindings.driver` that make no context, and their forms of answer."""

    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=16, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=38
    )

    def cuDeviceGetCount(self) -> tuple[Status, int]:
        return Status.CUDA_SUCCESS, 1

    def cuDeviceGet(self, index: int) -> tuple[Status, str]:
        return Status.CUDA_SUCCESS, BUS_IDS[1 + index]

    def cuDeviceGetAttribute(self, attribute: int, device: str) -> tuple[Status, int]:
        assert device == BUS_IDS[1]
        return Status.CUDA_SUCCESS, {16: 132, 38: 60 * 2**20}[attribute]

    def cuDeviceGetPCIBusId(self, length: int, device: str) -> tuple[Status, bytes]:
        return Status.CUDA_SUCCESS, device.encode().ljust(length, b"\0")


class Nvml:
    """The few calls of `pynvml`; a handle is the GPU's place in NVML's order."""

    def nvmlDeviceGetCount(self) -> int:
        return len(BUS_IDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByPciBusId(self, bus_id: str) -> int:
        return BUS_IDS.index(bus_id)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))

    def nvmlDeviceGetName(self, handle: int) -> str:
        return f"NVIDIA H200 number {handle}"

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> list[int]:  # noqa: ARG002
        return [9, 0]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:  # noqa: ARG002
        return SimpleNamespace(total=143_771 * 2**20)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95"

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in {0: [], 1: [9, 7, 5]}[handle]]


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def nvml() -> Iterator[Nvml]:
        yield Nvml()

    monkeypatch.setattr(module, "_nvml", nvml)
    monkeypatch.setattr(module, "_cuda_driver", Driver)


def test_the_first_gpu_of_cuda_may_be_the_second_of_nvml() -> None:
    found = cuda_device(0)
    assert (found.uuid, found.name) == ("GPU-1", "NVIDIA H200 number 1")
    assert found.key == "sm90-132sm-141gb"
    assert (found.l2_bytes, found.driver) == (60 * 2**20, "580.95")
    assert [listed.uuid for listed in cuda_devices()] == ["GPU-0", "GPU-1"]


def test_a_gpu_that_cuda_does_not_show_is_refused() -> None:
    with pytest.raises(DeviceError, match=r"there is no GPU 1; CUDA shows 1\."):
        cuda_device(1)


def test_a_refusal_of_the_driver_names_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = (Status.CUDA_ERROR_INVALID_DEVICE, None)
    monkeypatch.setattr(Driver, "cuDeviceGet", lambda *_: refusal)
    with pytest.raises(DeviceError, match="CUDA_ERROR_INVALID_DEVICE"):
        cuda_device(0)


def test_other_processes_on_a_gpu_are_all_but_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 7)
    assert other_processes("GPU-1") == [5, 9]
    assert other_processes("GPU-0") == []


def test_a_driver_that_tells_of_no_processes_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses() -> None:
        raise DeviceError("the NVIDIA driver does not tell.")

    monkeypatch.setattr(module, "_nvml", refuses)
    assert other_processes("GPU-1") == []


def test_a_gpu_that_no_machine_has_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(DeviceError) as caught:
        cuda_device(10_000)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)
