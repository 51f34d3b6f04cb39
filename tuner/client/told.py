"""A snapshot as a program reads it: parsed once, and looked up in as the JSON it is."""

from __future__ import annotations

import json
import zlib

from tuner.device_key import key_parts
from tuner.entry import COMPILER, body_of, key_of, newest_compiler, on_terms

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tuner.entry import Entry, Key

FORMAT = "gemm-tuner-snapshot/2"
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31
"""zlib's window bits for gzip with its header and checksum."""
MOST_BYTES = 256 * 2**20
"""Of a snapshot, unpacked: what a client takes from a file or a server."""


class Unreadable(Exception):
    """Bytes that are no snapshot; a sentence."""


class Told:
    """One snapshot. checked: every config of it is known to be legal, so that looking is enough."""

    __slots__ = (
        *("_entries", "_format", "_newest"),
        *("body", "checked", "device_key", "device_name", "sms"),
    )

    def __init__(self, body: bytes, checked: bool) -> None:
        """Raises: Unreadable."""
        try:
            read = json.loads(body)
            self.device_key = str(read["device"]["key"])
            self.device_name = str(read["device"]["name"])
            self._entries: dict[Key, Entry] = {key_of(entry): entry for entry in read["entries"]}
            named = str(read["format"])
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Unreadable(f"it is no snapshot ({type(error).__name__}).") from None
        parts = key_parts(self.device_key)
        self.sms = parts[1] if parts else 0
        self.body = body
        self.checked = False
        self._newest: tuple[str, str] | None = None
        self._format = named
        if checked:
            self.mark_checked()

    def mark_checked(self) -> None:
        """Every answer can be read and has a legal config."""
        # An older format says some of it in fewer words, which only the full rules read.
        self.checked = self._format == FORMAT

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def keys(self) -> list[Key]:
        return list(self._entries)

    def answers(self) -> Iterator[Entry]:
        """Every answer that is written out: the best of each problem, and others on other terms.

        Raises: KeyError where one is named that is not there.
        """
        for entry in self._entries.values():
            yield entry
            for told in entry["under"].values():
                if isinstance(told, str):
                    told and entry["under"][told]["config"]
                else:
                    yield {**told, "under": {}}

    def exact(self, key: Key, label: str, kernel_hash: str | None) -> dict[str, Any] | None:
        """The body of the exact answer; None if there is none. For a checked one."""
        entry = self._entries.get(key)
        told = on_terms(entry, label) if entry is not None else None
        if told is None:
            return None
        return body_of(told, self.device_key, self.device_name, self._stale(told, kernel_hash))

    def _stale(self, told: Entry, kernel_hash: str | None) -> bool:
        if kernel_hash is None:
            return False
        current = kernel_hash, self.newest_compiler(kernel_hash)
        return (told["kernel_hash"], told["toolchain"].removeprefix(COMPILER)) != current

    def newest_compiler(self, kernel_hash: str) -> str:
        """The latest version of NVRTC that something was tuned with for a kernel."""
        if self._newest is None or self._newest[0] != kernel_hash:
            made_with = (
                (told["kernel_hash"], told["toolchain"].removeprefix(COMPILER))
                for told in self.answers()
            )
            self._newest = kernel_hash, newest_compiler(kernel_hash, made_with)
        return self._newest[1]


def unpacked(packed: bytes) -> bytes:
    """The body of a snapshot that is compressed with gzip, or not. Raises: Unreadable."""
    if not packed.startswith(GZIP_MAGIC):
        return packed
    inflate = zlib.decompressobj(GZIP)
    try:
        body = inflate.decompress(packed, MOST_BYTES)
    except zlib.error:
        raise Unreadable("its compressed bytes are damaged.") from None
    if not inflate.eof:
        raise Unreadable(f"its compressed bytes are cut off, or hold more than {MOST_BYTES} B.")
    return body


def packed(body: bytes) -> bytes:
    """Compressed with gzip, without a time in it."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, GZIP)
    return deflate.compress(body) + deflate.flush()


def id_of(body: bytes) -> str:
    from hashlib import sha256  # loads OpenSSL, which a warm cache needs not

    return sha256(body).hexdigest()
