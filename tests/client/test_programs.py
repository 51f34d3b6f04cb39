"""Programs that look a config up while they start; the long counts, reduced."""

import sys
from pathlib import Path

import pytest

from benchmarks import client_import, client_servers, ship_snapshot
from benchmarks.bad_servers import behaving, silent
from benchmarks.client_agreement import compare
from benchmarks.client_import import PINNED, starts
from benchmarks.client_processes import ended, start
from tuner.client.sources import shipped
from tuner.client.told import Told, unpacked
from tuner.lookup.snapshot import read_snapshot

HEAVY = ("cuda", "cupy", "numpy", "sqlalchemy", "urllib.request", "http.client", "ssl", "asyncio")


def test_importing_loads_nothing_that_takes_long_and_asks_nobody(tmp_path: Path) -> None:
    checks = "dataclasses typing json re threading logging hashlib socket tuner.lookup tuner.config"
    program = f"""
import sys
from tuner import client
loaded = sorted(n for n in {(*HEAVY, *checks.split())!r} if n in sys.modules)
assert not loaded, loaded
"""
    with behaving(silent) as server:
        variables = {"TUNER_API_URL": server.url, "TUNER_CACHE_DIR": str(tmp_path)}
        started = start({**variables, "TUNER_OFFLINE": "1"}, before=program)
        looked = ended(started)
        assert server.requests == 0
    assert (looked.source, looked.tier, looked.warnings) == ("shipped", "exact", 0)


def test_an_exact_answer_needs_none_of_the_full_rules(tmp_path: Path) -> None:
    program = """
import atexit, sys
def loaded():
    found = sorted(n for n in ("dataclasses", "tuner.lookup", "http.client") if n in sys.modules)
    if found: sys.stderr.write(f"{found}\\n")
atexit.register(loaded)
"""
    looked = ended(start({"TUNER_CACHE_DIR": str(tmp_path)}, before=program))
    assert (looked.tier, looked.warnings) == ("exact", 0)


@pytest.mark.parametrize("home", [None, "/proc", "/nonexistent"])
def test_a_home_that_is_not_there_costs_nothing(home: str | None) -> None:
    looked = ended(start({"HOME": home}))
    assert (looked.source, looked.tier, looked.warnings) == ("shipped", "exact", 0)


def test_the_example_library_has_its_configs_when_it_is_imported(tmp_path: Path) -> None:
    program = f"import sys; sys.path.insert(0, {str(Path(ship_snapshot.ROOT) / 'examples')!r})"
    program += "\nimport tuned_library; print(len(tuned_library.CONFIGS), file=sys.stderr)"
    process = start({"TUNER_CACHE_DIR": str(tmp_path)}, before=program)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    warning, counted = err.splitlines()
    assert (warning.partition(":")[0], counted) == ("gemm-tuner", "6")
    assert '"tier": "exact"' in out


def test_client_and_service_give_the_same_answers() -> None:
    agreement = compare(200, seed=2)
    assert agreement.differ == []
    assert agreement.asked.total() == 200
    assert set(agreement.asked) >= {"exact", "nearest", "model", "none"}


def test_processes_that_start_while_others_publish_agree_when_pinned_and_ask_once() -> None:
    found = [one for one in starts(1, processes=4) if one.how == PINNED]
    (one,) = found
    # On a machine too busy to ask in time, what is shipped is pinned, and nothing was asked.
    assert (one.generations, one.expected, one.requests in (0, 1)) == (1, True, True)


def test_programs_survive_servers_that_misbehave(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["client_servers", "--reduced"])
    assert client_servers.main() == 0, capsys.readouterr().err


def test_a_start_that_cost_more_than_one_request_or_disagreed_is_a_fault() -> None:
    good = client_import.Start(PINNED, 1, True, 1, ["pinned"], 0.1)
    assert client_import.sound(good)
    for bad in ((2, True, 1), (1, False, 1), (1, True, 2)):
        assert not client_import.sound(client_import.Start(PINNED, *bad, ["pinned"], 0.1))


def test_what_is_shipped_is_what_the_command_makes_of_what_was_measured(tmp_path: Path) -> None:
    (said,) = ship_snapshot.ship(
        ship_snapshot.published(ship_snapshot.MEASURED), tmp_path / "snapshots"
    )
    (path,) = (tmp_path / "snapshots").iterdir()
    shipped_now = [file.name for file in (ship_snapshot.PACKAGE / "snapshots").iterdir()]
    assert shipped_now == [path.name]
    assert said.startswith(f"{path.name}: ")
    key, _, id = path.name.removesuffix(".json.gz").partition(".")
    told = Told(unpacked(path.read_bytes()), checked=False)
    assert told.device_key == key
    assert len(read_snapshot(told.body, id).entries) == len(told.keys)


def test_every_shipped_file_is_a_few_mib_at_most() -> None:
    for path in (ship_snapshot.PACKAGE / "snapshots").iterdir():
        assert path.stat().st_size <= ship_snapshot.MOST_BYTES
    assert shipped()
