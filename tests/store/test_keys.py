"""What a row is filed under: an answer is never that of another kernel, compiler or card unsaid."""

from dataclasses import replace
from typing import Any

import pytest

from tests.store.examples import (
    CUBLAS,
    CUBLASLT,
    DEVICE_KEY,
    PROBLEM,
    TOOLCHAIN,
    config,
    kernel,
    measurement,
    outcome,
    race,
)
from tuner.shape import GemmShape
from tuner.store.repository import Repository
from tuner.trial import Conditions, Measurement, Toolchain, TrialState

EDITED = Toolchain("edited", "13.0.88")
OTHER_COMPILER = Toolchain("5eed", "12.9.1")


def won_by(block_n: int, us: float, name: str, **changes: Any) -> list[Measurement]:
    """A race that `block_n` wins against a cuBLAS of 100 us."""
    return race(name, {kernel(block_n): [us] * 5, CUBLAS: [100.0] * 5}, **changes)


@pytest.mark.parametrize("older", [EDITED, OTHER_COMPILER], ids=["kernel", "compiler"])
def test_a_faster_row_of_another_kernel_or_compiler_is_not_served_as_best(
    store: Repository, older: Toolchain
) -> None:
    store.add(won_by(256, 50.0, "old", toolchain=older))
    store.add(won_by(128, 90.0, "new"))
    answer = store.best(PROBLEM, DEVICE_KEY, current=TOOLCHAIN)
    assert answer is not None
    assert (answer.config, answer.stale, answer.toolchain) == (config(128), False, TOOLCHAIN)


@pytest.mark.parametrize("older", [EDITED, OTHER_COMPILER], ids=["kernel", "compiler"])
def test_where_only_another_kernel_or_compiler_was_measured_the_answer_says_stale(
    store: Repository, older: Toolchain
) -> None:
    store.add(won_by(256, 50.0, "old", toolchain=older))
    answer = store.best(PROBLEM, DEVICE_KEY, current=TOOLCHAIN)
    assert answer is not None
    assert (answer.stale, answer.toolchain) == (True, older)


def test_an_answer_under_another_driver_says_stale(store: Repository) -> None:
    store.add(won_by(128, 90.0, "r", conditions=Conditions(driver="570.1")))
    now = store.best(PROBLEM, DEVICE_KEY, current=TOOLCHAIN, current_driver="580.95")
    then = store.best(PROBLEM, DEVICE_KEY, current=TOOLCHAIN, current_driver="570.1")
    assert now is not None
    assert then is not None
    assert (now.stale, then.stale) == (True, False)


@pytest.mark.parametrize("edited", [EDITED, OTHER_COMPILER], ids=["kernel", "compiler"])
def test_an_edited_kernel_or_another_compiler_has_nothing_finished(
    store: Repository, edited: Toolchain
) -> None:
    store.finish_shape(outcome())
    assert store.outcome(PROBLEM, DEVICE_KEY, TOOLCHAIN, "measured") == outcome()
    assert store.outcome(PROBLEM, DEVICE_KEY, edited, "measured") is None


def test_a_wider_search_space_finds_the_old_results_and_adds_to_them(store: Repository) -> None:
    store.add([measurement(contender=kernel(block_n)) for block_n in (64, 128)])
    store.add([measurement(contender=kernel(block_n)) for block_n in (64, 128, 256)])
    found = store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"], toolchain=TOOLCHAIN)
    assert {row.contender.config for row in found} == {config(n) for n in (64, 128, 256)}
    assert len(found) == 3


NAMES = [
    "NVIDIA H200",
    "NVIDIA_H200",
    "nvidia h200",
    "NVIDIA H100 80GB HBM3",
    "H100/PCIe",
    "☃",
    "",
    "h" * 4000,
    "\x00",
    "%_",
]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name[:12].strip("\x00") or "-")
def test_the_name_of_a_device_finds_nothing_because_its_key_does(
    store: Repository, name: str
) -> None:
    rows = won_by(128, 90.0, "r", device_name=name)
    store.add(rows)
    store.finish_shape(outcome(device_name=name))
    assert store.best(PROBLEM, name) is None
    assert store.shapes(name) == []
    answer = store.best(PROBLEM, DEVICE_KEY)
    assert answer is not None
    assert answer.device_name == name.replace("\x00", "\ufffd")
    assert [device.key for device in store.devices()] == [DEVICE_KEY]


def test_cards_of_one_name_and_other_sizes_share_nothing(store: Repository) -> None:
    smaller = "sm90-114sm-80gb"
    store.add(won_by(128, 90.0, "r"))
    store.add(
        won_by(256, 80.0, "s", device_key=smaller, problem=replace(PROBLEM, sms=114)),
    )
    assert store.best(PROBLEM, smaller) is None
    answer = store.best(replace(PROBLEM, sms=114), smaller)
    assert answer is not None
    assert answer.config == config(256)
    assert [(d.key, d.sms) for d in store.devices()] == [(smaller, 114), (DEVICE_KEY, 132)]


def test_a_library_is_filed_under_its_algorithm(store: Repository) -> None:
    store.add(race("r", {kernel(): [110.0], CUBLAS: [100.0], CUBLASLT: [90.0]}))
    answer = store.best(PROBLEM, DEVICE_KEY)
    assert answer is not None
    assert (answer.use, answer.library and answer.library.algorithm) == (
        "cublaslt",
        CUBLASLT.algorithm,
    )


def test_failures_of_one_kernel_on_one_device_are_found_on_every_problem(store: Repository) -> None:
    failed: dict[str, Any] = {"samples_us": (), "race": None}
    elsewhere = replace(PROBLEM, shape=GemmShape(64, 64, 64))
    hung = measurement(problem=elsewhere, state=TrialState.TIMEOUT, **failed)
    wrong = measurement(state=TrialState.WRONG_RESULT, **failed)
    others = [
        measurement(),
        replace(hung, toolchain=EDITED),
        replace(hung, toolchain=OTHER_COMPILER),
        replace(hung, device_key="sm90-114sm-80gb"),
        replace(hung, source="replay"),
        replace(hung, contender=CUBLASLT),
    ]
    store.add([hung, wrong, *others])
    assert store.setbacks(DEVICE_KEY, TOOLCHAIN, sources=("measured",)) == [wrong, hung]
