"""What a machine keeps: shared by its processes, and never taken for more than it is."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bad_servers import behaving, refusing, sending, snapshot_response
from benchmarks.client_processes import ended, start
from tests.client.conftest import Client
from tests.lookup.measured import H200
from tuner.client.cache import Asked, Cache
from tuner.client.settings import ClientSettings
from tuner.client.sources import shipped
from tuner.client.told import Told, packed
from tuner.lookup.snapshot import Snapshot
from tuner.lookup.terms import ALL_TERMS

TUNED = (4096, 4096, 4096)
CUT_OFF = Path(__file__).parent.parent / "data" / "malformed" / "cut-off.txt"
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "cut in the middle": lambda good: good[: len(good) // 2],
    "another file": lambda _: CUT_OFF.read_bytes(),
    "one byte changed": lambda good: good[:300] + bytes([good[300] ^ 1]) + good[301:],
    "no snapshot": lambda _: packed(b'{"entries": 3}'),
    "not text": lambda _: os.urandom(500),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_a_miss_and_is_replaced(
    damage: str, client: Client, snapshot: Snapshot, cache: Path
) -> None:
    with behaving(sending(snapshot_response(snapshot.body))) as server:
        client(H200, api_url=server.url)
        (kept,) = cache.glob("*.lines.gz")
        good = kept.read_bytes()
        kept.write_bytes(DAMAGE[damage](good))
        best = client(H200, api_url=server.url).best_config(*TUNED)
        assert (best.source, best.generation, server.requests) == ("server", snapshot.id, 2)
        assert kept.read_bytes() == good


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"url": 3}', b"\xff", b"[" * 100_000])
def test_a_damaged_note_of_what_was_asked_is_none(
    content: bytes, client: Client, snapshot: Snapshot, cache: Path
) -> None:
    with behaving(sending(snapshot_response(snapshot.body))) as server:
        client(H200, api_url=server.url)
        (note,) = cache.glob("asked-*.json")
        note.write_bytes(content)
        assert client(H200, api_url=server.url).source == "server"
        assert server.requests == 2


def test_a_note_of_the_future_or_of_another_server_says_nothing(
    client: Client, snapshot: Snapshot, cache: Path
) -> None:
    with behaving(sending(snapshot_response(snapshot.body))) as server:
        client(H200, api_url=server.url)
        Cache([str(cache)]).note(server.url, H200, Asked(2e12, snapshot.id))
        assert client(H200, api_url=server.url).source == "server"
        assert server.requests == 2
    with refusing() as other:
        configs = client(H200, api_url=other.url)
        assert (configs.source, len(configs.problems)) == ("default", 2)


def test_a_cache_that_cannot_be_made_costs_a_request_and_nothing_else(
    client: Client, snapshot: Snapshot, cache: Path
) -> None:
    cache.parent.write_text("a file where the folder should be")
    with behaving(sending(snapshot_response(snapshot.body))) as server:
        for requests in (1, 2):
            assert client(H200, api_url=server.url).best_config(*TUNED).source == "server"
            assert server.requests == requests


def test_a_folder_that_others_may_write_to_is_not_trusted(tmp_path: Path) -> None:
    open_to_all = tmp_path / "client"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    assert Cache([str(open_to_all)]).writable() is None


@pytest.mark.parametrize("home", [None, "", "/nonexistent/home", "/proc"])
def test_without_a_home_that_can_be_written_the_machine_has_a_folder_for_each_user(
    home: str | None,
) -> None:
    settings = ClientSettings.from_environment({} if home is None else {"HOME": home})
    assert settings.folders[-1] == f"/tmp/gemm-tuner-{os.geteuid()}/client"
    if home:
        assert settings.folders[0] == f"{home}/.cache/gemm-tuner/client"


def test_only_the_newest_snapshots_are_kept(cache: Path, snapshot: Snapshot) -> None:
    kept = Cache([str(cache)])
    for number in range(12):
        id = f"{number:064x}"
        kept.keep(id, Told(snapshot.body, checked=True))
        os.utime(cache / f"{id}.lines.gz", (number, number))
    names = sorted(path.name for path in cache.glob("*.lines.gz"))
    assert names == [f"{number:064x}.lines.gz" for number in range(4, 12)]
    assert len(list(cache.iterdir())) == 16  # and a mark for each


def test_threads_that_write_the_same_snapshot_leave_it_whole(
    cache: Path, snapshot: Snapshot
) -> None:
    told, kept = Told(snapshot.body, checked=False), Cache([str(cache)])
    kept.writable()
    threads = [threading.Thread(target=kept.keep, args=(snapshot.id, told)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = kept.snapshot(snapshot.id)
    assert found is not None
    assert (found.body, found.checked) == (snapshot.body, False)
    assert [path.name for path in cache.iterdir()] == [f"{snapshot.id}.lines.gz"]


@pytest.mark.parametrize("id", ["", "../../etc/passwd", "A" * 64, "0" * 63, 3])
def test_what_is_no_id_names_no_file(id: str, cache: Path) -> None:
    assert Cache([str(cache)]).snapshot(id) is None


def test_what_is_kept_answers_as_what_was_fetched_and_has_the_same_bytes(
    snapshot: Snapshot,
) -> None:
    whole = Told(snapshot.body, checked=True)
    kept = Told.from_lines(whole.lines(), checked=True)
    made_for = snapshot.entries[0]["kernel_hash"]
    for key in whole.keys:
        for terms in ALL_TERMS:
            for kernel_hash in (None, made_for, "another"):
                asked = (key, terms.label, kernel_hash)
                assert kept.exact(*asked) == whole.exact(*asked)
    assert kept.exact((1, 2, 8, 132, "bf16", "tn", "row", "none"), "", None) is None
    assert (kept.keys, kept.body, kept.sms) == (whole.keys, snapshot.body, 132)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_lock_file_that_a_dead_process_left_holds_nobody_up(
    client: Client, snapshot: Snapshot, cache: Path
) -> None:
    with behaving(sending(snapshot_response(snapshot.body))) as server:
        child = os.fork()
        if child == 0:
            with Cache([str(cache)]).lock(server.url, H200):
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(child, 0)
        assert list(cache.glob("*.lock"))
        assert client(H200, api_url=server.url).source == "server"


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_process_that_hangs_with_the_lock_costs_the_others_their_patience_and_no_more(
    client: Client, ships: Callable[[Snapshot], None], snapshot: Snapshot, cache: Path
) -> None:
    ships(snapshot)
    with behaving(sending(snapshot_response(snapshot.body))) as server:
        holds, child = os.pipe(), os.fork()
        if child == 0:
            with Cache([str(cache)]).lock(server.url, H200):
                os.write(holds[1], b"held")
                signal.pause()
        try:
            os.read(holds[0], 4)
            configs = client(H200, 0.2, api_url=server.url)
            assert configs.best_config(*TUNED).source == "shipped"
            assert server.requests == 0
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_four_programs_with_a_damaged_cache_and_a_server_that_is_down_are_served(
    tmp_path: Path,
) -> None:
    (id, told), *_ = shipped().items()
    folder = tmp_path / "client"
    with refusing() as nobody:
        kept = Cache([str(folder)])
        kept.keep(id, told)
        kept.note(nobody.url, None, Asked(0, id))
        (file,) = folder.glob("*.lines.gz")
        file.write_bytes(file.read_bytes()[:-200])
        variables = {"TUNER_CACHE_DIR": str(tmp_path), "TUNER_API_URL": nobody.url}
        found = [ended(process) for process in [start(variables) for _ in range(4)]]
        assert {(one.source, one.tier) for one in found} == {("shipped", "exact")}
