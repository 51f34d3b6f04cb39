"""`tuner bench`: fresh races of what is stored, and the file that a speed claim rests on."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.evidence_tables import hot, section
from tests.cli.conftest import Cli, lines, place, unheard, use_fake
from tests.databases import Databases
from tests.device.fake import H200, Faults
from tuner.cli import provenance
from tuner.cli.provenance import Commit
from tuner.config import KernelConfig
from tuner.search.space import article_config
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, paired_ratio

Write = Callable[[str], Path]
SHAPES = "512 512 512\n2560 4096 1024\n"
PROBLEM = Problem(GemmShape(512, 512, 512), sms=132)


@pytest.fixture
def tuned(sqlite_databases: Databases, shape_file: Write, fake_gpu: Faults, database: Path) -> Path:
    """A shape file whose shapes are tuned on the fake GPU."""
    del fake_gpu
    listing = shape_file(SHAPES)

    def run(url: str) -> None:
        unheard("run", "--shapes", listing, "--device", "cuda:0", "--trials", 6, "--db", url)

    place(sqlite_databases.like("tuned_on_a_fake", run), database)
    return listing


@pytest.fixture
def dependent(cli: Cli, shape_file: Write, fake_gpu: Faults) -> Path:
    """A shape file whose shape is tuned, and is fastest as a dependent launch."""
    del fake_gpu
    listing = shape_file("512 512 512\n")
    assert cli("run", "--shapes", listing, "--device", "cuda:0", "--trials", 16).code == 0
    return listing


def best(database: Path, **asked: Any) -> KernelConfig:
    with open_store(f"sqlite:///{database}") as repository:
        answer = repository.best(PROBLEM, H200.key, **asked)
    assert answer is not None
    return answer.config


def test_evidence_holds_every_round_and_all_that_is_needed_to_judge_it(
    cli: Cli, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "commit_of_package", lambda: "unknown")
    out = tmp_path / "evidence.json"
    arguments = ["bench", "--shapes", tuned, "--device", "cuda:0", "--article", "--json", out]
    ended = cli(*arguments, "--rounds", 9, "--commit", "abc123")
    assert (ended.code, f"Evidence: {out} (commit abc123, as stated)" in ended.out) == (0, True)
    body = json.loads(out.read_text())
    assert body["command"].startswith(f"tuner bench --shapes {tuned} --device cuda:0 --article")
    assert (body["commit"], body["commit_from"]) == ("abc123", "stated")
    assert body["device"]["key"] == "sm90-132sm-141gb"
    assert body["driver"] == H200.driver
    assert body["toolchain"]["nvrtc"] == "13.0.88"
    assert body["protocol"] == PROTOCOL_HOT
    assert [(row["m"], row["n"], row["k"]) for row in body["rows"]] == [
        (512, 512, 512),
        (2560, 4096, 1024),
    ]
    for row in body["rows"]:
        assert row["trials"] == 6
        rounds = row["rounds"]
        assert set(rounds) == {"tuned", "cublas", "cublas_again", "cublaslt_best", "article"}
        assert {len(samples) for samples in rounds.values()} == {9}
        assert row["tuned_us"] == row["tuned_plain_us"] == median(rounds["tuned"])
        assert row["cublas_us"] == median(rounds["cublas"])
        assert row["ratio_cublas"] == paired_ratio(rounds["cublas"], rounds["tuned"])
        assert row["ratio_article"] == paired_ratio(rounds["article"], rounds["tuned"])
        assert row["cublaslt_algorithm"] == "tile=128x256 stages=4"
        for ours in ("cublas", "cublaslt_best"):
            assert row[f"ratio_plain_{ours}"] == row[f"ratio_{ours}"]
        assert row["plain_config"] == row["config"]
        assert not KernelConfig.from_dict(row["config"]).knobs.dependent_launch


def test_dependent_launch_and_the_best_plain_config_race_in_the_same_rounds(
    cli: Cli, dependent: Path, database: Path, tmp_path: Path
) -> None:
    fastest, plain = best(database), best(database, plain=True)
    assert fastest.knobs.dependent_launch
    assert not plain.knobs.dependent_launch
    out = tmp_path / "evidence.json"
    ended = cli("bench", "--shapes", dependent, "--device", "cuda:0", "--rounds", 9, "--json", out)
    assert ended.code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["config"], row["plain_config"]) == (fastest.to_dict(), plain.to_dict())
    rounds = row["rounds"]
    assert set(rounds) == {"tuned", "tuned_plain", "cublas", "cublas_again", "cublaslt_best"}
    assert {len(samples) for samples in rounds.values()} == {9}
    assert row["tuned_us"] == median(rounds["tuned"]) < row["tuned_plain_us"]
    assert row["tuned_plain_us"] == median(rounds["tuned_plain"])
    for baseline in ("cublas", "cublaslt_best"):
        assert row[f"ratio_{baseline}"] == paired_ratio(rounds[baseline], rounds["tuned"])
        ratio = paired_ratio(rounds[baseline], rounds["tuned_plain"])
        assert row[f"ratio_plain_{baseline}"] == ratio
    with open_store(f"sqlite:///{database}") as repository:
        last = repository.races(PROBLEM, H200.key, PROTOCOL_HOT)[-1]
    configs = [r.contender.config for r in last.measurements if r.contender.config]
    assert configs == [fastest, plain]


def test_plain_config_of_a_protocol_is_the_best_plain_one_under_it(
    cli: Cli, dependent: Path, database: Path, tmp_path: Path
) -> None:
    out = tmp_path / "evidence.json"
    asked = ["--protocol", "cool", "--best-of-protocol", "--json", out]
    assert cli("bench", "--shapes", dependent, "--device", "cuda:0", *asked).code == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["config"] == best(database, protocol=PROTOCOL_COOL).to_dict()
    assert row["plain_config"] == best(database, protocol=PROTOCOL_COOL, plain=True).to_dict()


def test_dependent_launch_without_a_stored_plain_config_races_beside_itself_made_plain(
    cli: Cli, dependent: Path, database: Path, tmp_path: Path
) -> None:
    fastest = best(database)
    with open_store(f"sqlite:///{database}") as repository:
        races = repository.races(PROBLEM, H200.key)
    rows = [row for race in races for row in race.measurements]
    only = [r for r in rows if r.contender.config in (None, fastest)]
    other = tmp_path / "other.db"
    with open_store(f"sqlite:///{other}") as repository:
        repository.add(only)
    out = tmp_path / "evidence.json"
    arguments = ["--device", "cuda:0", "--db", other, "--json", out]
    assert cli("bench", "--shapes", dependent, *arguments).code == 0
    (row,) = json.loads(out.read_text())["rows"]
    knobs = replace(fastest.knobs, dependent_launch=False)
    assert row["plain_config"] == replace(fastest, knobs=knobs).to_dict()


@pytest.mark.parametrize(
    ("git_says", "stated", "commit"),
    [
        ("0123abcd", None, Commit("0123abcd")),
        ("0123abcd", "0123", Commit("0123abcd")),
        ("0123abcd", "4567", Commit("4567", stated=True)),
        ("unknown", "4567", Commit("4567", stated=True)),
        ("0123abcd-dirty", None, Commit("0123abcd-dirty")),
        ("0123abcd-dirty", "4567", Commit("4567-dirty", stated=True)),
        ("0123abcd-dirty", "4567-dirty", Commit("4567-dirty", stated=True)),
        ("unknown", None, Commit("unknown")),
    ],
)
def test_commit_is_what_git_says_or_marked_as_stated_and_never_hides_changed_files(
    git_says: str, stated: str | None, commit: Commit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "commit_of_package", lambda: git_says)
    assert provenance.commit_measured(stated) == commit


def test_evidence_renders_into_the_results_table(
    cli: Cli, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "commit_of_package", lambda: "unknown")
    out = tmp_path / "evidence.json"
    arguments = ["bench", "--shapes", tuned, "--device", "cuda:0", "--article", "--json", out]
    assert cli(*arguments, "--commit", "abc123").code == 0
    text = section(json.loads(out.read_text()), hot("article"), "docs/evidence.md")
    assert "Geometric mean over 2 shapes" in text


def test_evidence_of_a_dependent_launch_renders_with_its_plain_config(
    cli: Cli, dependent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "commit_of_package", lambda: "unknown")
    out = tmp_path / "evidence.json"
    arguments = ["bench", "--shapes", dependent, "--device", "cuda:0", "--json", out]
    assert cli(*arguments, "--commit", "abc123").code == 0
    body = json.loads(out.read_text())
    (row,) = body["rows"]
    ratios = f"{row['ratio_cublas']:.3f} | {row['ratio_plain_cublas']:.3f} |"
    text = section(body, hot("article"), "docs/evidence.md")
    assert f"| {row['cublas_us']:.1f} | {ratios}" in text


def test_table_shows_ratios_their_geometric_mean_and_the_noise(cli: Cli, tuned: Path) -> None:
    ended = cli("bench", "--shapes", tuned, "--device", "cuda:0", "--protocol", "cool")
    assert ended.code == 0
    header = ended.out.splitlines()[0]
    assert re.split(r"\s{2,}", header.strip()) == [
        "M x N x K",
        "config",
        "us",
        "TFLOP/s",
        "x cuBLAS",
        "x Lt best",
        "A/A",
    ]
    ratios = [float(line.split()[-3]) for line in ended.out.splitlines()[1:3]]
    mean = float(lines(ended.out, "geometric mean")[0].split()[2])
    assert mean == pytest.approx((ratios[0] * ratios[1]) ** 0.5, abs=0.002)
    assert "2 shapes: 2 raced." in ended.out
    (plain,) = lines(ended.out, "  plain")
    assert float(plain.split()[1]) == mean


def test_table_shows_the_plain_config_below_a_dependent_one_and_both_means(
    cli: Cli, dependent: Path, shape_file: Write
) -> None:
    ended = cli("bench", "--shapes", dependent, "--device", "cuda:0", "--rounds", 9)
    (tuned,), (plain,) = lines(ended.out, "512x512x512"), lines(ended.out, "  plain")
    assert " e " in tuned
    assert " e " not in plain
    ratio, plain_ratio = float(tuned.split()[-3]), float(plain.split()[-2])
    assert ratio > plain_ratio
    assert f"us, {ratio:.3f} x cuBLAS; plain " in ended.err
    assert f"us, {plain_ratio:.3f} x cuBLAS\n" in ended.err
    both = shape_file("512 512 512\n2560 4096 1024\n")
    assert cli("run", "--shapes", both, "--device", "cuda:0", "--trials", 6).code == 0
    ended = cli("bench", "--shapes", both, "--device", "cuda:0", "--rounds", 9)
    (other,) = lines(ended.out, "2560x4096x1024")
    alone = float(other.split()[-3])
    (mean,), (_, plain_mean) = lines(ended.out, "geometric mean"), lines(ended.out, "  plain")
    assert float(mean.split()[2]) == pytest.approx((ratio * alone) ** 0.5, abs=0.002)
    assert float(plain_mean.split()[1]) == pytest.approx((plain_ratio * alone) ** 0.5, abs=0.002)


def test_measured_rounds_are_stored_with_the_pair_of_cublas(
    cli: Cli, tuned: Path, database: Path
) -> None:
    problem = Problem(GemmShape(512, 512, 512), sms=132)
    url = f"sqlite:///{database}"
    with open_store(url) as repository:
        before = len(repository.races(problem, H200.key, PROTOCOL_COOL))
    cli("bench", "--shapes", tuned, "--device", "cuda:0", "--protocol", "cool", "--article")
    with open_store(url) as repository:
        races = repository.races(problem, H200.key, PROTOCOL_COOL)
    assert len(races) == before + 1
    configs = {row.contender.config for row in races[-1].measurements}
    assert article_config(problem) in configs


def test_replayed_rounds_are_not_stored_again(
    cli: Cli, shape_file: Write, replay: str, database: Path
) -> None:
    listing = shape_file(SHAPES)
    assert cli("run", "--shapes", listing, "--device", replay).code == 0
    with open_store(f"sqlite:///{database}") as repository:
        before = repository.watermark()
    ended = cli("bench", "--shapes", listing, "--device", replay)
    assert (ended.code, "2 shapes: 2 raced." in ended.out) == (0, True)
    with open_store(f"sqlite:///{database}") as repository:
        assert repository.watermark() == before


@pytest.mark.usefixtures("tuned")
def test_shapes_that_cannot_be_raced_say_why_and_the_others_are_raced(
    cli: Cli, shape_file: Write, tmp_path: Path
) -> None:
    out = tmp_path / "evidence.json"
    listing = shape_file("128 128 133\n64 64 64\n512 512 512\n")
    ended = cli("bench", "--shapes", listing, "--device", "cuda:0", "--json", out)
    assert ended.code == 3
    assert "[1/3] 128x128x133 is unsupported: " in ended.err
    assert "[2/3] 64x64x64 has no stored config." in ended.err
    body = json.loads(out.read_text())
    assert [row["m"] for row in body["rows"]] == [512]
    assert [(o["m"], o["state"]) for o in body["not_raced"]] == [
        (128, "unsupported"),
        (64, "not_tuned"),
    ]


def test_config_that_gives_wrong_results_now_is_no_evidence(
    cli: Cli, tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fake(monkeypatch, Faults(all_wrong=True))
    out = tmp_path / "evidence.json"
    ended = cli("bench", "--shapes", tuned, "--device", "cuda:0", "--json", out)
    assert (ended.code, "ended wrong_result: error 7.5" in ended.err) == (3, True)
    assert json.loads(out.read_text())["rows"] == []


def test_implausible_times_are_no_evidence(
    cli: Cli, tuned: Path, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(GemmShape(512, 512, 512), sms=132)
    with open_store(f"sqlite:///{database}") as repository:
        answer = repository.best(problem, H200.key)
    assert answer is not None
    use_fake(monkeypatch, Faults(too_fast=frozenset({answer.config.variant})))
    ended = cli("bench", "--shapes", tuned, "--device", "cuda:0")
    assert (ended.code, "ended implausible" in ended.err) == (3, True)


def test_place_that_cannot_be_written_is_refused_before_anything_is_raced(
    cli: Cli, tuned: Path, tmp_path: Path
) -> None:
    for out in (tmp_path, tmp_path / "absent" / "evidence.json"):
        ended = cli("bench", "--shapes", tuned, "--device", "cuda:0", "--json", out)
        assert ended.code == 2
        assert ended.err == f"{out} cannot be written. Name another file with --json.\n"


@pytest.mark.usefixtures("fake_gpu")
def test_database_that_is_not_there_is_not_made(
    cli: Cli, shape_file: Write, database: Path
) -> None:
    ended = cli("bench", "--shapes", shape_file(SHAPES), "--device", "cuda:0")
    assert (ended.code, "there is no database at" in ended.err) == (5, True)
    assert not database.exists()
