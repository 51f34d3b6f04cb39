import errno
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tuner.compiler.cache import CubinCache, Entry, cache_key
from tuner.compiler.nvrtc import Compilation
from tuner.compiler.source import TranslationUnit
from tuner.errors import CompileError

KEY = "ab" * 32
CUBIN = bytes(range(256)) * 8
COMPILATION = Compilation(CUBIN, "ptxas info    : Used 168 registers")


@pytest.fixture
def cache(tmp_path: Path) -> CubinCache:
    return CubinCache(tmp_path)


def lock(cache: CubinCache, wait_s: float = 5.0) -> None:
    """Take the lock of KEY and let go of it."""
    with cache.locked(KEY, wait_s, threading.Event()):
        pass


def test_what_was_never_compiled_is_not_found_and_looking_makes_no_folder(tmp_path: Path) -> None:
    assert CubinCache(tmp_path / "new").find(KEY, 60) is None
    assert list(tmp_path.iterdir()) == []


def test_a_cubin_is_found_again_with_its_log_and_time(cache: CubinCache, tmp_path: Path) -> None:
    kept = cache.keep(KEY, COMPILATION, seconds=0.7)
    assert kept.cubin is not None
    assert kept.cubin.read_bytes() == CUBIN
    assert CubinCache(tmp_path).find(KEY, 60) == kept
    assert kept == Entry(COMPILATION.log, 0.7, tmp_path / "ab" / f"{KEY}.cubin")


def test_a_refusal_is_found_again(cache: CubinCache) -> None:
    cache.keep(KEY, Compilation(None, "gemm_sm90.cu(1): error: no"), seconds=0.1)
    assert cache.find(KEY, 60) == Entry("gemm_sm90.cu(1): error: no", 0.1)


def test_too_slow_for_a_deadline_is_known_for_it_and_shorter_ones_but_not_for_longer_ones(
    cache: CubinCache,
) -> None:
    cache.keep_timeout(KEY, 30.0)
    for deadline in (30.0, 5.0):
        found = cache.find(KEY, deadline)
        assert found is not None
        assert found.timeout_s == 30.0
    assert cache.find(KEY, 31.0) is None
    cache.keep(KEY, COMPILATION, seconds=30.5)
    found = cache.find(KEY, 5.0)
    assert found is not None
    assert found.cubin is not None


def damage(content: bytes) -> list[bytes]:
    """Nothing, a part, one bit flipped anywhere of note, and something else entirely."""
    flipped = [
        content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :]
        for i in range(0, len(content), max(len(content) // 64, 1))
    ]
    return [b"", content[:1], content[: len(content) // 2], content[:-1], *flipped, b"null", b"[]"]


@pytest.mark.parametrize("suffix", ["cubin", "json"])
def test_a_damaged_entry_is_a_miss_and_is_rebuilt(
    cache: CubinCache, tmp_path: Path, suffix: str
) -> None:
    kept = cache.keep(KEY, COMPILATION, seconds=0.7)
    file = tmp_path / "ab" / f"{KEY}.{suffix}"
    intact = file.read_bytes()
    for content in damage(intact):
        file.write_bytes(content)
        assert cache.find(KEY, 60) is None, content
    file.unlink()
    assert cache.find(KEY, 60) is None
    cache.keep(KEY, COMPILATION, seconds=0.7)
    assert cache.find(KEY, 60) == kept
    assert file.read_bytes() == intact


def test_an_entry_of_another_format_is_a_miss(cache: CubinCache, tmp_path: Path) -> None:
    cache.keep(KEY, COMPILATION, seconds=0.7)
    record = tmp_path / "ab" / f"{KEY}.json"
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "format": "gemm-tuner-cubin/0"}))
    assert cache.find(KEY, 60) is None


def test_the_key_depends_on_everything_that_decides_the_machine_code() -> None:
    unit = TranslationUnit("main", {"a.cuh": "x", "b.cuh": "y"})
    key = cache_key(unit, "13.0.88")
    assert cache_key(TranslationUnit("main", {"b.cuh": "y", "a.cuh": "x"}), "13.0.88") == key
    others = [
        cache_key(unit, "13.0.89"),
        cache_key(TranslationUnit("main ", unit.headers), "13.0.88"),
        cache_key(TranslationUnit("main", {"a.cuh": "y", "b.cuh": "x"}), "13.0.88"),
        cache_key(TranslationUnit("main", {"a.cuh": "x"}), "13.0.88"),
        cache_key(TranslationUnit("main", {"a.cuh": "xb.cuhy"}), "13.0.88"),
    ]
    assert len({key, *others}) == 6


