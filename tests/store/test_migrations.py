"""From any revision to any other, with data, beside other people's tables."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import optuna
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, Engine, Inspector, inspect, select, text
from sqlalchemy.exc import DBAPIError

from tests.databases import Databases
from tests.store.examples import DEVICE_KEY, PROBLEM, measurement, outcome
from tuner import __version__
from tuner.errors import StoreError
from tuner.store import schema, sqlite_file
from tuner.store.engine import locate, make_engine, open_store, upgrade, upgrade_store
from tuner.store.health import check_store
from tuner.store.repository import Repository
from tuner.store.tables import measurements, metadata

OURS = {*metadata.tables, schema.VERSION_TABLE}


@contextmanager
def engine_at(url: str) -> Iterator[Engine]:
    engine = make_engine(locate(url))
    try:
        yield engine
    finally:
        engine.dispose()


def contents(url: str) -> dict[str, list[Any]]:
    """Every row of every table of a database."""
    with engine_at(url) as engine, engine.connect() as connection:
        names = inspect(connection).get_table_names()
        return {
            name: [tuple(row) for row in connection.execute(text(f"SELECT * FROM {name}"))]
            for name in names
        }


def run(url: str, statement: str) -> None:
    with engine_at(url) as engine, engine.begin() as connection:
        connection.execute(text(statement))


def fill(url: str) -> None:
    with open_store(url) as store:
        store.add([measurement(), measurement(samples_us=(1.5,), race="r")])
        store.finish_shape(outcome())


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """The migrations with one more, as a later release would have it."""
    scripts = tmp_path / "migrations of 100%"
    shutil.copytree(schema.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    (scripts / "versions" / "0004_memory_clock.py").write_text(
        '"""Rows before this one stay NULL: nobody looked."""\n'
        "import sqlalchemy as sa\n"
        "from alembic import op\n"
        'revision, down_revision = "0004", "0003"\n'
        "def upgrade():\n"
        '    op.add_column("measurements", sa.Column("memory_clock_mhz", sa.BigInteger()))\n'
        "def downgrade():\n"
        '    op.drop_column("measurements", "memory_clock_mhz")\n'
    )
    return scripts


@pytest.fixture
def first_release(tmp_path: Path) -> Path:
    """The migrations as the first release had them."""
    scripts = tmp_path / "migrations of the first release"
    shutil.copytree(schema.MIGRATIONS, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    for script in (scripts / "versions").glob("0*.py"):
        if script.stem != "0001_measurements":
            script.unlink()
    return scripts


def test_the_migrations_make_the_tables_that_the_code_expects(bare_database_url: str) -> None:
    assert upgrade_store(bare_database_url) == schema.Revision(None, "0003")
    with engine_at(bare_database_url) as engine, engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        assert set(inspect(connection).get_table_names()) == OURS


def test_extents_have_64_bit_columns(database_url: str) -> None:
    upgrade_store(database_url)
    with engine_at(database_url) as engine, engine.connect() as connection:
        columns = {
            c["name"]: str(c["type"]) for c in inspect(connection).get_columns("measurements")
        }
    assert [columns[name] for name in ("m", "n", "k", "sms")] == ["BIGINT"] * 4


def test_every_identity_column_is_there_and_never_null(database_url: str) -> None:
    upgrade_store(database_url)
    identity = "m n k dtype layout d epilogue sms device_key protocol contender config_hash"
    with engine_at(database_url) as engine, engine.connect() as connection:
        nullable = {
            c["name"]: c["nullable"] for c in inspect(connection).get_columns("measurements")
        }
    for name in (*identity.split(), "kernel_hash", "nvrtc_version", "numerics"):
        assert nullable[name] is False, name


def test_going_down_removes_our_tables_and_up_again_starts_empty(database_url: str) -> None:
    fill(database_url)
    run(database_url, "CREATE TABLE notes (line TEXT)")
    with engine_at(database_url) as engine, engine.begin() as connection:
        schema.downgrade(connection, "base")
    left = contents(database_url)
    assert set(left) == {"notes", schema.VERSION_TABLE}
    assert left[schema.VERSION_TABLE] == []
    fill(database_url)
    with open_store(database_url) as store:
        assert store.watermark() == (2, 1)


def test_an_older_database_is_brought_up_with_its_rows_and_taken_back(
    database_url: str, next_release: Path
) -> None:
    fill(database_url)
    before = contents(database_url)
    with engine_at(database_url) as engine:
        stood = upgrade(engine, locate(database_url), next_release)
        assert stood == schema.Revision("0003", "0004")
        with engine.connect() as connection:
            assert connection.execute(text("SELECT memory_clock_mhz FROM measurements")).all() == [
                (None,),
                (None,),
            ]
            assert len(connection.execute(select(measurements)).all()) == 2
        with engine.begin() as connection:
            schema.downgrade(connection, "0003", next_release)
    assert contents(database_url) == before


def test_a_database_of_the_first_release_keeps_its_rows_and_can_lease_and_publish(
    bare_database_url: str, first_release: Path
) -> None:
    location = locate(bare_database_url)
    with engine_at(bare_database_url) as engine:
        upgrade(engine, location, first_release)
        with Repository(engine, str(location)) as store:
            store.add([measurement(), measurement(samples_us=(1.5,), race="r")])
            store.finish_shape(outcome())
    before = contents(bare_database_url)
    assert (len(before["measurements"]), len(before["shape_outcomes"])) == (2, 1)
    assert "leases" not in before

    assert upgrade_store(bare_database_url) == schema.Revision("0001", "0003")
    after = contents(bare_database_url)
    new = {"leases", "misses", "jobs", "generations", "publications"}
    assert {name: after[name] for name in new} == {name: [] for name in new}
    kept = before.keys() - {schema.VERSION_TABLE}
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}

    publish(bare_database_url)
    with engine_at(bare_database_url) as engine, engine.begin() as connection:
        schema.downgrade(connection, "0001")
    assert contents(bare_database_url) == before
    with engine_at(bare_database_url) as engine:
        assert upgrade(engine, location, first_release).is_head
    publish(bare_database_url)


def publish(url: str) -> None:
    """A published generation, as bare rows."""
    upgrade_store(url)
    run(
        url,
        "INSERT INTO generations VALUES "
        "('5eed', 'sm90', '2026-03-01 12:00:00.000000', 'me', NULL, '', 0, '')",
    )
    run(
        url,
        "INSERT INTO publications VALUES "
        "(1, 'sm90', '5eed', '2026-03-01 12:00:00.000000', 'me', 'first')",
    )


@pytest.mark.parametrize("table", ["generations", "publications"])
def test_what_was_published_cannot_be_changed(database_url: str, table: str) -> None:
    publish(database_url)
    with pytest.raises(DBAPIError, match=f"{table} never change"):
        run(database_url, f"UPDATE {table} SET device_key = 'another'")
    run(database_url, f"DELETE FROM {table}")
    assert contents(database_url)[table] == []


def test_of_an_older_sqlite_database_a_copy_is_kept(tmp_path: Path, next_release: Path) -> None:
    path = tmp_path / "tuner.db"
    fill(f"sqlite:///{path}")
    before = contents(f"sqlite:///{path}")
    (tmp_path / "tuner.db.schema-0003.backup").write_text("somebody's file")
    with engine_at(f"sqlite:///{path}") as engine:
        upgrade(engine, locate(f"sqlite:///{path}"), next_release)
    assert contents(f"sqlite:///{tmp_path / 'tuner.db.schema-0003-2.backup'}") == before
    assert (tmp_path / "tuner.db.schema-0003.backup").read_text() == "somebody's file"


def test_without_room_for_a_copy_an_older_database_stays_as_it_is(
    tmp_path: Path, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'tuner.db'}"
    fill(url)
    before = contents(url)

    def full(path: Path, label: str) -> Path:
        raise sqlite3.OperationalError(f"database or disk is full: {path.name} {label}")

    monkeypatch.setattr(sqlite_file, "back_up", full)
    with engine_at(url) as engine, pytest.raises(StoreError, match=r"not upgraded.*disk is full"):
        upgrade(engine, locate(url), next_release)
    assert contents(url) == before


def test_a_failing_migration_leaves_the_database_as_it_was(
    database_url: str, next_release: Path
) -> None:
    fill(database_url)
    before = contents(database_url)
    script = next_release / "versions" / "0004_memory_clock.py"
    half = '    op.execute("INSERT INTO nowhere VALUES (1)")\ndef downgrade'
    script.write_text(script.read_text().replace("def downgrade", half))
    with engine_at(database_url) as engine, pytest.raises(StoreError, match="nowhere"):
        upgrade(engine, locate(database_url), next_release)
    assert contents(database_url) == before


def test_a_newer_database_is_refused_with_both_versions_and_nothing_written(
    database_url: str,
) -> None:
    fill(database_url)
    run(database_url, f"UPDATE {schema.VERSION_TABLE} SET version_num = '0917'")
    before = contents(database_url)
    path = locate(database_url).path
    raw = path.read_bytes() if path else None
    for attempt in (open_store, upgrade_store):
        with pytest.raises(StoreError) as raised:
            attempt(database_url)
        message = str(raised.value)
        assert "has schema 0917, made by a newer gemm-tuner" in message
        assert f"{__version__}, knows schemas up to 0003" in message
    assert contents(database_url) == before
    assert path is None or path.read_bytes() == raw
    assert "0917" in check_store(database_url).problems[0]


def test_a_table_of_somebody_else_under_our_name_is_left_alone(bare_database_url: str) -> None:
    run(bare_database_url, "CREATE TABLE runs (experiment TEXT)")
    run(bare_database_url, "INSERT INTO runs VALUES ('theirs')")
    with pytest.raises(StoreError, match="has a table runs that gemm-tuner did not make"):
        open_store(bare_database_url)
    assert contents(bare_database_url) == {"runs": [("theirs",)]}


def optuna_study(url: str) -> list[float]:
    """Open the study in the database, run two trials, and return all values so far."""
    plain = str(locate(url).url.render_as_string(hide_password=False))
    storage = optuna.storages.RDBStorage(plain)
    study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=2)
    values = [trial.values[0] for trial in study.trials]
    storage.remove_session()
    storage.engine.dispose()
    return values


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize("ours_first", [True, False])
def test_an_optuna_study_in_the_same_database_is_harmless(
    bare_database_url: str, ours_first: bool
) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    for step in (fill, optuna_study) if ours_first else (optuna_study, fill):
        step(bare_database_url)
    assert len(optuna_study(bare_database_url)) == 4
    with open_store(bare_database_url) as store:
        assert len(store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])) == 2
        assert store.latest_outcome(PROBLEM, DEVICE_KEY) == outcome()
    with engine_at(bare_database_url) as engine, engine.begin() as connection:
        schema.downgrade(connection, "base")
    assert len(optuna_study(bare_database_url)) == 6


def test_threads_that_open_one_empty_database_make_it_once(bare_database_url: str) -> None:
    def work(number: int) -> None:
        with open_store(bare_database_url) as store:
            store.add([measurement(worker=str(number))])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    with open_store(bare_database_url) as store:
        assert store.watermark()[0] == 6


def test_tables_that_another_process_makes_between_two_looks_are_not_foreign(
    postgres_databases: Databases, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_databases.bare()

    def inspected_later(connection: Connection) -> Inspector:
        monkeypatch.undo()
        assert upgrade_store(url).current is None
        return inspect(connection)

    monkeypatch.setattr(schema, "inspect", inspected_later)
    with open_store(url) as store:
        assert store.watermark() == (0, 0)


def test_migrations_come_with_the_package() -> None:
    code = "import tuner.migrations as m; print(m.__name__, m.__file__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    name, file = found.stdout.split(maxsplit=1)
    assert name == "tuner.migrations"
    assert Path(file.strip()).parts[-3:] == ("tuner", "migrations", "__init__.py")
    assert sorted(p.stem for p in (schema.MIGRATIONS / "versions").glob("0*.py")) == [
        "0001_measurements",
        "0002_leases_and_generations",
        "0003_jobs",
    ]


def test_a_database_of_another_journal_mode_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "tuner.db"
    fill(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    with open_store(f"sqlite:///{path}") as store:
        assert store.watermark() == (2, 1)
