"""GET /best-config answers with what the store knows, or says why it cannot."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote_plus

from fastapi.testclient import TestClient

from tests.api.conftest import (
    CONFIG,
    FAILED,
    KEY,
    LOST,
    NAME,
    TOO_LARGE,
    TUNED,
    outcome,
    race,
    serving,
)
from tuner.api.schemas import BestConfig
from tuner.config import KernelConfig
from tuner.shape import GemmShape
from tuner.store.engine import open_store
from tuner.trial import Measurement, ShapeState


def ask(client: TestClient, shape: GemmShape, **others: str) -> tuple[int, dict[str, object]]:
    asked: dict[str, str | int] = {"m": shape.m, "n": shape.n, "k": shape.k, **others}
    response = client.get("/best-config", params=asked)
    if response.status_code != 200:
        assert response.headers["content-type"] == "application/problem+json"
    return response.status_code, response.json()


def store(database: Path, rows: Sequence[Measurement]) -> None:
    with open_store(f"sqlite:///{database}") as repository:
        repository.add(rows)


def test_tuned_shape_is_answered_with_its_config_time_baselines_and_advice(
    client: TestClient,
) -> None:
    status, answer = ask(client, TUNED)
    assert status == 200
    assert answer["shape"] == {"m": 4096, "n": 4096, "k": 4096}
    assert answer["device"] == {"name": NAME, "key": KEY}
    assert answer["match"] == {"tier": "exact", "from_shape": None}
    assert answer["config"] == CONFIG.to_dict()
    measured = answer["measurement"]
    assert isinstance(measured, dict)
    assert measured["median_us"] == 200.0
    assert measured["ci95_us"] == [200.0, 200.0]
    assert answer["baseline"] == {"cublas_us": 220.0, "cublaslt_best_us": 220.0}
    assert answer["use"] == "kernel"
    assert abs(float(str(answer["speedup"])) - 1.1) < 1e-12
    assert (answer["dtype"], answer["layout"], answer["d"], answer["sms"]) == (
        "bf16",
        "tn",
        "row",
        132,
    )


def test_answer_has_exactly_the_documented_members(client: TestClient) -> None:
    _, answer = ask(client, TUNED)
    BestConfig.model_validate(answer)
    assert set(answer) == set(BestConfig.model_fields)


def test_shape_on_which_cublas_is_faster_says_to_use_cublas(client: TestClient) -> None:
    _, answer = ask(client, LOST)
    assert answer["use"] == "cublas"
    assert abs(float(str(answer["speedup"])) - 10 / 12) < 1e-12


def test_row_invariant_numerics_never_recommend_a_library(client: TestClient) -> None:
    _, answer = ask(client, LOST, numerics="invariant")
    assert (answer["use"], answer["library"], answer["numerics"]) == ("kernel", None, "invariant")


def test_invariant_numerics_have_the_best_config_that_does_not_split_k(
    database: Path,
) -> None:
    variant = replace(
        CONFIG.variant, reduction="workspace", producer_registers=40, consumer_registers=232
    )
    split = KernelConfig(variant, replace(CONFIG.knobs, split_k=2, split_tail=True))
    store(database, race(TUNED, 180.0, 220.0, KEY, NAME, split))
    with serving(f"sqlite:///{database}") as client:
        _, answer = ask(client, TUNED)
        assert (answer["config"], answer["numerics"]) == (split.to_dict(), "deterministic")
        _, answer = ask(client, TUNED, numerics="deterministic")
        assert answer["config"] == split.to_dict()
        _, answer = ask(client, TUNED, numerics="invariant")
    assert (answer["config"], answer["numerics"]) == (CONFIG.to_dict(), "invariant")
    assert (answer["use"], answer["ties"]) == ("kernel", [])


def test_plain_launch_has_the_best_config_without_dependent_launch(
    database: Path,
) -> None:
    dependent = replace(CONFIG, knobs=replace(CONFIG.knobs, dependent_launch=True))
    store(database, race(TUNED, 180.0, 220.0, KEY, NAME, dependent))
    with serving(f"sqlite:///{database}") as client:
        for asked in ({}, {"launch": "any"}):
            assert ask(client, TUNED, **asked)[1]["config"] == dependent.to_dict()
        _, answer = ask(client, TUNED, launch="plain")
    assert answer["config"] == CONFIG.to_dict()
    measured = answer["measurement"]
    assert isinstance(measured, dict)
    assert measured["median_us"] == 200.0


def test_tuned_shape_without_a_config_of_the_kind_asked_for_is_404_no_valid_config(
    database: Path,
) -> None:
    shape = GemmShape(4096, 4096, 64)
    knobs = replace(CONFIG.knobs, dependent_launch=True)
    store(database, race(shape, 180.0, 220.0, KEY, NAME, replace(CONFIG, knobs=knobs)))
    with open_store(f"sqlite:///{database}") as repository:
        repository.finish_shape(outcome(shape, ShapeState.TUNED, KEY, NAME, ""))
    with serving(f"sqlite:///{database}") as client:
        assert ask(client, shape, match="exact")[0] == 200
        status, problem = ask(client, shape, launch="plain", match="exact")
    assert (status, problem["state"]) == (404, "no_valid_config")
    assert "no config that was raced is plain" in str(problem["detail"])


def test_protocol_that_is_asked_for_is_the_one_reported(client: TestClient) -> None:
    _, answer = ask(client, TUNED, protocol="graph-coldl2-cool/1")
    assert isinstance(answer["protocols"], dict)
    assert list(answer["protocols"]) == ["graph-coldl2-cool/1"]


def test_every_race_protocol_of_the_vocabulary_can_be_asked_for(client: TestClient) -> None:
    from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT

    for protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
        assert ask(client, TUNED, protocol=protocol)[0] == 200


def test_shape_that_was_never_tuned_is_404_never_tuned(client: TestClient) -> None:
    status, problem = ask(client, GemmShape(4096, 4096, 8192), match="exact")
    assert (status, problem["state"]) == (404, "never_tuned")
    assert "4096x4096x8192" in str(problem["detail"])


def test_other_output_layout_and_other_budget_are_other_problems(client: TestClient) -> None:
    for other in ({"d": "col"}, {"sms": "64"}):
        assert ask(client, TUNED, match="exact", **other)[1]["state"] == "never_tuned"
        _, borrowed = ask(client, TUNED, **other)
        assert isinstance(borrowed["match"], dict)
        assert borrowed["match"]["tier"] in ("nearest", "model")
    assert ask(client, TUNED, match="exact", sms="132")[0] == 200


def test_shape_for_which_every_config_failed_is_404_with_the_count_by_reason(
    client: TestClient,
) -> None:
    status, problem = ask(client, FAILED)
    assert (status, problem["state"]) == (404, "no_valid_config")
    assert problem["counts"] == {"crashed": 2, "wrong_result": 3}
    assert "2 crashed, 3 wrong_result" in str(problem["detail"])


def test_shape_the_kernel_cannot_run_is_404_unsupported_with_the_rule(client: TestClient) -> None:
    status, problem = ask(client, GemmShape(128, 128, 133))
    assert (status, problem["state"]) == (404, "unsupported")
    assert "multiple of 8" in str(problem["detail"])


def test_shape_that_does_not_fit_is_404_unsupported_with_the_bytes(client: TestClient) -> None:
    status, problem = ask(client, TOO_LARGE)
    assert (status, problem["state"]) == (404, "unsupported")
    assert "needs 8.0 EiB" in str(problem["detail"])


def test_more_sms_than_the_device_has_is_422_with_its_range(client: TestClient) -> None:
    status, problem = ask(client, TUNED, sms="133")
    assert status == 422
    assert "sms must be a whole number from 1 to 132" in str(problem["detail"])


def test_empty_store_is_404_never_tuned_not_a_failure(empty_client: TestClient) -> None:
    status, problem = ask(empty_client, TUNED)
    assert (status, problem["state"]) == (404, "never_tuned")
    assert empty_client.get("/devices").json() == {"devices": []}
    assert empty_client.get("/shapes").json() == {"device": None, "shapes": [], "next_offset": None}


def test_several_devices_and_none_named_is_400_listing_them(two_devices: TestClient) -> None:
    status, problem = ask(two_devices, TUNED)
    assert status == 400
    assert problem["devices"] == [
        {"key": KEY, "name": NAME},
        {"key": "sm90-132sm-80gb", "name": "NVIDIA H100 80GB HBM3"},
    ]


def test_device_is_named_by_key(two_devices: TestClient) -> None:
    status, answer = ask(two_devices, TUNED, device="sm90-132sm-80gb")
    assert status == 200
    assert answer["device"] == {"name": "NVIDIA H100 80GB HBM3", "key": "sm90-132sm-80gb"}


def test_names_that_are_not_keys_are_404_unknown_device_listing_what_exists(
    client: TestClient,
) -> None:
    names = ["NVIDIA H200", "NVIDIA_H200", "nvidia h200", "NVIDIA H100 80GB HBM3", "H100/PCIe"]
    names += ["\N{SNOWMAN}", "", "x" * 4000, f"{KEY} ", "%", "\x00"]
    for encoded in [*map(quote_plus, names), "%ff", "%ED%A0%80", "%", "a%2"]:
        response = client.get(f"/best-config?m=1&n=1&k=8&device={encoded}")
        problem = response.json()
        assert (response.status_code, problem["state"]) == (404, "unknown_device"), encoded
        assert problem["devices"] == [{"key": KEY, "name": NAME}]
        assert len(problem["detail"]) < 300
