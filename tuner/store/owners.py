"""Who holds a lease: a process, named so that others can tell whether it still lives."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Owner:
    """A process on a machine. `place` tells machines and containers of one host name apart."""

    host: str
    place: str
    pid: int
    nonce: str

    @classmethod
    def this_process(cls) -> "Owner":
        """A new name for this process; no two calls give the same."""
        return cls(socket.gethostname(), _place(), os.getpid(), uuid4().hex[:8])

    @classmethod
    def parse(cls, text: str) -> "Owner | None":
        """What `str` wrote; None for anything else."""
        parts = text.rsplit("/", 3)
        if len(parts) != 4 or not parts[2].isascii() or not parts[2].isdecimal():
            return None
        return cls(parts[0], parts[1], int(parts[2]), parts[3])

    def __str__(self) -> str:
        return f"{self.host}/{self.place}/{self.pid}/{self.nonce}"

    def is_known_dead(self) -> bool:
        """Its process ran here and is gone. Of another machine's nothing is known: False."""
        if (self.host, self.place) != (socket.gethostname(), _place()):
            return False
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:
            return False
        return _is_zombie(self.pid)


def _is_zombie(pid: int) -> bool:
    """It ended, and its parent did not ask how yet. proc(5): the state follows the name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:1] == ["Z"]
    except (OSError, ValueError):
        return False


def _place() -> str:
    """This boot of this kernel, and the numbering of processes in it; empty where unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot[:8]}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""
