"""Loading compiled kernels; what fails before the driver is asked needs no GPU."""

from pathlib import Path

import pytest

from tuner.config import KernelVariant
from tuner.device.cuda.driver import Functions
from tuner.errors import DeviceError
from tuner.trial import Cubin


def test_a_cubin_that_vanished_is_not_the_kernels_fault_and_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "gone.cubin"
    cubin = Cubin(KernelVariant(128, 128, 4), str(gone), 168, 0, 0.5, cached=True)
    with pytest.raises(DeviceError, match="cannot be read") as caught:
        Functions().load(cubin)
    assert type(caught.value) is DeviceError
    assert str(gone) in str(caught.value)
    assert "No such file or directory" in str(caught.value)
