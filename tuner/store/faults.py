"""Database errors as sentences."""

from tuner.errors import StoreError

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
        ("connection refused", "could not translate", "failed to resolve", "timeout expired"),
        "does not answer; check that the server runs and that TUNER_DATABASE_URL is right",
    ),
)


def store_error(location: str, error: Exception) -> StoreError:
    """`error` as one sentence about the database at `location`."""
    original = getattr(error, "orig", None)
    if isinstance(original, StoreError):
        return original
    said = " ".join(str(original or error).split())
    for signs, sentence in _KNOWN:
        if any(sign in said.lower() for sign in signs):
            return StoreError(f"the database {location} {sentence} ({said[:200]}).")
    return StoreError(
        f"the database {location} cannot be used: {said[:300]}. Run `tuner db check` on it."
    )
