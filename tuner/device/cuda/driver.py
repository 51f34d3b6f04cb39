"""The CUDA driver API with its return codes checked, and cubins as launchable functions."""

from pathlib import Path
from typing import Any

from cuda.bindings import driver

from tuner.errors import DeviceCrashed, DeviceError
from tuner.trial import Cubin

ENTRY = b"gemm_sm90"


def check(result: tuple[Any, ...]) -> Any:
    """Unpack a driver call.

    Raises: DeviceError when memory ran out, which leaves the context usable; DeviceCrashed for
    anything else, because most errors of a launch stay with the context for good.
    """
    error, *values = result
    if error == driver.CUresult.CUDA_SUCCESS:
        return values[0] if len(values) == 1 else tuple(values)
    if error == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise DeviceError("the GPU ran out of memory.")
    raise DeviceCrashed(f"CUDA reported {error.name}.")


class Functions:
    """Loaded cubins of one context, one function for each variant."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def load(self, cubin: Cubin) -> Any:
        """The kernel of `cubin`, allowed the shared memory its variant needs.

        Raises: DeviceError if its file cannot be read any more, which is not the kernel's fault.
        """
        if cubin.path not in self._loaded:
            try:
                image = Path(cubin.path).read_bytes()
            except OSError as error:
                raise DeviceError(
                    f"the compiled kernel {cubin.path} cannot be read ({error.strerror}); let "
                    "nothing empty the cache while a run uses it, and run again."
                ) from error
            module = check(driver.cuModuleLoadData(image))
            function = check(driver.cuModuleGetFunction(module, ENTRY))
            attribute = driver.CUfunction_attribute
            check(
                driver.cuFuncSetAttribute(
                    function,
                    attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    cubin.variant.smem_bytes,
                )
            )
            self._loaded[cubin.path] = function
        return self._loaded[cubin.path]
