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
NEWEST = "newest_compilers"
"""In the first line of a kept snapshot, by kernel."""
GZIP_MAGIC = b"\x1f\x8b"
GZIP = 31
"""zlib's window bits for gzip with its header and checksum."""
MOST_BYTES = 128 * 2**20
"""Of a snapshot, unpacked: what a client takes from a file or a server."""


class Unreadable(Exception):
    """Bytes that are no snapshot; a sentence."""


class Told:
    """One snapshot. checked: every config of it is known to be legal, so that looking is enough.

    Of one from the cache only the line of a problem that is asked for is parsed.
    """

    __slots__ = (
        *("_body", "_entries", "_head", "_lines", "_newest"),
        *("checked", "device_key", "device_name", "sms"),
    )

    def __init__(self, body: bytes, checked: bool) -> None:
        """Raises: Unreadable."""
        try:
            read = json.loads(body)
            entries = {key_of(entry): entry for entry in read.pop("entries")}
            self._fill(read, entries, body, b"", checked)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Unreadable(f"it is no snapshot ({type(error).__name__}).") from None

    @classmethod
    def from_lines(cls, lines: bytes, checked: bool) -> Told:
        """What `lines` made. Raises: Unreadable."""
        told = cls.__new__(cls)
        try:
            head = json.loads(lines[: lines.index(b"\n")])
            told._fill(head, None, None, lines, checked)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise Unreadable(f"it is no kept snapshot ({type(error).__name__}).") from None
        return told

    def _fill(
        self,
        head: dict[str, Any],
        entries: dict[Key, Entry] | None,
        body: bytes | None,
        lines: bytes,
        checked: bool,
    ) -> None:
        self._head, self._entries, self._body, self._lines = head, entries, body, lines
        self.device_key = str(head["device"]["key"])
        self.device_name = str(head["device"]["name"])
        parts = key_parts(self.device_key)
        self.sms = parts[1] if parts else 0
        self._newest: dict[str, str] = dict(head.pop(NEWEST, {}))
        self.checked = False
        if checked:
            self.mark_checked()
        str(head["format"])

    def mark_checked(self) -> None:
        """Every answer can be read and has a legal config."""
        # An older format says some of it in fewer words, which only the full rules read.
        self.checked = self._head["format"] == FORMAT

    @property
    def keys(self) -> list[Key]:
        """Every problem that is told of."""
        return list(self._parsed())

    @property
    def body(self) -> bytes:
        """The bytes that the id of the generation is the hash of."""
        if self._body is None:
            whole = {**self._head, "entries": list(self._parsed().values())}
            self._body = _canonical(whole).encode()
        return self._body

    def lines(self) -> bytes:
        """The same with a line for each problem, that begins with its key."""
        hashes = {told["kernel_hash"] for told in self.answers()}
        newest = {kernel_hash: self.newest_compiler(kernel_hash) for kernel_hash in hashes}
        told = [_canonical({**self._head, NEWEST: newest})]
        told += [f"{_line(key)}{_canonical(entry)}" for key, entry in self._parsed().items()]
        return "\n".join([*told, ""]).encode()

    def answers(self) -> Iterator[Entry]:
        """Every answer that is written out: the best of each problem, and others on other terms.

        Raises: KeyError where one is named that is not there.
        """
        for entry in self._parsed().values():
            yield entry
            for told in entry["under"].values():
                if isinstance(told, str):
                    told and entry["under"][told]["config"]
                else:
                    yield {**told, "under": {}}

    def answer(self, key: Key, label: str) -> Entry | None:
        """What was measured for a problem, on the terms of a label; None if nothing was.

        Raises: KeyError, TypeError or AttributeError for an entry of another form.
        """
        entry = self._entry(key)
        return on_terms(entry, label) if entry is not None else None

    def exact(self, key: Key, label: str, kernel_hash: str | None) -> dict[str, Any] | None:
        """The body of the exact answer; None if there is none. For a checked one."""
        told = self.answer(key, label)
        if told is None:
            return None
        return body_of(told, self.device_key, self.device_name, self._stale(told, kernel_hash))

    def newest_compiler(self, kernel_hash: str) -> str:
        """The latest version of NVRTC that something was tuned with for a kernel."""
        if kernel_hash not in self._newest:
            if self._entries is None:
                return ""  # the head tells of all
            made_with = (
                (told["kernel_hash"], told["toolchain"].removeprefix(COMPILER))
                for told in self.answers()
            )
            self._newest[kernel_hash] = newest_compiler(kernel_hash, made_with)
        return self._newest[kernel_hash]

    def _entry(self, key: Key) -> Entry | None:
        if self._entries is not None:
            return self._entries.get(key)
        start = _line(key).encode()
        at = self._lines.find(b"\n" + start)
        if at < 0:
            return None
        at += 1 + len(start)
        entry: Entry = json.loads(self._lines[at : self._lines.index(b"\n", at)])
        return entry

    def _parsed(self) -> dict[Key, Entry]:
        if self._entries is None:
            rows = (line.partition(b"\t")[2] for line in self._lines.split(b"\n")[1:-1])
            found = (json.loads(row) for row in rows)
            self._entries = {key_of(entry): entry for entry in found}
        return self._entries

    def _stale(self, told: Entry, kernel_hash: str | None) -> bool:
        if kernel_hash is None:
            return False
        current = kernel_hash, self.newest_compiler(kernel_hash)
        return (told["kernel_hash"], told["toolchain"].removeprefix(COMPILER)) != current


def _line(key: Key) -> str:
    """How the line of a problem begins; JSON, in which there are no line ends and no tabs."""
    return f"{_canonical(key)}\t"


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


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
