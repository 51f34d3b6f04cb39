"""Every error a user can meet.

    TunerError
    ├── InvalidShape        a size outside 1..2^31-1
    ├── InvalidConfig       a kernel configuration no sm_90 device can run
    ├── InvalidSetting      an environment variable that is not understood
    ├── NoTunedConfig       a client in strict mode, without what it was told to use
    ├── ShapeFileError      a shape file that is not understood: file:line: reason
    ├── CompileError        NVRTC refused the source, or the result is unfit (spills, C75xx)
    ├── DoesNotFit          a shape whose operands exceed the device's memory
    ├── DeviceError         no usable device, or it died
    │   ├── DeviceTimeout   no answer before the deadline; the process was killed
    │   ├── DeviceCrashed   the device process died or reported a sticky CUDA error
    │   │   └── DeviceKilled    somebody else killed it; the candidate is not to blame
    │   └── DeviceUnavailable   it cannot be opened: nothing can be measured
    └── StoreError          the database cannot be used; it was left untouched
        └── StoreUnavailable    it cannot be used now: it is busy, restarting or full

A message is a sentence: subject, limit, what to do next.
"""


class TunerError(Exception):
    """Base of every error that is reported as one sentence."""


class InvalidShape(TunerError):
    """A GEMM shape outside the supported range."""


class InvalidConfig(TunerError):
    """A kernel configuration that breaks a rule in `tuner.legality`."""


class InvalidSetting(TunerError):
    """A setting of the environment that is not understood."""


class NoTunedConfig(TunerError):
    """A client in strict mode has no config for a shape, or cannot use its source."""


class ShapeFileError(TunerError):
    """A shape file that cannot be read or understood."""


class CompileError(TunerError):
    """NVRTC refused the source."""


class DoesNotFit(TunerError):
    """A shape needs more memory than the device has; the message says how much."""


class DeviceError(TunerError):
    """No usable device, or the device failed."""


class DeviceTimeout(DeviceError):
    """The device process gave no answer before its deadline and was killed."""


class DeviceCrashed(DeviceError):
    """The device process died, or its CUDA context is no longer usable."""


class DeviceKilled(DeviceCrashed):
    """The device process was killed from outside; what it was doing deserves another try."""


class DeviceUnavailable(DeviceError):
    """The device cannot be opened, so that nothing more can be measured."""


class StoreError(TunerError):
    """The database cannot be used."""


class StoreUnavailable(StoreError):
    """The database cannot be used at the moment; the same call may succeed later."""
