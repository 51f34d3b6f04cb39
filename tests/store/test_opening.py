"""A database that cannot be used is refused in one sentence and left as it was."""

import multiprocessing
import os
import re
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from time import sleep

import pytest

from tests.databases import Databases
from tests.forks import run_in_a_fork
from tests.store.examples import DEVICE_KEY, PROBLEM, measurement
from tuner.errors import StoreError
from tuner.store import sqlite_file
from tuner.store.engine import locate, make_engine, open_store


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def fill(url: str) -> None:
    with open_store(url) as store:
        store.add([measurement(detail=f"{i} " + "x" * 900) for i in range(200)])


@pytest.fixture
def filled(sqlite_databases: Databases) -> Path:
    """A closed SQLite store of some dozens of pages."""
    path = locate(sqlite_databases.like("dozens_of_pages", fill)).path
    assert path is not None
    return path


def test_a_missing_file_and_its_folder_are_made(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such folder" / "100% new #1.db"
    with open_store(url(path)) as store:
        store.add([measurement()])
    assert path.exists()


def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with open_store(url(path), create=False) as store:
        assert store.devices() == []


def test_a_missing_file_is_not_made_when_it_should_exist(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "tuner.db"
    with pytest.raises(StoreError, match=re.escape(f"there is no database at {path}")):
        open_store(url(path), create=False)
    assert not path.parent.exists()


def test_a_folder_is_refused_and_a_file_in_it_proposed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=re.escape(f"name a file in it, such as {tmp_path}/")):
        open_store(url(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StoreError, match=r"folder .*/file/sub for the database cannot be made"):
        open_store(url(tmp_path / "file" / "sub" / "tuner.db"))


@pytest.mark.parametrize("content", [os.urandom(5000), b"M N K\n1 2 3\n", b"\x00"])
def test_a_file_that_is_no_database_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tuner.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match="is not a SQLite database; it was left as it is"):
        open_store(url(path))
    assert path.read_bytes() == content
    assert [p.name for p in tmp_path.iterdir()] == ["tuner.db"]


@pytest.mark.parametrize("keep", [101, 4096, 0.5, 0.9])
def test_a_database_cut_off_is_refused_untouched(filled: Path, keep: float) -> None:
    whole = filled.read_bytes()
    cut = whole[: int(keep if keep > 1 else keep * len(whole))]
    filled.write_bytes(cut)
    with pytest.raises(StoreError, match=re.escape(f"the database {filled} is damaged")):
        open_store(url(filled))
    assert filled.read_bytes() == cut


def test_random_bytes_in_a_page_are_found_and_left_alone(filled: Path) -> None:
    content = bytearray(filled.read_bytes())
    for page in range(4, len(content) // 4096, 3):
        content[page * 4096 : page * 4096 + 64] = os.urandom(64)
    filled.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged .* it was left as it is"):
        open_store(url(filled))
    assert filled.read_bytes() == content


def test_a_large_database_cut_off_is_found_without_reading_it(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "QUICK_CHECK_LIMIT_BYTES", 1000)
    whole = filled.read_bytes()
    filled.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(StoreError, match=f"of its {len(whole)} bytes are there"):
        open_store(url(filled))
    filled.write_bytes(whole)
    with open_store(url(filled)) as store:
        assert store.watermark() == (200, 0)


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that another user may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory(prefix="tuner-store-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def open_as_nobody(url: str) -> int:
    """Open a database in a process that is not root's, and print why that failed."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        open_store(url)
    except StoreError as error:
        print(error)
    return 0


@pytest.mark.parametrize("exists", [True, False])
def test_a_read_only_folder_is_refused_and_the_file_untouched(
    public_folder: Path, filled: Path, tmp_path: Path, exists: bool
) -> None:
    path = public_folder / "tuner.db"
    if exists:
        path.write_bytes(filled.read_bytes())
        path.chmod(0o444)
    before = path.read_bytes() if exists else None
    public_folder.chmod(0o555)
    run = run_in_a_fork(tmp_path, open_as_nobody, url(path))
    public_folder.chmod(0o755)
    assert run.stderr == ""
    assert (
        f"{public_folder} is read-only, and the database {path} needs to write there" in run.stdout
    )
    assert [p.name for p in public_folder.iterdir()] == (["tuner.db"] if exists else [])
    assert not exists or path.read_bytes() == before


def test_a_database_in_use_can_be_opened_again(filled: Path) -> None:
    with open_store(url(filled)) as first:
        first.add([measurement(detail="new")])
        with open_store(url(filled)) as second:
            assert len(second.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])) == 201


def test_a_write_ahead_log_is_used(filled: Path) -> None:
    with open_store(url(filled)), sqlite3.connect(filled) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_lock_that_is_never_given_up_ends_in_a_sentence(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.engine.BUSY_TIMEOUT_S", 0.1)
    holder = sqlite3.connect(filled, isolation_level=None)
    with open_store(url(filled)) as store:
        holder.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="is kept busy by another process"):
            store.add([measurement()])
        # A reader never waits for the writer.
        assert store.watermark() == (200, 0)
        holder.execute("ROLLBACK")
        store.add([measurement()])
        assert store.watermark() == (201, 0)
    holder.close()


def test_a_reader_in_the_way_of_the_write_ahead_log_is_waited_for(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(filled, isolation_level=None)) as reader:
        reader.execute("PRAGMA journal_mode = DELETE")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM devices").fetchall()
        monkeypatch.setattr("tuner.store.engine.BUSY_TIMEOUT_S", 0.1)
        with pytest.raises(StoreError, match="is kept busy by another process"):
            open_store(url(filled))
        monkeypatch.setattr("tuner.store.engine.BUSY_TIMEOUT_S", 30)
        with ThreadPoolExecutor(1) as pool:
            opened = pool.submit(open_store, url(filled))
            sleep(0.3)
            reader.execute("ROLLBACK")
            with opened.result(30) as store:
                assert store.watermark() == (200, 0)


@pytest.mark.parametrize("text", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(text: str) -> None:
    with pytest.raises(StoreError, match="in memory keeps nothing; name a file"):
        open_store(text)


@pytest.mark.parametrize(
    "text", ["", "tuner.db", "mysql://host/name", "sqlite:/x", "\x00", "postgresql://h:port/x"]
)
def test_a_url_that_is_not_understood_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(StoreError, match=r"write sqlite:///FILE .* or postgresql://"):
        open_store(text)


def test_options_of_a_sqlite_url_are_refused_rather_than_ignored(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="takes no options"):
        open_store(url(tmp_path / "tuner.db") + "?mode=ro")


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_a_postgres_url_is_understood(scheme: str) -> None:
    location = locate(f"{scheme}://me:secret@db/tuner")
    assert location.url.drivername == "postgresql+psycopg"
    assert location.path is None
    assert str(location) == "postgresql+psycopg://me:***@db/tuner"


def test_a_postgres_server_that_is_not_there_is_named_without_the_password(tmp_path: Path) -> None:
    with pytest.raises(StoreError) as raised:
        open_store(f"postgresql://me:secret@/tuner?host={tmp_path}")
    message = str(raised.value)
    assert str(tmp_path.name) in message
    assert "secret" not in message
    assert "\n" not in message


def test_a_postgres_database_that_is_not_there_is_named(postgres_url: str) -> None:
    missing = locate(postgres_url).url.set(database="no_such_database")
    with pytest.raises(StoreError, match='"no_such_database" does not exist'):
        open_store(missing.render_as_string(hide_password=False))


def test_without_the_postgres_driver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"install gemm-tuner\[postgres\]"):
        open_store("postgresql://localhost/tuner")


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
filer:/home /home nfs4 rw 0 0
//nas/x /mnt/team\\040share cifs rw 0 0
tmpfs /home/me/scratch tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/tuner.db", None),
        ("/home/me/tuner.db", "nfs4"),
        ("/homework/tuner.db", None),
        ("/mnt/team share/tuner.db", "cifs"),
        ("/home/me/scratch/tuner.db", None),
    ],
)
def test_the_file_system_of_the_innermost_mount_counts(path: str, kind: str | None) -> None:
    assert sqlite_file.network_file_system(Path(path), MOUNTS) == kind


def test_a_network_file_system_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"filer:/x {tmp_path} nfs rw 0 0\n")
    monkeypatch.setattr(sqlite_file, "MOUNTS", mounts)
    with pytest.raises(StoreError, match=r"network file system \(nfs\).* use Postgres"):
        open_store(url(tmp_path / "tuner.db"))
    assert not (tmp_path / "tuner.db").exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_makes_connections_of_its_own(database_url: str) -> None:
    with open_store(database_url) as store:
        store.add([measurement()])
        context = multiprocessing.get_context("fork")
        child = context.Process(target=store.add, args=([measurement(worker="child")],))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert len(store.attempts(PROBLEM, DEVICE_KEY, sources=["measured"])) == 2


def test_making_an_engine_opens_nothing(tmp_path: Path) -> None:
    engine = make_engine(locate(url(tmp_path / "tuner.db")))
    engine.dispose()
    assert list(tmp_path.iterdir()) == []
