"""What is wrong with a database that is read from is named, and it is left as it is."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.examples import CUBLAS, measurement
from tests.store.exported import COUNT, stored
from tuner.errors import StoreError
from tuner.store import schema, sqlite_file
from tuner.store.engine import locate, make_engine, open_store
from tuner.store.exports import export_lines, export_sqlite
from tuner.store.repository import Repository
from tuner.store.source import opened_source
from tuner.store.transfer import import_file, merge


def test_a_newer_database_is_refused_with_both_schemas_named(
    store: Repository, database_file: Path
) -> None:
    with closing(sqlite3.connect(database_file)) as connection, connection:
        connection.execute(f"UPDATE {schema.VERSION_TABLE} SET version_num = '9999'")
    before = database_file.read_bytes()
    with pytest.raises(StoreError, match=r"schema 9999.*up to 0003"):
        import_file(store, database_file)
    assert database_file.read_bytes() == before


def test_a_database_of_the_first_release_is_read_and_left_as_it_is(
    store: Repository, database_file: Path
) -> None:
    engine = make_engine(locate(f"sqlite:///{database_file}"))
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE tuner_export")
        schema.downgrade(connection, "0001")
    engine.dispose()
    before = database_file.read_bytes()
    moved = import_file(store, database_file)
    assert (moved.whole, moved.added["measurements"]) == (True, COUNT)
    assert database_file.read_bytes() == before
    assert [p.name for p in database_file.parent.glob("rows.db*")] == ["rows.db"]


@pytest.mark.parametrize("keep", [200, 4096, 0.5, 0.95])
def test_a_database_cut_off_is_refused_untouched(
    store: Repository, database_file: Path, keep: float
) -> None:
    whole = database_file.read_bytes()
    cut = whole[: int(keep if keep > 1 else keep * len(whole))]
    database_file.write_bytes(cut)
    with pytest.raises(StoreError, match="left as it is"):
        import_file(store, database_file)
    assert database_file.read_bytes() == cut
    assert stored(store) == []


def tampered(path: Path, statement: str) -> None:
    """Change an exported database behind the back of its guards."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TRIGGER measurements_no_update")
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement)


@pytest.mark.parametrize(
    "change",
    [
        "samples_us = '[120.0]'",
        "samples_us = 'fast'",
        "samples_us = x'ff00'",
        "m = 'many'",
        "measured_at = 'yesterday'",
        "worker = 'me'",
        "worker = CAST(x'fffe41' AS TEXT)",
        "state = 'ok?'",
        "digest = 'beef'",
        "config = '{}'",
    ],
)
def test_a_row_changed_in_a_database_is_named_and_the_rest_goes_in(
    store: Repository, database_file: Path, change: str
) -> None:
    tampered(database_file, f"UPDATE measurements SET {change} WHERE id = 3")
    moved = import_file(store, database_file)
    assert [r.where for r in moved.refused] == [f"{database_file}: measurements 3"]
    assert moved.changed is not None
    assert len(stored(store)) == COUNT - 1


def test_a_derived_column_that_was_changed_is_derived_again(
    store: Repository, database_file: Path
) -> None:
    tampered(database_file, "UPDATE measurements SET median_us = 0.001 WHERE id = 3")
    assert import_file(store, database_file).whole
    with store.transaction(writes=False) as connection:
        medians = connection.exec_driver_sql("SELECT DISTINCT median_us FROM measurements")
        assert medians.all() == [(166.5,)]


def test_rows_of_a_later_search_space_travel_between_databases(
    store: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A release that offers a tile this one does not know, and one that lacks a field of ours."""
    url = f"sqlite:///{tmp_path / 'later.db'}"
    monkeypatch.setattr("tuner.config.KernelConfig.to_dict", lambda _: {"tile": "1x1"})
    with open_store(url) as later:
        later.add([measurement(), measurement(contender=CUBLAS)])
    monkeypatch.undo()
    moved = merge(store, url)
    assert (moved.whole, moved.added["measurements"]) == (True, 2)
    assert [r.contender for r in stored(store)] == [CUBLAS]
    with opened_source(url) as source:
        done = export_lines(source, tmp_path / "rows.jsonl")
        assert (done.rows["measurements"], done.left_out) == (1, 1)
        whole = export_sqlite(source, tmp_path / "rows.db")
        assert (whole.rows["measurements"], whole.left_out) == (2, 0)


def test_a_network_file_system_is_refused_as_a_target(
    database_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/export {tmp_path / 'net'} nfs4 rw 0 0\n/dev/vda / ext4 rw 0 0\n")
    monkeypatch.setattr(sqlite_file, "MOUNTS", mounts)
    with pytest.raises(StoreError, match="network file system \\(nfs4\\)"):
        open_store(f"sqlite:///{tmp_path / 'net' / 'into.db'}")
    # To be read only, a copy there does.
    shutil.copy(database_file, tmp_path / "net" / "rows.db")
    with open_store(f"sqlite:///{tmp_path / 'into.db'}") as store:
        assert import_file(store, tmp_path / "net" / "rows.db").whole
