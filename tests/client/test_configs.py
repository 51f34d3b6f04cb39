"""Look-ups, what they remember, and the one warning."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.bad_servers import refusing
from tests.client.conftest import Client
from tests.lookup.measured import H200, SQUARE, known, launched, measured, problem
from tuner.client import TunedConfigs, __main__, process
from tuner.client.process import Process
from tuner.client.settings import ClientSettings
from tuner.entry import body_of, key_of, on_terms
from tuner.lookup import Book, find
from tuner.lookup.entries import entry_of
from tuner.lookup.snapshot import Snapshot, build_snapshot
from tuner.lookup.terms import ALL_TERMS
from tuner.shape import GemmShape
from tuner.shape_files import parse_shapes

Ship = Callable[[Snapshot], None]
TUNED = (4096, 4096, 4096)
FORTY = [(64 * number, 1024, 512) for number in range(1, 41)]
UNSUPPORTED = (64, 64, 20)


@pytest.fixture
def configs(client: Client, ships: Ship, snapshot: Snapshot) -> TunedConfigs:
    ships(snapshot)
    return client()


def test_a_look_gives_what_the_full_rules_give_for_every_problem_on_all_terms(
    configs: TunedConfigs, snapshot: Snapshot
) -> None:
    book = Book.from_snapshot(snapshot)
    for tuned in book.problems:
        for terms in ALL_TERMS:
            shape = tuned.shape
            best = configs.best_config(
                *(shape.m, shape.n, shape.k),
                d=tuned.d,
                sms=tuned.sms,
                protocol=terms.protocol,
                numerics=terms.numerics,
                launch="plain" if terms.plain else "any",
            )
            found = find(
                tuned,
                {H200: book},
                device_key=H200,
                protocol=terms.protocol,
                numerics=terms.numerics,
                plain=terms.plain,
            )
            assert best.answer == found.to_json()  # type: ignore[union-attr]


def test_the_json_of_an_entry_is_that_of_its_answer() -> None:
    for best, under in known():
        for answer in (best, *under.values()):
            entry = entry_of(answer)
            told = on_terms({**entry, "under": {}}, "")
            assert told == entry
            body = body_of(told, answer.device_key, answer.device_name, stale=False)
            assert body == answer.to_json()
            shape = answer.problem.shape
            assert key_of(entry)[:4] == (shape.m, shape.n, shape.k, answer.problem.sms)


def test_a_repeated_question_gets_the_answer_that_it_got(configs: TunedConfigs) -> None:
    for shape in (TUNED, (4000, 4096, 4096), UNSUPPORTED):
        assert configs.best_config(*shape) is configs.best_config(*shape)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"m": 0}, "m must be between 1 and 2147483647; 0 is not."),
        ({"m": 2**63}, "m must be between 1 and 2147483647"),
        ({"m": "4096"}, "'4096' is not a whole number."),
        ({"m": 4096.5}, "'4096.5' is not a whole number."),
        ({"m": None}, "'None' is not a whole number."),
        ({"m": [1]}, "'[1]' is not a whole number."),
        ({"d": "diagonal"}, "d must be one of row, col, not 'diagonal'."),
        ({"launch": "plian"}, "launch must be one of any, plain"),
        ({"numerics": "bogus"}, "numerics must be one of"),
        ({"match": "some"}, "match must be one of"),
        ({"protocol": "hot"}, "protocol must be one of"),
        ({"sms": 500}, "The device has 132 multiprocessors, fewer than sms=500."),
        ({"sms": -1}, ""),
    ],
)
def test_what_cannot_be_asked_has_a_reason_and_no_exception(
    asked: dict[str, object], reason: str, configs: TunedConfigs
) -> None:
    best = configs.best_config(**{"m": 4096, "n": 4096, "k": 4096, **asked})  # type: ignore[arg-type]
    assert (best.tier, best.source, best.config) == ("none", "default", None)
    assert reason in best.reason
    assert best.reason


def test_shapes_of_other_types_are_looked_up_alike(configs: TunedConfigs) -> None:
    class Dimension:
        def __index__(self) -> int:
            return 4096

    extent: int = Dimension()  # type: ignore[assignment]
    assert configs.best_config(extent, extent, extent).tier == "exact"
    (best,) = configs.best_configs([GemmShape(*TUNED)])
    assert best.config == configs.best_config(*TUNED).config


def test_forty_missing_shapes_are_one_warning_with_a_count_and_the_command_that_tunes_them(
    configs: TunedConfigs, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shapes = [*FORTY, TUNED, UNSUPPORTED, TUNED]
    answers = list(configs.best_configs(shapes))
    assert [best.shape for best in answers] == shapes
    for shape in FORTY:
        configs.best_config(*shape)
    configs.report()
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("tuner.client", logging.WARNING)
    said = record.getMessage()
    assert f"42 shapes were looked up for {H200}: " in said
    assert "1 exact" in said
    assert "1 cannot be tuned" in said
    command = "To tune the 40 missing: tuner run --shapes "
    path = Path(said.partition(command)[2].split()[0])
    assert path.parent == cache
    written = parse_shapes(path.read_bytes(), str(path)).shapes
    assert [(s.m, s.n, s.k) for s in written] == FORTY


def test_without_a_place_for_a_file_the_command_holds_the_shapes(
    client: Client, ships: Ship, snapshot: Snapshot, cache: Path
) -> None:
    ships(snapshot)
    cache.parent.write_text("no folder")
    configs = client()
    list(configs.best_configs([(64, 1024, 512), (128, 1024, 512)]))
    command = (
        "printf '64 1024 512\\n128 1024 512\\n' > missing.txt && tuner run --shapes missing.txt"
    )
    assert command in configs.summary()


def test_what_is_tuned_is_worth_no_warning(
    configs: TunedConfigs, caplog: pytest.LogCaptureFixture
) -> None:
    list(configs.best_configs([TUNED, (2048, 2048, 2048)]))
    assert (configs.summary(), caplog.records) == ("", [])


def test_of_eight_ranks_one_warns(
    client: Client,
    ships: Ship,
    snapshot: Snapshot,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ships(snapshot)
    for rank in range(8):
        monkeypatch.setenv("RANK", str(rank))
        list(client().best_configs(FORTY))
    assert len(caplog.records) == 1


def test_warnings_as_errors_and_a_handler_that_fails_do_not_reach_the_program(
    configs: TunedConfigs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    assert len(list(configs.best_configs(FORTY))) == 40  # filterwarnings = error


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TUNER_API_ULR", "TUNER_API_URL"),
        ("TUNER_OFLINE", "TUNER_OFFLINE"),
        ("TUNER_GENERATON", "TUNER_GENERATION"),
    ],
)
def test_a_setting_that_is_misspelt_is_named(name: str, meant: str) -> None:
    settings = ClientSettings.from_environment({name: "http://tuner.example"})
    assert settings.problems == (f"{name} is read by nothing; {meant} may be meant.",)


def test_settings_of_the_rest_of_the_project_are_not_taken_for_misspelt() -> None:
    names = ("TUNER_DATABASE_URL", "TUNER_API_TOKEN", "TUNER_RATE_LIMIT", "TUNER_WORKERS")
    assert ClientSettings.from_environment(dict.fromkeys(names, "1")).problems == ()


@pytest.mark.parametrize("url", ["tuner:8000", "ftp://tuner", "file:///etc/passwd", "//tuner"])
def test_a_url_of_another_kind_is_refused_and_named(url: str, client: Client) -> None:
    configs = client(api_url=url)
    assert "must begin with http://" in configs.problems[0]


@pytest.mark.parametrize("url", ["http://", "http://:80", "http://a b", "http://[", "http://t:x"])
def test_a_url_without_a_server_is_named(
    url: str, client: Client, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    configs = client(api_url=url)
    assert configs.source == "shipped"
    assert configs.problems[0].startswith((f"{url} ", "the URL of the service must begin"))


def test_threads_that_ask_at_once_load_once(
    monkeypatch: pytest.MonkeyPatch, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    loads: list[int] = []
    meet = threading.Barrier(16)
    whole = process._loaded

    def counted(*given: object, **chosen: object) -> TunedConfigs:
        loads.append(1)
        return whole(*given, **chosen)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "_loaded", counted)
    shared, found = Process(), []

    def ask() -> None:
        meet.wait()
        chosen = dict.fromkeys(("url", "file", "generation", "strict", "kernel_hash"))
        found.append(shared.configs(None, **chosen).best_config(4000, 4096, 4096))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert all(best == found[0] for best in found)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_looks_up_and_loads_though_a_thread_held_the_lock(
    configs: TunedConfigs,
) -> None:
    shared = Process()
    chosen = dict.fromkeys(("url", "file", "generation", "strict", "kernel_hash"))
    (lock,) = shared._locks.values()
    lock.acquire()
    child = os.fork()
    if child == 0:
        try:
            own = shared.configs(None, **chosen).best_config(*TUNED)
            same = configs.best_config(4000, 4096, 4096).tier == "nearest"
            os._exit(0 if own.tier == "exact" and same else 1)
        except BaseException:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_command_tells_the_source_and_the_id_to_pin(
    capsys: pytest.CaptureFixture[str],
    ships: Ship,
    snapshot: Snapshot,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ships(snapshot)
    monkeypatch.setattr(process, "_PROCESS", Process())
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path))
    assert __main__.main(["--generation"]) == 0
    assert capsys.readouterr().out == f"{snapshot.id}\n"
    assert __main__.main([]) == 0
    assert '"source": "shipped"' in capsys.readouterr().out
    assert __main__.main(["64", "64", "20"]) == 1
    assert "multiple of 8" in capsys.readouterr().out
    monkeypatch.setenv("TUNER_STRICT", "1")
    monkeypatch.setattr(process, "_PROCESS", Process())
    with refusing() as nobody:
        monkeypatch.setenv("TUNER_API_URL", nobody.url)
        assert __main__.main(["--generation"]) == 1
    assert "did not answer" in capsys.readouterr().err


def test_an_extent_between_tuned_ones_says_which_lent_it_its_config_and_a_far_one_has_none(
    client: Client, tmp_path: Path
) -> None:
    told = []
    for m in (1, 2, 4, 8, 1024, 2048):
        asked = problem(m, 4096, 4096)
        told.append(measured(asked, launched(SQUARE, asked)))
    path = tmp_path / "rows.json"
    path.write_bytes(build_snapshot(H200, "NVIDIA H200", told).body)
    configs = client(config_file=str(path))
    for m, tier, lender in ((2001, "nearest", 2048), (4096, "nearest", 2048), (8, "exact", None)):
        best = configs.best_config(m, 4096, 4096)
        assert best.answer is not None
        came_from = best.answer["match"]["from_shape"]
        assert (best.tier, came_from and came_from["m"]) == (tier, lender)
    assert configs.best_config(9, 4096, 4096).tier in ("nearest", "model")
    far = configs.best_config(2**31 - 1, 8, 8)
    assert (far.tier, far.config) == ("none", None)
    assert "no shape within 6 doublings" in far.reason


@pytest.mark.parametrize("shape", [(1, 2), (1, 2, 3, 4), "4096", None, [4096, 4096]])
def test_what_is_no_shape_of_a_model_has_a_reason_and_the_others_their_answers(
    shape: object, configs: TunedConfigs
) -> None:
    wrong, right = configs.best_configs([shape, list(TUNED)])  # type: ignore[list-item]
    assert (wrong.tier, right.tier) == ("none", "exact")
    assert "is not a whole number" in wrong.reason
