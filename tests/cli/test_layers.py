"""`tuner run --layer`: a few Ms are tuned, and every M between is answered."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer import BadParameter

from tests.cli.conftest import Cli, lines, use_fake
from tests.cli.test_run import Write
from tests.device.fake import H200, FakeCompiler, FakeDevice, Faults, true_us
from tests.device.recordings import recorded_layer, write_recording
from tests.lookup.measured import NARROW, PINGPONG, SQUARE, launched
from tuner.cli.extents import parse_budgets, parse_layer, parse_span
from tuner.lookup.cross_races import Span
from tuner.lookup.layer import at_m
from tuner.lookup.layer_plan import first_ms
from tuner.shape import GemmShape, Problem
from tuner.trial import Sampled

KEY = Problem(GemmShape(1, 2112, 4096), H200.sms)
CONFIGS = [launched(variant, at_m(KEY, 512)) for variant in (NARROW, PINGPONG, SQUARE)]
ON_REPLAY = ("run", "--layer", "2112,4096", "--m", "64..512", "--device")


@pytest.fixture(scope="session")
def layer_recording(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What `--device` takes for a recording of a layer at many Ms."""
    rows = recorded_layer(KEY, range(64, 513, 8), CONFIGS)
    path = write_recording(tmp_path_factory.mktemp("layer") / "layer.jsonl.gz", rows)
    return f"replay:{path}"


def test_a_layer_is_tuned_stored_shown_and_answers_every_m_of_it(
    cli: Cli, layer_recording: str
) -> None:
    ended = cli(*ON_REPLAY, layer_recording)
    assert ended.code == 0
    assert "1 layer, M 64..512 on NVIDIA H200" in ended.err
    assert ended.err.splitlines()[1].startswith("[1/12] 64x2112x4096 ")
    intervals = lines(ended.out, "2112x4096  132  ")
    assert len(intervals) >= 2
    assert intervals[0].split()[2].startswith("64..")
    assert intervals[-1].split()[2].endswith("..512")
    for m in (65, 100, 333, 511):
        best = cli("best", m, 2112, 4096, "--json")
        body = json.loads(best.out)
        assert (best.code, body["match"]["tier"], body["use"]) == (0, "layer", "kernel")
        assert body["confidence"]["expected_regret"]["p95"] <= 0.01
    shown = cli("best", 100, 2112, 4096)
    assert lines(shown.out, "match")[0].split()[1:3] == ["layer,", "from"]
    assert "measured M" in lines(shown.out, "loses")[0]
    assert cli("best", 63, 2112, 4096).code == cli("best", 513, 2112, 4096).code == 3


def test_the_config_of_an_interval_is_within_tolerance_of_the_best_at_measured_ms(
    cli: Cli, layer_recording: str
) -> None:
    body = json.loads(cli(*ON_REPLAY, layer_recording, "--json").out)
    (found,) = body["layers"]
    assert (found["n"], found["k"], found["sms"], found["m"]) == (2112, 4096, 132, [64, 512])
    measured = {shape["m"]: shape["answer"] for shape in body["shapes"]}
    assert set(first_ms(KEY, 64, 512)) <= set(measured)
    assert len(measured) <= 12
    by_dict = {json.dumps(config.to_dict()): config for config in CONFIGS}
    for interval in found["layer"]["intervals"]:
        config = by_dict[json.dumps(interval["config"])]
        for m in interval["measured"]:
            problem = at_m(KEY, m)
            assert true_us(problem, config) <= 1.02 * min(true_us(problem, c) for c in CONFIGS)


def test_the_same_command_again_tunes_nothing(cli: Cli, layer_recording: str) -> None:
    first = cli(*ON_REPLAY, layer_recording, "--json")
    again = cli(*ON_REPLAY, layer_recording, "--json")
    told, retold = json.loads(first.out), json.loads(again.out)
    assert again.err.count("(tuned before)") == len(told["shapes"])
    assert told["layers"] == retold["layers"]
    # The first time, Ms that were added last come last.
    answers, again_answers = (
        {shape["m"]: shape["answer"] for shape in body["shapes"]} for body in (told, retold)
    )
    assert answers == again_answers


