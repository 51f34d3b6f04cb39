"""Database errors as sentences."""

from sqlalchemy.exc import DataError as UnfitValue
from sqlalchemy.exc import DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from tuner.errors import StoreError, StoreUnavailable

_KNOWN = (
    (
        ("database is locked", "database table is locked"),
        "is kept busy by another process; wait for it to finish and try again",
    ),
    (
        ("malformed", "not a database"),
        "is damaged; it was left as it is. Restore a copy, or name another file",
    ),
    (
        ("readonly", "read-only", "unable to open"),
        "cannot be opened for writing; check the permissions of the file and its folder",
    ),
    (("disk is full", "disk i/o"), "could not be written; check the disk's free space"),
    (
        ("password authentication", "no password"),
        "refused the user or password; correct TUNER_DATABASE_URL",
    ),
    (
        ("server closed the connection", "terminating connection", "shutting down", "starting up"),
        "was stopped or restarted; try again when it is back",
    ),
    (
        (
            *("connection refused", "could not translate", "failed to resolve"),
            *("timeout expired", "no such file or directory"),
        ),
        "does not answer; check that the server runs and that TUNER_DATABASE_URL is right",
    ),
)


def store_error(location: str, error: Exception) -> StoreError:
    """`error` as one sentence about the database at `location`.

    StoreUnavailable unless it is the statement or its values that the database refuses: those it
    will refuse again.
    """
    original = getattr(error, "orig", None)
    if isinstance(original, StoreError):
        return original
    refused = isinstance(error, IntegrityError | UnfitValue | ProgrammingError)
    passing = isinstance(error, DBAPIError | PoolTimeout) and not refused
    kind = StoreUnavailable if passing else StoreError
    said = " ".join(str(original or error).split())
    for signs, sentence in _KNOWN:
        if any(sign in said.lower() for sign in signs):
            return kind(f"the database {location} {sentence} ({said[:200]}).")
    return kind(
        f"the database {location} cannot be used: {said[:300]}. Run `tuner db check` on it."
    )
