"""Files that appear whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from tuner.errors import TunerError


class OutputError(TunerError):
    """A file that cannot be written; what stood there before is as it was."""


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A private path beside `target` to write to, which takes its place if nothing is raised.

    Raises: OutputError for a folder in the way, a folder that is missing or read-only, a full
    disk, and whatever else the system refuses.
    """
    if target.is_dir():
        raise OutputError(f"{target} is a folder; name a file in it.")
    if not target.parent.is_dir():
        raise OutputError(f"{target} cannot be written: its folder is not there. Make it first.")
    private = target.with_name(f".{target.name}.{os.getpid()}-{uuid4().hex[:8]}.part")
    try:
        yield private
        with private.open("rb") as written:
            os.fsync(written.fileno())
        private.replace(target)
    except OSError as error:
        raise cannot_write(target, error) from error
    finally:
        for left in target.parent.glob(f"{private.name}*"):
            with suppress(OSError):
                left.unlink()


def cannot_write(target: Path, error: OSError) -> OutputError:
    """The sentence for what the system said."""
    return OutputError(
        f"{target} cannot be written: {error.strerror or error}. What stood there before is as it "
        "was; free some space, or name a file in another folder."
    )
