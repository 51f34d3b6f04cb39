"""What the service knows of its database at one moment; a look-up needs nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tuner.lookup.book import Book
from tuner.store.repository import StoredDevice
from tuner.trial import Toolchain


@dataclass(frozen=True)
class Published:
    """The generation that a device serves; `gzipped` is the body of its snapshot."""

    id: str
    gzipped: bytes


@dataclass(frozen=True)
class View:
    """Immutable; a newer one takes its place as a whole.

    whole: everything that is stored was read. devices, books, published: by device key. current:
    the toolchain that answers are judged by; None if they are not.
    """

    whole: bool = False
    devices: Mapping[str, StoredDevice] = field(default_factory=dict)
    books: Mapping[str, Book] = field(default_factory=dict)
    published: Mapping[str, Published] = field(default_factory=dict)
    current: Toolchain | None = None

    @cached_property
    def stored(self) -> tuple[StoredDevice, ...]:
        """Every device, by key."""
        return tuple(self.devices.values())
