"""Exit codes, and what each error ends in."""

from tuner.errors import CompileError, DeviceError, StoreError, TunerError

DONE = 0
"""Every shape has a config."""
BAD_INPUT = 2
"""Bad usage or input; nothing was started."""
PARTIAL = 3
"""Finished, and some shapes have no config."""
NO_DEVICE = 4
"""No usable device, or no usable compiler for it."""
NO_DATABASE = 5
"""The database cannot be used."""
INTERRUPTED = 130
"""Interrupted; finished work is kept."""


def exit_code(error: TunerError) -> int:
    """The code for an error that ends a command."""
    match error:
        case StoreError():
            return NO_DATABASE
        case DeviceError() | CompileError():
            return NO_DEVICE
        case _:
            return BAD_INPUT
