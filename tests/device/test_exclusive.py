"""A GPU is locked before it is touched, and whoever else computes there is told of."""

from pathlib import Path

import pytest

from tests.device.fake import H200, FakeDevice, FakeFactory
from tuner.cli.devices import Cuda
from tuner.cli.opening import opened, stored_key
from tuner.device.cuda import exclusive as module
from tuner.device.cuda.exclusive import exclusive
from tuner.device.lock import device_lock
from tuner.device.process import DeviceProcess
from tuner.errors import DeviceError, DeviceUnavailable

HELD = "is in use by the tuner process"


def open_fake(index: int) -> FakeDevice:
    """What a child opens as `cuda:0`."""
    assert index == 0
    return FakeFactory()()


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """`cuda:0` is a fake, its locks are the test's, and these processes use it."""
    pids: list[int] = []
    monkeypatch.setattr(module, "cuda_device", lambda _: H200)
    monkeypatch.setattr(module, "other_processes", lambda _: pids)
    monkeypatch.setattr(module, "open_cuda", open_fake)
    monkeypatch.setattr("tuner.device.lock.lock_folder", lambda: tmp_path)
    return pids


def test_a_gpu_is_held_for_as_long_as_it_is_open(others: list[int]) -> None:
    assert others == []
    warnings: list[str] = []
    with exclusive(0, warnings.append) as device:
        assert device.identify() == H200
        with pytest.raises(DeviceUnavailable, match=HELD), device_lock(H200.uuid):
            pass
    with device_lock(H200.uuid):
        assert warnings == []


@pytest.mark.usefixtures("others")
def test_a_held_gpu_is_not_even_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> DeviceProcess:
        raise AssertionError("the GPU was opened")

    monkeypatch.setattr(module, "DeviceProcess", never)
    with (
        device_lock(H200.uuid),
        pytest.raises(DeviceUnavailable, match=HELD),
        exclusive(0, print),
    ):
        pass


@pytest.mark.usefixtures("others")
def test_two_runs_with_different_caches_exclude_each_other(tmp_path: Path) -> None:
    with (
        opened(Cuda(0), tmp_path / "one"),
        pytest.raises(DeviceUnavailable, match=HELD),
        opened(Cuda(0), tmp_path / "two"),
    ):
        pass


def test_other_processes_on_the_gpu_are_named_in_a_warning(
    others: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    others += [4711, 4712]
    with opened(Cuda(0), tmp_path):
        told = capsys.readouterr().err
    assert told.startswith("Warning: other processes use NVIDIA H200 GPU-fake (4711, 4712)")


@pytest.mark.usefixtures("others")
def test_the_key_of_a_gpu_is_known_while_it_is_measured_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tuner.cli.opening.cuda_device", lambda _: H200)
    with device_lock(H200.uuid):
        assert stored_key("cuda:0") == "sm90-132sm-141gb"


def test_a_gpu_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: int) -> None:
        raise DeviceError("there is no GPU 7; this machine has 1.")

    monkeypatch.setattr(module, "cuda_device", absent)
    with pytest.raises(DeviceError, match="there is no GPU 7"), exclusive(7, print):
        pass
