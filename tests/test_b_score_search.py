"""Scoring the search: what a move reveals, what counts as found, and who knows what."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random

import pytest

from benchmarks import score_search
from benchmarks.fit_model import error, ranks
from benchmarks.score_search import MODELLESS, PORTFOLIO, SHIPPED, Score, flip_rate, summarised
from benchmarks.search_game import Game, game, playable
from benchmarks.search_ours import played, remembered
from benchmarks.search_rivals import (
    Fields,
    portfolio,
    portfolio_moves,
    random_moves,
    tpe_moves,
)
from benchmarks.search_table import FILE, NOT_SCORED, table
from tests.device.recordings import recorded_rows, write_recording
from tuner.device.replay import Recording
from tuner.lookup.cost_model import H200, estimate_us
from tuner.search.space import sample
from tuner.shape import GemmShape, Problem
from tuner.trial import TrialState

SHAPES = [Problem(GemmShape(m, 2112, 7168), 132) for m in (32, 64, 128)]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = [row for problem in SHAPES for row in recorded_rows(problem, count=20)]
    return write_recording(tmp_path_factory.mktemp("scored") / "three.jsonl.gz", rows)


@pytest.fixture(scope="module")
def recording(file: Path) -> Recording:
    return Recording.load(file)


@pytest.fixture
def one(recording: Recording) -> Game:
    return game(recording, SHAPES[0], seed=1)


def test_a_game_has_every_recorded_config_and_reveals_failures(
    one: Game, recording: Recording
) -> None:
    screened = [row for row in recording.rows(SHAPES[0]) if row.race is None]
    assert {row.contender.config for row in screened} == set(one.configs)
    failed = {row.contender.config for row in screened if row.state is not TrialState.OK}
    revealed = zip(one.configs, one.screened_us, one.hot_us, strict=True)
    assert {c for c, us, hot in revealed if us is None and hot == inf} == failed
    assert len(failed) == 2


def test_a_seed_scatters_screenings_a_little_and_the_same_seed_alike(recording: Recording) -> None:
    first, again, other = (game(recording, SHAPES[0], seed) for seed in (1, 1, 2))
    assert first.screened_us == again.screened_us
    pairs = [(a, b) for a, b in zip(first.screened_us, other.screened_us, strict=True) if a and b]
    assert all(a != b and abs(a / b - 1) < 0.1 for a, b in pairs)
    assert first.hot_us == other.hot_us


def test_two_failed_compiles_cost_one_trial(one: Game) -> None:
    refused = one.half_price.index(True)
    others = [move for move in range(len(one.configs)) if move != refused]
    twice = replace(one, half_price=tuple(move in (refused, others[0]) for move in range(22)))
    assert list(one.affordable([refused, *others], 3)) == [refused, *others[:2]]
    assert list(twice.affordable([refused, *others], 3)) == [refused, *others[:3]]


def test_what_is_found_is_the_hottest_races_best_and_nothing_where_all_failed(one: Game) -> None:
    everything = range(len(one.configs))
    found = one.found(everything)
    assert found is not None
    assert one.regret(found) == 0
    failures = [move for move in everything if one.screened_us[move] is None]
    assert one.found(failures) is None
    assert one.moves_to_within([*failures, found], 0.0) == 3
    assert one.moves_to_within(failures, 0.5) is None


def test_the_shipped_search_is_told_nothing_of_the_left_out_shape(recording: Recording) -> None:
    memory = remembered(recording, {SHAPES[0]})
    assert set(memory.stored) == set(memory.outcomes) == set(SHAPES[1:])
    one = game(recording, SHAPES[0], seed=1)
    moves = played(one, memory, 8, estimate_us)
    assert len(moves) == len(set(moves)) == 8
    assert SHAPES[0] not in memory.stored


def test_rivals_never_measure_a_config_twice(one: Game) -> None:
    for rival in (random_moves, tpe_moves):
        moves = rival(one, len(one.configs), 3)
        assert sorted(moves) == list(range(len(one.configs)))


def test_a_config_survives_its_way_to_a_sampler_and_back(one: Game) -> None:
    fields = Fields(one.configs)
    assert [fields.config(fields.params(c)) for c in one.configs] == list(one.configs)


def test_a_portfolio_begins_with_what_loses_least_on_the_other_shapes(
    recording: Recording,
) -> None:
    others = [game(recording, problem, 0) for problem in SHAPES[1:]]
    chosen = portfolio(others, 10)
    assert len(chosen) == len(set(chosen)) == 10
    one = game(recording, SHAPES[0], 0)
    moves = portfolio_moves(one, 10, chosen)
    assert len(moves) == len(set(moves)) == 10
    # A portfolio of the very shape begins with its best config.
    assert portfolio([one], 1) == [one.configs[one.hot_us.index(one.best_us)]]


def test_flips_are_pairs_of_seeds_that_differ_by_more_than_a_tie() -> None:
    def score(us: float | None) -> Score:
        return Score("a", SHAPES[0], 1.0, {8: us}, None)

    assert flip_rate([score(us) for us in (1.0, 1.001, 1.02)], 8) == pytest.approx(2 / 3)
    assert flip_rate([score(1.0), score(None)], 8) == 1
    assert flip_rate([score(1.0)], 8) == 0
    row = summarised([score(1.0), score(1.02)])
    assert row["regret"]["8"] == {"mean": 0.01, "p95": 0.02, "worst": 0.02}
    assert row["near"] == {"share": 0.0, "median_moves": None}


def test_a_reduced_run_scores_every_contestant_and_is_rendered(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / FILE
    assert table(tmp_path, "#") == NOT_SCORED
    out.parent.mkdir(parents=True)
    given = [
        "--recording",
        str(file),
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--folds",
        "2",
        "--steps",
        "2",
    ]
    given += ["--out", str(out), "--without", "Kernel Tuner", "GP", "--commit", "abc"]
    score_search.main(given)
    body = json.loads(out.read_text())
    names = [row["contestant"] for row in body["rows"]]
    assert names[0] == SHIPPED
    assert {PORTFOLIO, MODELLESS, "random"} <= set(names)
    assert (body["shapes"], body["seeds"], body["source"]) == (3, 2, "replay")
    for row in body["rows"]:
        # The spaces have 22 configs: whoever may try 24 has seen the best.
        assert row["regret"]["32"] == {"mean": 0.0, "p95": 0.0, "worst": 0.0}
        assert row["near"]["share"] == 1
    assert SHIPPED in capsys.readouterr().out
    text = table(tmp_path, "evidence.md#commands")
    assert text.count("\n| ") == 1 + len(names)
    assert f"| {SHIPPED} | " in text


@pytest.mark.parametrize("option", ["--seeds", "--jobs", "--folds", "--steps"])
def test_nothing_is_scored_with_less_than_one_of_anything(option: str) -> None:
    with pytest.raises(SystemExit, match="take 1 or more"):
        score_search.main([option, "0"])


def test_one_shape_cannot_be_left_out_of_itself(tmp_path: Path) -> None:
    single = write_recording(tmp_path / "one.jsonl.gz", recorded_rows(SHAPES[0]))
    assert playable(Recording.load(single)) == SHAPES[:1]
    with pytest.raises(SystemExit, match="fewer than two shapes"):
        score_search.main(["--recording", str(single)])


def test_a_models_error_is_its_offset_its_scatter_and_how_it_ranks() -> None:
    configs = sample(SHAPES[0], 9, seed=1)
    exact = [(c, estimate_us(SHAPES[0], c) * 2) for c in configs]
    wrong = error(SHAPES[0], exact, H200)
    assert wrong.off_percent == pytest.approx(-50)
    assert wrong.scatter_percent == pytest.approx(0, abs=1e-9)
    assert wrong.rank == pytest.approx(1)
    shuffled = [us for _, us in exact]
    Random(1).shuffle(shuffled)
    assert error(SHAPES[0], list(zip(configs, shuffled, strict=True)), H200).rank < 0.9
    assert ranks([3.0, 1.0, 3.0]) == [1.5, 0.0, 1.5]
