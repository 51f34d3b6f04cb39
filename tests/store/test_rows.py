"""Values and rows say the same, for any value."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.store.examples import CUBLAS, CUBLASLT, NOON, config, kernel, measurement, outcome
from tuner.shape import MAX_EXTENT, GemmShape, Problem
from tuner.store.rows import (
    canonical_json,
    measurement_of,
    measurement_row,
    outcome_of,
    outcome_row,
)
from tuner.trial import Conditions, Measurement, TrialState

WORDS = st.text(st.characters(), max_size=20)
STORABLE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
EXTENT = st.integers(1, MAX_EXTENT)
COUNT = st.none() | st.integers(-(2**63) + 1, 2**63 - 1)
INSTANTS = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))


def rows(words: st.SearchStrategy[str]) -> st.SearchStrategy[Measurement]:
    return st.builds(
        measurement,
        problem=st.builds(
            Problem, st.builds(GemmShape, EXTENT, EXTENT, EXTENT), st.integers(1, 10**6)
        ),
        device_key=words,
        device_name=words,
        contender=st.sampled_from([CUBLAS, CUBLASLT, kernel(), kernel(256, 3)]),
        state=st.sampled_from(TrialState),
        samples_us=st.lists(st.floats(1e-300, 1e300), min_size=1, max_size=5).map(tuple),
        detail=words,
        conditions=st.builds(
            Conditions,
            driver=st.none() | words,
            sm_clock_mhz=COUNT,
            power_w=st.none() | st.floats(0, 1e6) | st.integers(0, 1000),
            throttle_reasons=COUNT,
        ),
        source=st.sampled_from(["measured", "replay", "import"]),
        race=st.none() | words,
        worker=words,
        measured_at=INSTANTS,
    )


@given(rows(STORABLE))
def test_a_row_gives_its_measurement_back(row: Measurement) -> None:
    assert measurement_of(measurement_row(row)) == row


@given(rows(WORDS))
def test_a_row_that_was_stored_and_read_is_the_same_row(row: Measurement) -> None:
    told = measurement_row(row)
    assert measurement_row(measurement_of(told)) == told
    json.loads(told["samples_us"], parse_constant=_refuse)
    json.dumps(told, default=str).encode()


def _refuse(constant: str) -> Any:
    raise AssertionError(f"{constant} is not JSON")


def test_rows_that_differ_in_anything_told_have_different_digests() -> None:
    variations = [
        measurement(),
        measurement(measured_at=NOON + timedelta(microseconds=1)),
        measurement(samples_us=(166.5, 165.25)),
        measurement(worker="w"),
        measurement(race="r"),
        measurement(source="import"),
        measurement(contender=kernel(256)),
        measurement(contender=CUBLAS),
        measurement(contender=CUBLASLT),
        measurement(conditions=Conditions()),
    ]
    assert len({measurement_row(row)["digest"] for row in variations}) == len(variations)


def test_equal_configs_are_equal_text_in_sorted_order() -> None:
    text = measurement_row(measurement())["config"]
    assert text == canonical_json(dict(reversed(config().to_stored().items())))
    assert text.startswith('{"block_m":128,"block_n":128,')


def test_an_outcome_gives_itself_back() -> None:
    assert outcome_of(outcome_row(outcome())) == outcome()
