"""What a device process survives; the fake stands in for a GPU, the processes are real."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device.fake import H200, BrokenFactory, FakeFactory, Faults
from tuner.device.deadlines import Deadlines
from tuner.device.process import DeviceProcess
from tuner.device.protocol import Entrant
from tuner.errors import (
    DeviceCrashed,
    DeviceError,
    DeviceKilled,
    DeviceTimeout,
    DeviceUnavailable,
    DoesNotFit,
)
from tuner.search.space import menu, trusted_config
from tuner.shape import GemmShape, Problem
from tuner.trial import Contender, Cubin, TrialState

PROBLEM = Problem(GemmShape(512, 512, 512), 132)
CONFIGS = menu(PROBLEM)
QUICK = Deadlines(verify=0.5, screen=0.5)


def entrant(index: int) -> Entrant:
    config = CONFIGS[index]
    return Entrant(Contender("kernel", config), Cubin(config.variant, "", 168, 0, 0.0, True))


TRUSTED = Entrant(Contender("kernel", trusted_config(PROBLEM)))
BAD = frozenset({CONFIGS[0].variant})
GOOD = next(i for i, c in enumerate(CONFIGS) if c.variant not in BAD)


def opened(faults: Faults, deadlines: Deadlines = QUICK) -> DeviceProcess:
    device = DeviceProcess(FakeFactory(faults), deadlines)
    device.prepare(PROBLEM, TRUSTED)
    return device


@pytest.fixture(scope="module")
def sound() -> Iterator[DeviceProcess]:
    with DeviceProcess(FakeFactory()) as device:
        yield device


def test_a_device_in_a_process_answers_like_the_device_itself(sound: DeviceProcess) -> None:
    assert sound.identify() == H200
    assert sound.prepare(PROBLEM, TRUSTED).operand_sets == 3
    assert sound.verify(entrant(GOOD)).state is TrialState.OK
    assert len(sound.screen(entrant(GOOD)).samples_us) == 3
    raced = sound.race([entrant(0), Entrant(Contender("cublaslt"))], "graph-coldl2-hot/1", 5)
    assert [len(s.samples_us) for s in raced] == [5, 5]
    assert raced[1].contender.algorithm == "tile=128x256 stages=4"
    assert sound.pid != os.getpid()


def test_a_hung_kernel_is_killed_at_its_deadline_and_work_goes_on() -> None:
    with opened(Faults(hang=BAD)) as device:
        hung = device.pid
        began = time.monotonic()
        with pytest.raises(DeviceTimeout, match=r"verify gave no answer within 0\.5 s"):
            device.verify(entrant(0))
        assert hung is not None
        assert not Path(f"/proc/{hung}").exists()
        device.prepare(PROBLEM, TRUSTED)
        assert device.verify(entrant(GOOD)).state is TrialState.OK
        assert time.monotonic() - began < 30
        assert device.pid != hung


def test_a_shape_whose_launches_take_long_has_a_longer_deadline() -> None:
    large = Problem(GemmShape(32768, 32768, 262144), 132)
    with DeviceProcess(FakeFactory(Faults(slow=BAD)), Deadlines(screen=0.01)) as device:
        device.prepare(large, TRUSTED)
        assert len(device.screen(entrant(0)).samples_us) == 3
        device.prepare(PROBLEM, TRUSTED)
        with pytest.raises(DeviceTimeout, match=r"screen gave no answer within 0\.0\d* s"):
            device.screen(entrant(0))


def test_nothing_can_be_asked_before_a_problem_is_prepared() -> None:
    with (
        DeviceProcess(FakeFactory()) as device,
        pytest.raises(DeviceError, match="prepare one first"),
    ):
        device.verify(entrant(GOOD))


@pytest.mark.parametrize(
    ("faults", "message"),
    [
        (Faults(segfault=BAD), r"died of SIGSEGV during verify"),
        (Faults(sticky=BAD), r"illegal address"),
        (Faults(raises=BAD), r"verify raised KeyError: 'launcher lost its table'"),
    ],
    ids=["signal", "sticky error", "unexpected exception"],
)
def test_a_candidate_that_breaks_the_context_costs_the_process_and_nothing_else(
    faults: Faults, message: str
) -> None:
    with opened(faults) as device:
        broken = device.pid
        with pytest.raises(DeviceCrashed, match=message):
            device.verify(entrant(0))
        device.prepare(PROBLEM, TRUSTED)
        assert device.pid != broken
        assert device.verify(entrant(GOOD)).state is TrialState.OK


def test_a_kill_from_outside_during_a_call_is_told_apart_from_a_crash() -> None:
    with opened(Faults(hang=BAD), Deadlines(verify=30)) as device:
        pid = device.pid
        assert pid is not None
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(DeviceKilled, match="killed from outside during verify"):
            device.verify(entrant(0))


def test_a_kill_from_outside_between_calls_is_reported_before_operands_are_missed() -> None:
    with opened(Faults()) as device:
        pid = device.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(DeviceKilled, match="killed from outside"):
            device.verify(entrant(GOOD))
        device.prepare(PROBLEM, TRUSTED)
        assert device.verify(entrant(GOOD)).state is TrialState.OK


def test_errors_that_leave_the_context_whole_keep_the_process() -> None:
    with DeviceProcess(FakeFactory(Faults(memory_bytes=1000))) as device:
        device.identify()
        pid = device.pid
        with pytest.raises(DoesNotFit, match="needs 1572864 bytes"):
            device.prepare(PROBLEM, TRUSTED)
        assert device.pid == pid


def test_a_full_device_is_an_error_of_no_candidate_and_keeps_the_process() -> None:
    with opened(Faults(out_of_memory=BAD)) as device:
        pid = device.pid
        with pytest.raises(DeviceError, match="ran out of memory: 8 GiB wanted") as caught:
            device.verify(entrant(0))
        assert type(caught.value) is DeviceError
        assert device.verify(entrant(GOOD)).state is TrialState.OK
        assert device.pid == pid


@pytest.mark.parametrize(
    "error", [DeviceError("no usable NVIDIA GPU here."), ImportError("No module named 'cupy'")]
)
def test_a_device_that_cannot_be_opened_is_one_sentence_and_no_hang(error: Exception) -> None:
    began = time.monotonic()
    with (
        DeviceProcess(BrokenFactory(error)) as device,
        pytest.raises(DeviceUnavailable, match=str(error)),
    ):
        device.identify()
    assert time.monotonic() - began < 30


def test_a_closed_device_says_so_and_leaves_no_process() -> None:
    device = opened(Faults())
    pid = device.pid
    device.close()
    assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(DeviceUnavailable, match="was closed"):
        device.verify(entrant(GOOD))


def test_an_interrupted_call_leaves_no_answer_for_the_next_one() -> None:
    with opened(Faults(slow=BAD), Deadlines()) as device:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            device.screen(entrant(0))
        device.prepare(PROBLEM, TRUSTED)
        assert device.verify(entrant(GOOD)).contender == entrant(GOOD).contender


def test_the_child_dies_with_its_parent_even_in_the_middle_of_a_hang() -> None:
    code = (
        "from tests.device.test_process import *\n"
        "if __name__ == '__main__':\n"
        "    device = opened(Faults(hang=BAD), Deadlines(verify=60))\n"
        "    print(device.pid, flush=True)\n"
        "    device.verify(entrant(0))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _alive(child)
        parent.kill()
        parent.wait()
    end = time.monotonic() + 5
    while _alive(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _alive(child)


def _alive(pid: int) -> bool:
    """Running, and not a zombie that nobody collects."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
