"""A process that only compiles: whatever it is doing, it may be killed.

Run by `tuner.compiler.process` as `python -m tuner.compiler.worker DESCRIPTOR PARENT`. Its first
message says that it is ready; then each `(main, headers)` is answered by a `Compilation`, or by
the class and the message of what went wrong.
"""

import contextlib
import ctypes
import os
import signal
import sys
from multiprocessing.connection import Connection

from tuner.compiler.nvrtc import compile_unit, nvrtc_version
from tuner.compiler.source import TranslationUnit

READY = "ready"
_PR_SET_PDEATHSIG = 1


def serve(requests: Connection) -> None:
    """Answer until the other end is gone."""
    nvrtc_version()  # loads the library, so that no compile's deadline pays for it
    with contextlib.suppress(EOFError, OSError):
        requests.send(READY)
        while True:
            main, headers = requests.recv()
            try:
                requests.send(compile_unit(TranslationUnit(main, headers)))
            except Exception as error:  # one variant's failure, whatever it is
                requests.send((type(error).__name__, str(error)))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        sys.exit(0)


def main() -> None:
    # An interrupt reaches the whole process group; what to do about it is the parent's choice.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    serve(Connection(descriptor))


if __name__ == "__main__":
    main()
