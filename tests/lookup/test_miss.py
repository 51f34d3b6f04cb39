"""Why there is no answer: how the latest tuning ended, or that there was none."""

import pytest

from tests.store.examples import (
    CUBLAS,
    CUBLASLT,
    DEVICE_KEY,
    PROBLEM,
    TOOLCHAIN,
    config,
    kernel,
    race,
)
from tuner.lookup import Miss, Race, choose, nothing_stored, why_none
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_HOT, ShapeOutcome, ShapeState

WHERE = "4096x2112x72 (d=row, 132 SMs) on NVIDIA H200"


def ended(state: ShapeState, detail: str = "", **counts: int) -> ShapeOutcome:
    return ShapeOutcome(PROBLEM, DEVICE_KEY, "NVIDIA H200", TOOLCHAIN, state, detail, counts=counts)


@pytest.mark.parametrize(
    "outcome", [None, ended(ShapeState.TUNED), ended(ShapeState.NOT_RECORDED, "not recorded")]
)
def test_problem_without_a_stored_config_was_never_tuned(outcome: ShapeOutcome | None) -> None:
    detail = f"{WHERE} has no stored config. Tune it with `tuner run`."
    assert why_none(PROBLEM, "NVIDIA H200", outcome) == Miss("never_tuned", detail)


def test_problem_whose_every_config_failed_says_how_often_and_in_which_way() -> None:
    outcome = ended(ShapeState.NO_VALID_CONFIG, wrong_result=3, crashed=2)
    assert why_none(PROBLEM, "NVIDIA H200", outcome) == Miss(
        "no_valid_config",
        f"{WHERE} was tuned and no config is fit to serve: 2 crashed, 3 wrong_result.",
        {"crashed": 2, "wrong_result": 3},
    )


def test_problem_too_large_for_the_device_is_unsupported_with_the_reason_that_was_stored() -> None:
    outcome = ended(ShapeState.DOES_NOT_FIT, "it needs 8 EiB; the device has 141 GiB.")
    assert why_none(PROBLEM, "NVIDIA H200", outcome) == Miss(
        "unsupported", "it needs 8 EiB; the device has 141 GiB."
    )


def test_shape_the_kernel_cannot_run_is_unsupported_whatever_is_stored() -> None:
    shape = GemmShape(128, 128, 133)
    reason = shape.unsupported_reason()
    assert reason is not None
    assert why_none(Problem(shape, 132), "NVIDIA H200", None) == Miss("unsupported", reason)
    assert nothing_stored(shape) == Miss("unsupported", reason)


def test_an_empty_store_has_tuned_nothing() -> None:
    assert nothing_stored(GemmShape(64, 64, 64)) == Miss(
        "never_tuned",
        "Nothing is stored yet, so 64x64x64 was never tuned. Tune it with `tuner run`.",
    )


def test_tuned_problem_without_a_config_of_the_kind_asked_for_says_so() -> None:
    tuned = ended(ShapeState.TUNED)
    where = f"{WHERE} was tuned and no config that was raced is"
    for asked, kind in (
        ({"plain": True}, "launched plainly"),
        ({"numerics": "invariant"}, "invariant"),
        ({"plain": True, "numerics": "invariant"}, "invariant and launched plainly"),
    ):
        miss = why_none(PROBLEM, "NVIDIA H200", tuned, **asked)
        assert miss == Miss("no_valid_config", f"{where} {kind}. Ask without that.")
    assert why_none(PROBLEM, "NVIDIA H200", tuned, numerics="deterministic").state == "never_tuned"
    assert why_none(PROBLEM, "NVIDIA H200", None, plain=True).state == "never_tuned"


def test_row_invariant_numerics_turn_a_library_down_and_leave_the_rest_as_it_is() -> None:
    times = {CUBLAS: [100.0] * 9, CUBLASLT: [70.0] * 9, kernel(): [80.0] * 9}
    answer = choose([Race("h", PROTOCOL_HOT, tuple(race("h", times)))])
    assert answer is not None
    assert (answer.use, answer.config) == ("cublaslt", config())
    for numerics in (None, "deterministic"):
        assert answer.promising(numerics) is answer
    invariant = answer.promising("invariant")
    assert (invariant.use, invariant.library) == ("kernel", None)
    assert invariant.to_json() == {**answer.to_json(), "use": "kernel", "library": None}
