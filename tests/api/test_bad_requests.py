"""Nothing that a client sends is a server error; what is refused is named with its range."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.bad_requests import BAD_REQUESTS, TOKEN, Bad
from tests.api.conftest import serving

BAD_NUMBERS = [
    *["0", "-1", "-0", "2147483648", "4294967296", "9223372036854775807", "9223372036854775808"],
    *["1" * 25, "9" * 5000, "0" * 3000, "", " ", " 1", "1 ", "1\n", "\t1", "+1", "1.0", "1e3"],
    *["1_000", "1,000", "0x10", "0b1", "0o7", "NaN", "nan", "inf", "-inf", "Infinity", "true"],
    *["True", "null", "None", "[]", "{}", "[1]", '"1"', "1;2", "1/2", "one", "m", "\x00", "1\x00"],
    *["\u0661\u0662", "\u0967", "\uff11", "\u00b2", "\u2460", "\U0001d7d9", "\u4e00", "\u2212"],
    *["1\u200b", "\ufeff1", "\N{SNOWMAN}", "1' OR '1'='1", "%", "%00", "../1"],
]
BAD_QUERIES = [
    *["", "m=1", "m=1&n=1", "n=1&k=1", "m=1&m=2&n=1&k=8", "m=1&n=1&k=8&k=8", "m&n&k", "m=1&n=1&k"],
    *["m[]=1&n=1&k=8", "M=1&N=1&K=8", "m=1&n=1&k=8&b=2", "m=1&n=1&k=8&layuot=tn", "=1", "&&&"],
    *[f"m=1&n=1&k=8&{name}" for name in ("dtype=fp16", "dtype=BF16", "dtype=", "layout=nn")],
    *[f"m=1&n=1&k=8&{name}" for name in ("layout=", "d=rows", "d=", "d=row&d=col", "match=near")],
    *[f"m=1&n=1&k=8&{name}" for name in ("launch=dependent", "launch=", "launch=any&launch=any")],
    *[f"m=1&n=1&k=8&{name}" for name in ("protocol=hot", "protocol=", "numerics=exact", "sms=0")],
    *[f"m=1&n=1&k=8&{name}" for name in ("sms=", "sms=-1", "sms=1.5", "sms=2147483648", "sms=x")],
    *[f"m=1&n=1&k=8&{name}" for name in ("device=a&device=b", "%00=1", "%ff=%ff", "x" * 3000)],
]
RANGE = "a whole number from 1 to 2147483647 in ASCII digits"


@pytest.fixture(scope="module")
def client(filled_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """One service for all: a refusal leaves nothing behind but a count."""
    database = shutil.copy(filled_database, tmp_path_factory.mktemp("bad"))
    with serving(f"sqlite:///{database}", api_token=TOKEN) as client:
        yield client


def refused_fields(client: TestClient, url: str) -> dict[str, str]:
    """The fields of a 422 and what they accept."""
    response = client.get(url)
    assert response.status_code == 422, (url[:200], response.text)
    assert response.headers["content-type"] == "application/problem+json"
    problem = json.loads(response.text, parse_constant=pytest.fail)
    assert problem["status"] == 422
    assert len(response.text) < 3000
    return {e["field"]: e["allowed"] for e in problem["errors"]}


@pytest.mark.parametrize("field", ["m", "n", "k"])
@pytest.mark.parametrize("value", BAD_NUMBERS, ids=lambda v: ascii(v[:20]))
def test_extent_that_is_no_number_in_range_is_422_naming_field_and_range(
    client: TestClient, field: str, value: str
) -> None:
    query = {"m": "8", "n": "8", "k": "8"} | {field: quote_plus(value)}
    url = "/best-config?" + "&".join(f"{name}={text}" for name, text in query.items())
    assert refused_fields(client, url) == {field: RANGE}


@pytest.mark.parametrize("query", BAD_QUERIES, ids=lambda q: q[:30])
def test_query_that_is_not_understood_is_422(client: TestClient, query: str) -> None:
    assert refused_fields(client, f"/best-config?{query}") != {}


def test_refusal_names_every_wrong_field_at_once(client: TestClient) -> None:
    found = refused_fields(client, "/best-config?m=0&n=x&k=-1&d=up&dtype=fp8")
    assert found == {
        "m": RANGE,
        "n": RANGE,
        "k": RANGE,
        "d": "'row' or 'col'",
        "dtype": "'bf16'",
    }


def test_parameter_given_twice_is_refused_even_with_equal_values(client: TestClient) -> None:
    assert refused_fields(client, "/best-config?m=8&m=8&n=8&k=8") == {"m": "given once"}


@pytest.mark.parametrize("query", ["a&" * 15_000, "&".join(f"p{i}" for i in range(8_000))])
def test_thousands_of_parameters_are_refused_quickly_and_briefly(
    client: TestClient, query: str
) -> None:
    began = time.monotonic()
    response = client.get(f"/best-config?{query}")
    assert response.status_code == 422
    assert len(response.text) < 10_000
    assert time.monotonic() - began < 30


def test_largest_extents_are_accepted_and_fit_no_device(client: TestClient) -> None:
    response = client.get("/best-config?m=2147483647&n=2147483647&k=2147483640")
    assert (response.status_code, response.json()["state"]) == (404, "unsupported")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "offset=-1", "limits=1"])
def test_bad_page_of_shapes_is_422(client: TestClient, query: str) -> None:
    assert list(refused_fields(client, f"/shapes?{query}")) == [query.partition("=")[0]]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing", 404),
        ("GET", "/best-config/", 404),
        ("GET", "/best-config/../../etc/passwd", 404),
        ("GET", "/" + "x" * 5000, 404),
        ("POST", "/best-config", 405),
        ("DELETE", "/shapes", 405),
        ("PUT", "/devices", 405),
    ],
)
def test_unknown_paths_and_methods_are_problems_too(
    client: TestClient, method: str, path: str, status: int
) -> None:
    response = client.request(method, path, follow_redirects=False)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: f"{bad.method} {bad.url[:50]!a}")
def test_bad_request_made_by_hand_is_refused_as_a_problem_and_never_a_500(
    client: TestClient, bad: Bad
) -> None:
    response = client.request(bad.method, bad.url, content=bad.body, headers=dict(bad.headers))
    assert response.status_code == bad.status, response.text[:500]
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["x-request-id"]
    problem = json.loads(response.text, parse_constant=pytest.fail)
    assert (problem["status"], bool(problem["detail"])) == (bad.status, True)
    assert len(response.text) < 10_000


def test_a_hundred_bad_requests_are_made() -> None:
    assert len(BAD_REQUESTS) >= 100


@settings(max_examples=75, deadline=None)
@given(
    query=st.lists(
        st.tuples(
            st.sampled_from(["m", "n", "k", "d", "device", "sms", "protocol", "match"]) | st.text(),
            st.integers().map(str) | st.floats().map(str) | st.text(),
        ),
        max_size=8,
    )
)
def test_no_query_at_all_is_a_server_error(
    client: TestClient, query: list[tuple[str, str]]
) -> None:
    encoded = "&".join(f"{escaped(name)}={escaped(value)}" for name, value in query)
    response = client.get(f"/best-config?{encoded}")
    assert response.status_code in (400, 404, 422), encoded
    assert response.json()["detail"]


def escaped(text: str) -> str:
    return quote_plus(text, errors="surrogatepass")


@given(m=st.integers(1, 2**31 - 1), n=st.integers(1, 2**31 - 1), k=st.integers(1, 2**31 - 1))
@settings(max_examples=50, deadline=None)
def test_every_extent_in_range_is_answered_or_missed_and_never_refused(
    client: TestClient, m: int, n: int, k: int
) -> None:
    assert client.get(f"/best-config?m={m}&n={n}&k={k}").status_code in (200, 404)
