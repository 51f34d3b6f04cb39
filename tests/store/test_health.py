"""`tuner db check` tells what is wrong and changes nothing."""

from pathlib import Path

import pytest

from tests.store.examples import DEVICE_KEY, measurement, outcome
from tuner.errors import StoreError
from tuner.store import schema
from tuner.store.engine import locate, make_engine, open_store
from tuner.store.health import check_store
from tuner.store.tables import metadata


def test_a_sound_database_is_ok_and_its_rows_are_counted(database_url: str) -> None:
    with open_store(database_url) as store:
        store.add([measurement(), measurement(samples_us=(170.0,))])
        store.finish_shape(outcome())
    health = check_store(database_url)
    assert health.ok
    assert (health.revision, health.head) == ("0003", "0003")
    filled = {name: count for name, count in health.rows.items() if count}
    assert filled == {"measurements": 2, "shape_outcomes": 1, "devices": 1}
    assert health.rows.keys() == metadata.tables.keys()
    assert health.location == str(locate(database_url))


def test_an_empty_database_is_sent_to_upgrade(bare_database_url: str) -> None:
    if path := locate(bare_database_url).path:
        path.touch()
    health = check_store(bare_database_url)
    assert not health.ok
    assert "has no tables yet; `tuner db upgrade` brings it to 0003" in health.problems[0]
    assert check_store(bare_database_url) == health


def test_a_missing_file_is_a_problem_and_is_not_made(tmp_path: Path) -> None:
    health = check_store(f"sqlite:///{tmp_path / 'tuner.db'}")
    assert health.problems == (
        f"there is no database at {tmp_path / 'tuner.db'}; `tuner run` makes one.",
    )
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_database_is_a_problem_and_is_untouched(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    with open_store(f"sqlite:///{path}") as store:
        store.add([measurement(detail=f"{i} " + "x" * 900) for i in range(100)])
    content = bytearray(path.read_bytes())
    content[8 * 4096 : 9 * 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    health = check_store(f"sqlite:///{path}")
    assert "is damaged" in health.problems[0]
    assert "\n" not in health.problems[0]
    assert path.read_bytes() == content


def test_an_older_database_is_sent_to_upgrade(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(database_url):
        pass
    monkeypatch.setattr(
        schema, "revision", lambda *_: schema.Revision("0003", "0004"), raising=True
    )
    (problem,) = check_store(database_url).problems
    assert "stands at schema 0003; `tuner db upgrade` brings it to 0004." in problem


def test_a_server_that_is_not_there_is_a_problem(tmp_path: Path) -> None:
    health = check_store(f"postgresql://me:secret@/tuner?host={tmp_path}")
    assert len(health.problems) == 1
    assert "secret" not in health.problems[0]
    assert health.revision is None


def test_a_url_that_names_no_database_is_an_error() -> None:
    with pytest.raises(StoreError, match="not understood"):
        check_store("tuner.db")


def test_checking_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    with open_store(f"sqlite:///{path}") as store:
        store.add([measurement()])
    before = path.read_bytes()
    assert check_store(f"sqlite:///{path}").ok
    assert path.read_bytes() == before
    with make_engine(locate(f"sqlite:///{path}")).connect() as connection:
        assert connection.exec_driver_sql("SELECT key FROM devices").all() == [(DEVICE_KEY,)]
        connection.engine.dispose()
