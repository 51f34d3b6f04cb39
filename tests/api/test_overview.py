"""The page at `/` shows what the service knows, whatever state the database is in."""

import re
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from html import unescape
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from tests.api.conftest import KEY, LOST, NAME, SMS, TOOLCHAIN, TUNED, race, serving
from tests.api.test_misses import counter_of
from tuner.api.overview import BAR_WIDTH, TIMES, ago, bar, digits, shapes_of, table
from tuner.lookup import choose
from tuner.lookup.book import Book
from tuner.lookup.race import races_of
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.jobs import Jobs
from tuner.store.leases import Leases

ODD = Problem(GemmShape(64, 64, 20), SMS)


def book(count: int) -> Book:
    """Shapes of M = 1 to `count`, each slower against cuBLAS than the one before."""
    shapes = [GemmShape(m, 64, 512) for m in range(1, count + 1)]
    races = [races_of(race(s, 10.0, 10 + 10 / s.m, KEY, NAME)) for s in shapes]
    answers = (choose(of_one) for of_one in races)
    return Book(KEY, NAME, [(answer, {}) for answer in answers if answer])


@contextmanager
def counted_statements() -> Iterator[list[str]]:
    """Every statement that any database is sent meanwhile."""
    sent: list[str] = []

    def note(*arguments: object) -> None:
        sent.append(str(arguments[2]))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", note)


def row_of(page: str, shape: GemmShape) -> str:
    """The text of the table row that links to the answer for `shape`."""
    (row,) = [r for r in re.findall(r"<tr>.*?</tr>", page, re.S) if f"m={shape.m}&amp;" in r]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", row)).split())


def test_every_shape_has_its_speed_over_both_baselines_and_leads_to_its_answer(
    client: TestClient,
) -> None:
    answer = client.get("/")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    row = row_of(answer.text, TUNED)
    assert "128x256, 4 stages" in row
    assert "200 ±0.0 % 687 1.100 1.100 kernel" in row
    assert "12.0 ±0.0 % 179 0.833 0.833 cublas" in row_of(answer.text, LOST)
    # The geometric means of 1.1 and 0.8333.
    assert answer.text.count("<dd>0.957") == 2
    (link,) = set(re.findall(r'href="(/best-config[^"]*m=4096[^"]*)"', answer.text))
    assert client.get(unescape(link)).json()["match"]["tier"] == "exact"


def test_misses_and_work_are_shown(client: TestClient, database: Path) -> None:
    missed, asked = Problem(GemmShape(48, 64, 64), SMS), Problem(GemmShape(96, 64, 64), SMS)
    for _ in range(1234):
        counter_of(client).count(missed, KEY, "sibling", 0.5)
    with open_store(f"sqlite:///{database}") as store:
        jobs = Jobs(store)
        jobs.ask([ODD, asked, replace(asked, d="col")], KEY)
        for _ in range(2):
            claimed = jobs.claim(Leases(store), KEY, TOOLCHAIN, "measured")
            assert claimed is not None
            if claimed.job.problem == ODD:
                jobs.end(claimed, "unsupported", "K must be <a multiple> of 8.")
    page = " ".join(unescape(re.sub(r"<[^>]*>", " ", client.get("/").text)).split())
    assert "Missed look-ups 1,234 of 1 shape Work" in page
    assert re.search(r"sibling 1,234 1,8\d\d ", page)
    assert "Work 1 running, 1 queued" in page
    assert "K must be <a multiple> of 8." in page
    assert "d=col" in page


def test_the_page_runs_no_script_and_only_its_own_style(client: TestClient) -> None:
    answer = client.get("/")
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.S)
    hashed = b64encode(sha256(style.encode()).digest()).decode()
    policy = answer.headers["content-security-policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{hashed}';")
    assert not re.search(r"<script|\son\w+=|\sstyle=|https?://", answer.text)


def test_the_number_of_statements_does_not_grow_with_shapes_misses_and_jobs(
    client: TestClient, database: Path
) -> None:
    def statements() -> int:
        with counted_statements() as sent:
            assert client.get("/").status_code == 200
        # Those of the thread that follows the database are its own.
        return sum("misses" in s or "jobs" in s for s in sent)

    few = statements()
    for m in range(1, 60):
        counter_of(client).count(Problem(GemmShape(m, 64, 64), SMS), KEY, "model")
    counter_of(client).flush()
    with open_store(f"sqlite:///{database}") as store:
        Jobs(store).ask([Problem(GemmShape(m, 64, 64), SMS) for m in range(1, 60)], KEY)
    assert statements() == few <= 6