def test_a_lock_file_left_by_a_process_that_was_killed_holds_nobody_up(
    cache: CubinCache, tmp_path: Path
) -> None:
    (tmp_path / "ab").mkdir()
    file = tmp_path / "ab" / f"{KEY}.lock"
    script = (
        "import fcntl, sys, time; f = open(sys.argv[1], 'w'); "
        "fcntl.flock(f, fcntl.LOCK_EX); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, file], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CompileError, match="another process has held"):
            lock(cache, wait_s=0.1)
        holder.kill()
    assert file.exists()
    lock(cache, wait_s=0.1)


def test_waiting_for_a_lock_ends_with_a_sentence_that_names_the_file(
    cache: CubinCache, tmp_path: Path
) -> None:
    (tmp_path / "ab").mkdir()
    file = tmp_path / "ab" / f"{KEY}.lock"
    with file.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        started = time.monotonic()
        with pytest.raises(CompileError) as caught:
            lock(cache, wait_s=0.2)
    assert 0.2 <= time.monotonic() - started < 30
    assert str(caught.value) == (
        f"another process has held {file} for 0.2 s. Wait for it, end it, or set TUNER_CACHE_DIR "
        "to a folder of your own."
    )


def test_waiting_for_a_lock_is_given_up_when_told_to_stop(
    cache: CubinCache, tmp_path: Path
) -> None:
    (tmp_path / "ab").mkdir()
    stop = threading.Event()
    stop.set()
    with (tmp_path / "ab" / f"{KEY}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(CompileError, match="was given up"),
            cache.locked(KEY, 60.0, stop),
        ):
            pass


def test_the_lock_keeps_threads_of_one_process_apart_too(cache: CubinCache) -> None:
    with (
        cache.locked(KEY, 5, threading.Event()),
        pytest.raises(CompileError, match="another process has held"),
    ):
        lock(cache, wait_s=0.1)


def test_a_temporary_file_of_a_killed_writer_is_removed_by_the_next(
    cache: CubinCache, tmp_path: Path
) -> None:
    (tmp_path / "ab").mkdir()
    leftover = tmp_path / "ab" / f"{KEY}.cubin.0123.tmp"
    of_another = tmp_path / "ab" / f"{'ab' + KEY[2:-1]}c.cubin.0123.tmp"
    for file in (leftover, of_another):
        file.write_bytes(b"half")
    lock(cache)
    assert not leftover.exists()
    assert of_another.exists()


ACTIONS: list[Callable[[CubinCache], object]] = [
    lambda cache: cache.keep(KEY, COMPILATION, 0.7),
    lambda cache: cache.keep_timeout(KEY, 30.0),
    lock,
]


@pytest.mark.parametrize("act", ACTIONS)
def test_a_folder_that_cannot_be_made_is_named_with_the_setting_that_moves_it(
    tmp_path: Path, act: Callable[[CubinCache], object]
) -> None:
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cubins"
    with pytest.raises(CompileError) as caught:
        act(CubinCache(folder))
    assert str(caught.value) == (
        f"compiled kernels cannot be kept in {folder}: Not a directory. Set TUNER_CACHE_DIR to a "
        "folder with room that you may write to."
    )


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that other users may enter, as they may not enter pytest's own."""
    with tempfile.TemporaryDirectory(prefix="tuner-cache-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_a_read_only_folder_still_serves_what_it_holds_and_refuses_the_rest_in_a_sentence(
    shared_folder: Path,
) -> None:
    CubinCache(shared_folder).keep(KEY, COMPILATION, seconds=0.7)
    shared_folder.chmod(0o555)
    script = f"""
import os, sys, threading
from pathlib import Path
from tuner.compiler.cache import CubinCache
from tuner.errors import CompileError
if os.getuid() == 0:
    os.setuid(65534)  # root may write anywhere
cache = CubinCache(Path(sys.argv[1]))
assert cache.find({KEY!r}, 60) is not None
try:
    with cache.locked("cd" * 32, 1, threading.Event()):
        pass
except CompileError as error:
    print(error)
"""
    command = [sys.executable, "-c", script, str(shared_folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    shared_folder.chmod(0o755)
    assert (done.stderr, done.stdout) == (
        "",
        f"compiled kernels cannot be kept in {shared_folder}: Permission denied. Set "
        "TUNER_CACHE_DIR to a folder with room that you may write to.\n",
    )


def test_a_full_disk_is_a_sentence_and_leaves_no_part_of_a_file(
    cache: CubinCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(
            CompileError,
            match=r"No space left on device\. Free some space, or set TUNER_CACHE_DIR to",
        ):
            cache.keep(KEY, COMPILATION, seconds=0.7)
    assert list((tmp_path / "ab").iterdir()) == []
    assert cache.find(KEY, 60) is None


def test_readers_never_see_part_of_an_entry_while_it_is_written_over(cache: CubinCache) -> None:
    cache.keep(KEY, COMPILATION, seconds=0.7)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            cache.keep(KEY, COMPILATION, seconds=0.7)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen = {cache.find(KEY, 60) for _ in range(300)}
    finally:
        done.set()
        writer.join()
    assert seen == {cache.find(KEY, 60)}