def test_a_run_that_is_interrupted_says_so_and_the_same_command_goes_on(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Pressed(FakeDevice):
        left = 30

        def race(self, *asked: object) -> list[Sampled]:
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
            return super().race(*asked)  # type: ignore[arg-type]

    run = ("run", "--layer", "2112,7168", "--m", "16..24", "--device", "cuda:0", "--trials", 4)
    use_fake(monkeypatch, Faults(), device=Pressed())
    stopped = cli(*run)
    assert stopped.code == 130
    assert "Interrupted after" in stopped.err
    use_fake(monkeypatch, Faults())
    ended = cli(*run)
    assert (ended.code, "(tuned before)" in ended.err) == (0, True)
    assert len(lines(ended.out, "2112x7168  132  ")) >= 1


def test_a_layer_that_was_not_recorded_has_no_intervals_and_ends_with_3(
    cli: Cli, layer_recording: str
) -> None:
    ended = cli("run", "--layer", "512,512", "--m", "1..8", "--device", layer_recording)
    assert ended.code == 3
    assert "no intervals" in lines(ended.out, "512x512")[0]


@pytest.mark.usefixtures("fake_gpu")
def test_every_budget_is_tuned_and_asked_for_on_its_own(cli: Cli, shape_file: Write) -> None:
    listing = shape_file("2048 2048 2048\n")
    run = ("run", "--shapes", listing, "--device", "cuda:0", "--trials", 3, "--sms", "132,66")
    ended = cli(*run, "--json")
    shapes = json.loads(ended.out)["shapes"]
    assert (ended.code, [shape["sms"] for shape in shapes]) == (0, [132, 66])
    assert all(shape["answer"]["config"]["num_sms"] <= shape["sms"] for shape in shapes)
    assert [shape["answer"]["sms"] for shape in shapes] == [132, 66]
    shown = cli(*run)
    assert "1 shape, on 132, 66 SMs on NVIDIA H200" in shown.err
    assert "2048x2048x2048 on 66 SMs" in shown.err + shown.out
    few = json.loads(cli("best", 2048, 2048, 2048, "--sms", 66, "--json").out)
    assert (few["sms"], few["match"]["tier"]) == (66, "exact")
    assert cli("best", 2048, 2048, 2048, "--sms", 100).code == 3


def test_a_budget_needs_no_variant_of_its_own(
    cli: Cli, shape_file: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = FakeCompiler()
    use_fake(monkeypatch, Faults(), compiler)
    listing = shape_file("2048 2048 2048\n")
    run = ("run", "--shapes", listing, "--device", "cuda:0", "--trials", 12, "--sms")
    assert cli(*run, "132").code == 0
    assert cli(*run, "131").code == 0
    assert len(set(compiler.submitted)) < len(compiler.submitted)


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("command", ["run", "best"])
def test_a_budget_beyond_the_device_is_a_sentence(
    cli: Cli, shape_file: Write, command: str
) -> None:
    listing = shape_file("512 512 512\n")
    cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 2)
    asked = ("best", 512, 512, 512) if command == "best" else ("run", "--shapes", listing)
    device = () if command == "best" else ("--device", "cuda:0")
    ended = cli(*asked, *device, "--sms", 200)
    assert ended.code == 2
    assert ended.err.strip() == (
        "NVIDIA H200 has 132 multiprocessors, fewer than --sms 200. Name a smaller budget."
    )
    assert ended.out == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--layer", "4096,4096"), "it goes with --m LOW..HIGH"),
        (("--m", "1..8"), "it goes with --layer N,K"),
        (("--layer", "4096", "--m", "1..8"), "is no layer"),
        (("--layer", "4096,0", "--m", "1..8"), "is no layer"),
        (("--layer", "4096,2147483648", "--m", "1..8"), "is no layer"),
        (("--layer", "4096,4096", "--m", "8..1"), "is no range of M"),
        (("--layer", "4096,4096", "--m", "1-8"), "is no range of M"),
        (("--layer", "4096,4096", "--m", "1..100000000"), "Name a narrower range."),
        (("--layer", "4096,4096", "--m", "1..8", "--sms", "0"), "is no list of multiprocessors"),
        (("--layer", "4096,4096", "--m", "1..8", "--sms", "9,,9"), "is no list"),
    ],
)
def test_what_is_not_understood_starts_nothing(
    cli: Cli, layer_recording: str, database: Path, options: tuple[str, ...], told: str
) -> None:
    ended = cli("run", *options, "--device", layer_recording)
    assert ended.code == 2
    assert told in " ".join(ended.err.replace("│", " ").split())
    assert not database.exists() or "narrower" in told


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1), st.sampled_from([",", "x", " , "]))
def test_a_layer_is_named_by_n_and_k(n: int, k: int, between: str) -> None:
    assert parse_layer(f"{n}{between}{k}") == GemmShape(1, n, k)


@given(st.integers(1, 2**31 - 1), st.integers(1, 2**31 - 1))
def test_a_range_is_named_by_its_ends(a: int, b: int) -> None:
    low, high = sorted((a, b))
    assert parse_span(f"{low}..{high}") == Span(low, high)
    assert parse_span(str(low)) == Span(low, low)


@given(st.lists(st.integers(1, 999), min_size=1))
def test_budgets_are_told_once_each_in_order(budgets: list[int]) -> None:
    assert parse_budgets(",".join(map(str, budgets))) == list(dict.fromkeys(budgets))


@given(st.text(max_size=30))
def test_any_other_text_is_refused_and_nothing_else_happens(text: str) -> None:
    for parse in (parse_layer, parse_span, parse_budgets):
        try:
            parse(text)
        except BadParameter as refused:
            assert str(refused.message).startswith(("'", '"'))  # noqa: PT017
