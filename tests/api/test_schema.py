"""Requests made up from the API's own description never break it, and answers are as described."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tests.api.bad_requests import TOKEN
from tests.api.conftest import serving

CASES = 12
"""Of each operation, that keep to the description, and as many that do not."""
NOT_SAID: list[Any] = [positive_data_acceptance]
"""A description cannot say how many multiprocessors the device has that is asked about."""


@pytest.fixture(scope="module")
def client(filled_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    database = shutil.copy(filled_database, tmp_path_factory.mktemp("schema"))
    with serving(f"sqlite:///{database}", api_token=TOKEN) as client:
        yield client


def test_requests_made_up_from_the_description_are_answered_as_it_says(client: TestClient) -> None:
    schema = schemathesis.openapi.from_asgi("/openapi.json", client.app)
    run: dict[str, int] = {}
    operations: Iterable[Any] = schema.get_all_operations()
    for operation in (found.ok() for found in operations):
        for mode in GenerationMode:
            run[f"{operation.label} {mode.value}"] = conforming(operation, mode)
    print(run)
    assert run["GET /best-config positive"] == run["POST /best-configs negative"] == CASES
    assert sum(run.values()) >= 100


def conforming(operation: Any, mode: GenerationMode) -> int:
    """Runs the cases of one operation; how many there were. A failure says how to repeat it."""
    run = 0

    @settings(
        max_examples=CASES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def answered(case: schemathesis.Case[Any]) -> None:
        nonlocal run
        run += 1
        token = {"Authorization": f"Bearer {TOKEN}"}
        case.call_and_validate(headers=token, excluded_checks=NOT_SAID)

    try:
        answered()
    except Unsatisfiable:
        assert run == 0  # what takes anything cannot be given anything wrong
    return run
