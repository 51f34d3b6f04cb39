"""The console script `tuner`."""

import io
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code of `tuner.cli.exits`."""
    try:
        from tuner.cli.app import app
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("tuner"):
            raise
        sys.stderr.write(
            f"The command line needs the package {missing.name}, which is not installed. Install "
            "gemm-tuner[tune] (recorded measurements), gemm-tuner[worker] (a GPU) or "
            "gemm-tuner[api] (the service).\n"
        )
        return 2
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A sign that the terminal's encoding lacks must not end a run.
            stream.reconfigure(errors="backslashreplace")
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=typed, prog_name="tuner", obj=typed)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0