def test_the_page_stays_while_the_database_is_gone(client: TestClient, database: Path) -> None:
    assert client.get("/").status_code == 200
    for path in database.parent.glob("tuner.db*"):
        path.unlink()
    answer = client.get("/")
    assert answer.status_code == 200
    assert "The database cannot be read" in answer.text
    assert "1.100" in row_of(answer.text, TUNED)
    assert "Every look-up so far was exact" not in answer.text


def test_an_empty_store_says_what_to_do_first(empty_client: TestClient) -> None:
    page = empty_client.get("/").text
    assert "No shape is tuned yet." in page
    assert "No device is known yet." in page


@pytest.mark.parametrize("key", ["h100", "<script>alert(1)</script>", "\N{SNOWMAN}", "x" * 4000])
def test_an_unknown_device_is_404_and_shows_those_there_are(client: TestClient, key: str) -> None:
    answer = client.get("/", params={"device": key})
    assert answer.status_code == 404
    assert KEY in answer.text
    assert "<script" not in answer.text


@pytest.mark.parametrize("query", ["order=x", "offset=-1", "offset=1e3", "page=2", "q=a&q=b"])
def test_a_query_that_is_not_understood_is_422(client: TestClient, query: str) -> None:
    assert client.get(f"/?{query}").status_code == 422


def test_the_device_with_most_shapes_is_shown_unless_another_is_named(
    two_devices: TestClient,
) -> None:
    assert f"<code>{KEY}</code>)" in two_devices.get("/").text
    assert "<code>sm90-132sm-80gb</code>)" in two_devices.get("/?device=sm90-132sm-80gb").text


def test_shapes_are_searched_ordered_and_paged(tmp_path: Path) -> None:
    rows, summary = shapes_of(book(120))
    assert summary.shapes == len(rows) == 120
    first = table(rows, "", "shape", 0, 50)
    assert (first.found, [r.problem.shape.m for r in first.rows]) == (120, list(range(1, 51)))
    last = table(rows, "", "cublas", 100, 50)
    # Those that gain least come first, so M = 1 comes last.
    assert [r.problem.shape.m for r in last.rows] == list(range(20, 0, -1))
    assert table(rows, " 12 64 ", "shape", 0, 50).found == 2  # 12x64x512 and 112x64x512
    assert table(rows, "4096", "shape", 0, 50).rows == []
    url = f"sqlite:///{tmp_path / 'many.db'}"
    with open_store(url) as store:
        for m in range(1, 61):
            store.add(race(GemmShape(m, 64, 512), 10.0, 10 + 10 / m, KEY, NAME))
    with serving(url) as client:
        page = client.get("/?q=x64x512&order=cublas").text
        (after,) = re.findall(r'href="(/\?[^"]*offset=50[^"]*)"', page)
        rest = client.get(unescape(after)).text
        shown = set(re.findall(r"m=(\d+)&amp;n=64", page))
        assert shown == {str(m) for m in range(11, 61)}
        assert set(re.findall(r"m=(\d+)&amp;n=64", rest)) == {str(m) for m in range(1, 11)}


def test_a_search_may_be_typed_as_the_page_shows_it_and_no_offset_is_beyond_the_end() -> None:
    rows, _ = shapes_of(book(25))
    (found,) = table(rows, f"25 {TIMES} 64 {TIMES} 512", "shape", 0, 10).rows
    assert found.problem.shape == GemmShape(25, 64, 512)
    assert table(rows, "", "shape", 1000, 10).offset == 20
    assert table([], "", "shape", 1000, 10).offset == 0


def test_rows_are_made_once_for_each_book(monkeypatch: pytest.MonkeyPatch) -> None:
    one = book(3)
    made = shapes_of(one)
    monkeypatch.setattr(Book, "exact", None)
    assert shapes_of(one) is made


def test_bars_are_as_long_for_a_gain_as_for_the_same_loss() -> None:
    middle = BAR_WIDTH / 2
    assert (bar(1.0).start, bar(1.0).width) == (middle, 0)
    gain, loss = bar(1.1), bar(1 / 1.1)
    assert (gain.start, gain.faster, loss.faster) == (middle, True, False)
    assert loss.start + loss.width == pytest.approx(middle)
    assert gain.width == pytest.approx(loss.width)
    assert bar(100.0).width == bar(0.01).width == middle


def test_numbers_and_times_are_written_for_people() -> None:
    assert [digits(x) for x in (3.5, 27.64, 203.5, 13606.2)] == ["3.50", "27.6", "204", "13,606"]
    now = datetime(2026, 3, 1, 12, tzinfo=UTC)
    spans = {0.4: "0 s ago", 119: "119 s ago", 600: "10 min ago", 7200: "2 h ago", 9e5: "10 d ago"}
    assert {s: ago(now - timedelta(seconds=s), now) for s in spans} == spans
    assert ago(now + timedelta(minutes=5), now) == "0 s ago"
