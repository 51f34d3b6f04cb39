"""A device in a process of its own, so that no kernel can hang or poison the driver.

The parent keeps the deadline of every call. A child that overruns it, dies, or reports a broken
context is killed, and the next call starts a fresh one; the CUDA context goes with the process,
which is the only way to be rid of a hung kernel or a sticky error.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, Literal, Self

from tuner import errors
from tuner.device.deadlines import Deadlines
from tuner.device.protocol import Device, Entrant, Prepared
from tuner.errors import (
    DeviceCrashed,
    DeviceError,
    DeviceKilled,
    DeviceTimeout,
    DeviceUnavailable,
    TunerError,
)
from tuner.hardware import DeviceIdentity
from tuner.shape import Problem
from tuner.trial import Sampled

DeviceFactory = Callable[[], Device]
Method = Literal["identify", "prepare", "verify", "screen", "race"]

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal this process gets when its parent dies."""
START_ATTEMPTS = 3
"""How often a child is started anew because somebody killed it while it started."""
DEATH_WAIT_S = 15.0
"""How long a killed child may take to disappear; a driver can hold it for a moment."""


class DeviceProcess:
    """Implements `Device` by asking one in a child process, started on the first call.

    factory: picklable, opens the device in the child; a DeviceError it raises becomes
    DeviceUnavailable here. Calls come from one thread, which must live as long as this object:
    Linux ties a child to the thread that started it.
    """

    def __init__(self, factory: DeviceFactory, deadlines: Deadlines | None = None) -> None:
        self._factory = factory
        self._deadlines = deadlines or Deadlines()
        self._child: BaseProcess | None = None
        self._pipe: Connection[Any, Any] | None = None
        self._identity: DeviceIdentity | None = None
        self._problem: Problem | None = None
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def pid(self) -> int | None:
        """The child's process id, or None while there is no child."""
        return self._child.pid if self._child else None

    def identify(self) -> DeviceIdentity:
        """Raises: DeviceUnavailable if the device cannot be opened."""
        if self._identity is None:
            self._identity = self._call("identify", self._deadlines.identify)
        return self._identity

    def prepare(self, problem: Problem, trusted: Entrant) -> Prepared:
        self._problem = problem
        deadline_s = self._deadlines.to_prepare(problem)
        prepared: Prepared = self._call("prepare", deadline_s, problem, trusted)
        return prepared

    def verify(self, entrant: Entrant) -> Sampled:
        deadline_s = self._deadlines.to_verify(self._require_problem())
        verified: Sampled = self._call("verify", deadline_s, entrant)
        return verified

    def screen(self, entrant: Entrant) -> Sampled:
        deadline_s = self._deadlines.to_screen(self._require_problem())
        screened: Sampled = self._call("screen", deadline_s, entrant)
        return screened

    def race(self, entrants: Sequence[Entrant], protocol: str, rounds: int) -> list[Sampled]:
        problem = self._require_problem()
        deadline_s = self._deadlines.to_race(problem, len(entrants), rounds)
        raced: list[Sampled] = self._call("race", deadline_s, list(entrants), protocol, rounds)
        return raced

    def close(self) -> None:
        """Ask the child to leave, and kill it if it does not."""
        self._closed = True
        child, pipe = self._child, self._pipe
        if child is not None and pipe is not None:
            try:
                pipe.send(None)
                child.join(5.0)
            except OSError:
                pass  # it is gone already
        self._discard()

    def _require_problem(self) -> Problem:
        """The problem that was last to be prepared, which says how long launches may take."""
        if self._problem is None:
            raise DeviceError("no problem was prepared; prepare one first.")
        return self._problem

    def _call(self, method: Method, deadline_s: float, *arguments: object) -> Any:
        if self._closed:
            raise DeviceUnavailable("this device was closed; open it again to measure more.")
        pipe = self._connect(fresh=method in ("identify", "prepare"))
        try:
            pipe.send((method, arguments))
        except OSError as error:
            raise self._buried(f"before {method}") from error
        return self._answer(pipe, method, deadline_s)

    def _answer(self, pipe: "Connection[Any, Any]", what: str, deadline_s: float) -> Any:
        """The child's answer to what it was last asked.

        Raises: what the child raised, or what became of the child; then no child is left.
        """
        try:
            if not pipe.poll(deadline_s):
                self._discard()
                raise DeviceTimeout(
                    f"{what} gave no answer within {round(deadline_s, 2):g} s; the device process "
                    "was killed."
                )
            outcome, *rest = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._buried(f"during {what}") from error
        except BaseException:
            # An interrupted call leaves an answer nobody waits for: do not read it later.
            self._discard()
            raise
        if outcome == "ok":
            return rest[0]
        kind, message = rest
        failure = _error_type(kind)
        if failure is None:
            self._discard()
            raise DeviceCrashed(f"{what} raised {kind}: {message}")
        if issubclass(failure, DeviceTimeout | DeviceCrashed | DeviceUnavailable):
            self._discard()
        raise failure(message)

    def _connect(self, fresh: bool) -> "Connection[Any, Any]":
        """The pipe to a living child. `fresh`: one without operands will do."""
        if self._child is not None and not self._child.is_alive():
            death = self._buried("between two calls")
            if not fresh:
                raise death
        if self._child is not None and self._pipe is not None:
            return self._pipe
        for attempts_left in reversed(range(START_ATTEMPTS)):
            try:
                return self._start()
            except DeviceKilled:
                if not attempts_left:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _start(self) -> "Connection[Any, Any]":
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_serve, args=(theirs, os.getpid(), self._factory), name="device", daemon=True
        )
        self._child, self._pipe = child, ours
        child.start()
        theirs.close()
        try:
            self._answer(ours, "opening the device", self._deadlines.start)
        except (DeviceKilled, DeviceUnavailable):
            raise
        except TunerError as error:
            self._discard()
            raise DeviceUnavailable(str(error)) from error
        return ours

    def _buried(self, when: str) -> DeviceCrashed:
        """Clear away a child that died by itself, and say how it did."""
        child = self._child
        assert child is not None
        child.join(DEATH_WAIT_S)
        code = child.exitcode
        self._discard()
        if code == -signal.SIGKILL:
            return DeviceKilled(f"the device process was killed from outside {when}.")
        how = f"with exit status {code}" if code is None or code >= 0 else _signal_name(-code)
        return DeviceCrashed(f"the device process died {how} {when}.")

    def _discard(self) -> None:
        child, pipe = self._child, self._pipe
        self._child = self._pipe = None
        if pipe is not None:
            pipe.close()
        if child is None or child.pid is None:
            return
        child.kill()
        child.join(DEATH_WAIT_S)
        if child.is_alive():
            raise DeviceUnavailable(
                f"the device process {child.pid} outlives SIGKILL by {DEATH_WAIT_S:g} s; "
                "the driver holds it. Wait for it to end, or reset the device, and run again."
            )
        child.close()


def _signal_name(number: int) -> str:
    try:
        return f"of {signal.Signals(number).name}"
    except ValueError:
        return f"of signal {number}"


def _error_type(name: str) -> type[TunerError] | None:
    found = getattr(errors, name, None)
    return found if isinstance(found, type) and issubclass(found, TunerError) else None


def _serve(pipe: "Connection[Any, Any]", parent: int, factory: DeviceFactory) -> None:
    """The child: open the device, then answer until told to leave or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _die_with(parent)
    try:
        device = factory()
    except Exception as error:
        pipe.send(("error", *_described(error)))
        return
    pipe.send(("ok", None))
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            return
        if request is None:
            device.close()
            return
        method, arguments = request
        try:
            pipe.send(("ok", getattr(device, method)(*arguments)))
        except Exception as error:
            pipe.send(("error", *_described(error)))


def _described(error: Exception) -> tuple[str, str]:
    """Class and message. Whatever allocates on the device says MemoryError when it is full."""
    if isinstance(error, MemoryError):
        return DeviceError.__name__, f"the device ran out of memory: {error}"
    return type(error).__name__, str(error)


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was made
        os.kill(os.getpid(), signal.SIGKILL)
