"""A compiler in its own process, with a deadline, that may crash without harm."""

import os
import signal
import subprocess
import sys
import tempfile
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from tuner.compiler.nvrtc import Compilation
from tuner.compiler.source import TranslationUnit
from tuner.errors import CompileError

START_SECONDS = 120.0
"""Far above the second that a start takes, for a machine under heavy load."""


class CompilerTooSlow(Exception):
    """The deadline passed; the process was killed."""


class CompilerDied(Exception):
    """The process ended while it compiled; the message says how."""


class CompilerFailed(Exception):
    """The compiler failed for another reason than the source; its process lives on."""


class CompilerProcess:
    """One compiler process, started on first use and again after it was killed or died.

    A fresh interpreter runs `tuner.compiler.worker`, never a copy of the caller's main module, so
    a script without an import guard can use it. Compile from one thread, which must outlive the
    process: the operating system kills the process when that thread ends.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Connection | None = None
        self._complaints: IO[bytes] | None = None
        self._interrupted = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    def start(self) -> Connection:
        """Make sure of a process that is ready, and return the way to it.

        Raises: CompileError if none can be started; CompilerDied if it was interrupted.
        """
        if self._process and self._process.poll() is not None:
            self.kill()
        return self._requests or self._launch()

    def compile(self, unit: TranslationUnit, timeout_s: float) -> Compilation:
        """Compile one source, for at most `timeout_s` after the process is ready.

        Raises: CompilerTooSlow, CompilerDied or CompilerFailed for this source alone;
        CompileError if no compiler can be started.
        """
        requests = self.start()
        try:
            requests.send((unit.main, dict(unit.headers)))
            answer = requests.recv() if requests.poll(timeout_s) else None
        except (EOFError, OSError) as error:
            reason = self._how_it_ended()
            self.kill()
            raise CompilerDied(reason) from error
        if answer is None:
            self.kill()
            raise CompilerTooSlow
        if isinstance(answer, Compilation):
            return answer
        name, message = answer
        raise CompilerFailed(f"{name}: {message}")

    def interrupt(self) -> None:
        """Kill the process for good, from any thread: a compile in it raises CompilerDied."""
        self._interrupted = True
        if process := self._process:
            process.kill()

    def kill(self) -> None:
        """End the process, if there is one, and free what belongs to it."""
        if self._process:
            self._process.kill()
            self._process.wait()
        for resource in (self._requests, self._complaints):
            if resource:
                resource.close()
        self._process = self._requests = self._complaints = None

    def _launch(self) -> Connection:
        self._requests, theirs = Pipe()
        self._complaints = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        with theirs:
            descriptor = theirs.fileno()
            # -P: a module in the working directory must not shadow one of ours.
            command = [sys.executable, "-P", "-m", "tuner.compiler.worker"]
            self._process = subprocess.Popen(
                [*command, str(descriptor), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._complaints,
                pass_fds=[descriptor],
                # This package is found wherever the caller found it.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _search_path()))},
            )
        if self._interrupted:
            self._process.kill()
        try:
            if self._requests.poll(START_SECONDS) and self._requests.recv():
                return self._requests
            reason = f"it was not ready within {START_SECONDS:g} s"
        except (EOFError, OSError):
            reason = self._how_it_ended()
        self.kill()
        if self._interrupted:
            raise CompilerDied(reason)
        raise CompileError(f"no compiler process could be started: {reason}. Run: tuner doctor.")

    def _how_it_ended(self) -> str:
        assert self._process
        assert self._complaints
        code = self._process.wait()  # its end of the connection is closed: it is ending
        if code < 0:
            return f"it was killed by {signal.Signals(-code).name}"
        self._complaints.seek(0)
        said = self._complaints.read().decode(errors="replace").strip().splitlines()
        return f"it exited with code {code}" + (f" ({said[-1].rstrip('.')})" if said else "")


def _search_path() -> list[Path]:
    return [Path(entry) if entry else Path.cwd() for entry in sys.path]
