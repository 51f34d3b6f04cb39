"""README's results come from the evidence, and from nowhere else."""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks import look_up_table
from benchmarks.evidence_files import NO_FILES
from benchmarks.evidence_tables import COOL_TITLE, OLDER_KERNEL, cool, hot, not_measured
from benchmarks.render import (
    BEGIN,
    END,
    LOOK_UPS,
    PAGE,
    PAGE_BEGIN,
    PAGE_END,
    SEARCH,
    TABLES,
    main,
)
from tuner.compiler.source import kernel_hash

EVIDENCE, COOL = hot("article"), cool("article")
MIXED = Path("docs/results.md")
PLAIN, DEPENDENT = {"dependent_launch": False}, {"dependent_launch": True}


def row(m: int, tuned: list[float], cublas: list[float], **changes: Any) -> dict[str, Any]:
    rounds = {
        "tuned": tuned,
        "cublas": cublas,
        "cublas_again": cublas,
        "cublaslt_best": tuned,
        "article": [2 * us for us in tuned],
    } | changes.pop("rounds", {})
    times = {f"{name}_us": median(rounds[name]) if rounds[name] else None for name in rounds}
    return {"m": m, "n": 256, "k": 512, "config": {}, "rounds": rounds} | times | changes


def two_ways(m: int, tuned: float, plain: float, cublas: float, **changes: Any) -> dict[str, Any]:
    """A row whose dependent launch and plain config are two contenders."""
    rounds = {"tuned_plain": [plain]} | changes.pop("rounds", {})
    told = {"config": DEPENDENT, "plain_config": PLAIN} | changes
    return row(m, [tuned], [cublas], rounds=rounds, **told)


def one_way(m: int, tuned: float, cublas: float) -> dict[str, Any]:
    """A row of today whose best config is a plain one."""
    told = {"config": PLAIN, "plain_config": PLAIN, "tuned_plain_us": tuned}
    return row(m, [tuned], [cublas], **told)


def evidence(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "command": "python benchmarks/article.py",
        "commit": "0123abc",
        "device": {"name": "a device", "key": "a-key"},
        "driver": "1.2",
        "toolchain": {"kernel_hash": kernel_hash(), "nvrtc": "13.0"},
        "protocol": "graph-coldl2-hot/1",
        "rows": list(rows),
    } | changes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / EVIDENCE).parent.mkdir(parents=True)
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    (tmp_path / PAGE).parent.mkdir()
    (tmp_path / MIXED).write_text(f"mixed\n{BEGIN}\n{END}\nend\n")
    (tmp_path / SEARCH).write_text(f"search\n{BEGIN}\n{END}\nend\n")
    (tmp_path / LOOK_UPS).write_text(f"look-ups\n{BEGIN}\n{END}\nend\n")
    (tmp_path / PAGE).write_text(f"above\n{PAGE_BEGIN}\n{PAGE_END}\nbelow\n")
    return tmp_path


def render(root: Path, found: object | None, *flags: str) -> tuple[int, str]:
    if found is not None:
        text = found if isinstance(found, str) else json.dumps(found)
        (root / EVIDENCE).write_text(text)
    code = main(["--root", str(root), *flags])
    return code, (root / "README.md").read_text()


def test_without_evidence_the_readme_says_not_measured_yet(root: Path) -> None:
    text = not_measured("article")
    assert "there is no article-hot.json" in text
    assert render(root, None) == (0, f"before\n{BEGIN}\n{text}\n{END}\nafter\n")
    page = f"above\n{PAGE_BEGIN}\n{NO_FILES}\n{PAGE_END}\nbelow\n"
    assert (root / PAGE).read_text() == page


def test_ratio_is_the_median_over_rounds_of_the_ratio_within_the_round(root: Path) -> None:
    # Medians of the samples would say 20 / 10 = 2; the rounds say 1.5.
    shape = row(128, tuned=[10.0, 20.0, 10.0], cublas=[15.0, 20.0, 20.0])
    code, readme = render(root, evidence(shape))
    assert code == 0
    assert "| 128 x 256 x 512 | 10.0 | 20.0 | 1.500 | 10.0 | 1.000 | 20.0 | 2.000 |" in readme


def test_the_cool_race_has_a_table_of_its_own_below_the_hot_one(root: Path) -> None:
    hot, cool = row(128, [10.0], [15.0]), row(128, [10.0], [11.0])
    (root / COOL).write_text(json.dumps(evidence(cool, protocol="graph-coldl2-cool/1")))
    code, readme = render(root, evidence(hot))
    assert code == 0
    above, _, below = readme.partition(COOL_TITLE)
    assert "**1.500** times" in above
    assert "`graph-coldl2-hot/1`" in above
    assert "**1.100** times" in below
    assert "`graph-coldl2-cool/1`" in below


def test_mean_over_shapes_is_geometric_and_the_least_ratio_is_shown(root: Path) -> None:
    shapes = [row(128, [10.0], [20.0]), row(256, [10.0], [5.0])]
    _, readme = render(root, evidence(*shapes))
    assert "over 2 shapes: **1.000** times the speed of cuBLAS (least: 0.500)" in readme


def test_noise_shapes_without_a_race_and_contenders_left_out_are_shown(root: Path) -> None:
    noisy = row(128, [10.0], [20.0], rounds={"cublas_again": [20.4], "article": []})
    shapes = [noisy, row(256, [10.0], [20.0])]
    code, readme = render(root, evidence(*shapes, not_raced=[{"m": 1, "state": "unsupported"}]))
    assert code == 0
    assert "differs by at most 2.0 %. Shapes without a race: 1;" in readme
    assert "| 128 x 256 x 512 | 10.0 | 20.0 | 2.000 | 10.0 | 1.000 | - | - |" in readme


def test_baseline_that_no_shape_was_raced_against_has_no_column(root: Path) -> None:
    _, readme = render(root, evidence(row(128, [10.0], [20.0], rounds={"article": []})))
    assert (
        "| M x N x K | tuned, µs | cuBLAS, µs | ratio | best cuBLASLt, µs | ratio | MHz |" in readme
    )
    assert "| geometric mean | | | **2.000** | | **1.000** | | |" in readme


def test_plain_configs_have_columns_means_and_the_least_ratio_of_their_own(root: Path) -> None:
    shapes = [two_ways(128, 10.0, 16.0, 20.0), one_way(256, 10.0, 20.0)]
    code, readme = render(root, evidence(*shapes))
    assert code == 0
    assert "over 2 shapes: **2.000** times the speed of cuBLAS (least: 2.000). Without" in readme
    assert "Without dependent launch: **1.581** (least: 1.250). cuBLAS against" in readme
    head = "| M x N x K | tuned, µs | plain, µs | cuBLAS, µs | ratio | plain ratio | best cuBLASLt,"
    assert head in readme
    assert (
        "| 128 x 256 x 512 | 10.0 | 16.0 | 20.0 | 2.000 | 1.250 | 10.0 | 1.000 | 0.625 |" in readme
    )
    assert (
        "| 256 x 256 x 512 | 10.0 | 10.0 | 20.0 | 2.000 | 2.000 | 10.0 | 1.000 | 1.000 |" in readme
    )
    assert "| geometric mean | | | | **2.000** | **1.581** | | **1.000** | **0.791** |" in readme
    columns = {line.count("|") for line in readme.splitlines() if line.startswith("|")}
    assert columns == {15}


def test_plain_ratio_is_taken_within_the_round_too(root: Path) -> None:
    rounds = {"tuned_plain": [10.0, 20.0, 10.0], "cublas_again": [15.0, 20.0, 20.0]}
    told = {"config": DEPENDENT, "plain_config": PLAIN}
    shape = row(128, [5.0] * 3, [15.0, 20.0, 20.0], rounds=rounds, **told)
    _, readme = render(root, evidence(shape))
    assert "| 128 x 256 x 512 | 5.0 | 10.0 | 20.0 | 4.000 | 1.500 |" in readme


def test_file_older_than_plain_configs_is_shown_as_it_was(root: Path) -> None:
    _, old = render(root, evidence(row(128, [10.0], [20.0])))
    _, named = render(root, evidence(row(128, [10.0], [20.0], tuned_plain_us=10.0)))
    assert old == named
    assert "plain" not in old


@pytest.mark.parametrize("document", TABLES)
def test_each_document_shows_the_pair_of_its_name_and_leads_to_the_commands(
    root: Path, document: Path
) -> None:
    name = TABLES[document]
    slow, fast = row(128, [10.0], [15.0]), one_way(128, 10.0, 11.0)
    (root / hot(name)).write_text(json.dumps(evidence(slow)))
    (root / cool(name)).write_text(json.dumps(evidence(fast, protocol="graph-coldl2-cool/1")))
    assert main(["--root", str(root)]) == 0
    above, _, below = (root / document).read_text().partition(COOL_TITLE)
    assert "**1.500** times" in above
    assert "**1.100** times" in below
    (linked,) = {line.partition("[The command](")[2] for line in above.splitlines()} - {""}
    target, _, anchor = linked.removesuffix(").").partition("#")
    assert (root / document.parent / target).resolve() == (root / PAGE).resolve()
    assert anchor == "commands"
    (other,) = set(TABLES) - {document}
    assert not_measured(TABLES[other]) in (root / other).read_text()
    commands = (root / PAGE).read_text()
    assert f"`benchmarks/results/{name}-hot.json`" in commands


def test_check_refuses_a_stale_page_of_results(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / hot("mixed34")).write_text(json.dumps(evidence(one_way(128, 10.0, 11.0))))
    assert main(["--root", str(root)]) == 0
    assert main(["--root", str(root), "--check"]) == 0
    page = (root / MIXED).read_text()
    (root / MIXED).write_text(page.replace("1.100", "1.200"))
    assert main(["--root", str(root), "--check"]) == 1
    assert "docs/results.md is older than the evidence" in capsys.readouterr().out


def test_it_runs_as_a_file_from_anywhere(root: Path) -> None:
    script = Path(__file__).resolve().parent.parent / "benchmarks/render.py"
    without = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script), "--root", str(root)]
    ended = subprocess.run(command, cwd=root, env=without, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not_measured("article") in (root / "README.md").read_text()


def test_clock_and_power_end_the_line_of_a_shape_where_they_were_read(root: Path) -> None:
    read = {"sm_clock_mhz": 1635, "power_w": 648.5}
    shapes = [row(128, [10.0], [20.0], conditions=read), row(256, [10.0], [20.0])]
    _, readme = render(root, evidence(*shapes))
    (one,) = (line for line in readme.splitlines() if line.startswith("| 128 x"))
    (other,) = (line for line in readme.splitlines() if line.startswith("| 256 x"))
    assert one.endswith("| 2.000 | 1635 | 648 |")
    assert other.endswith("| 2.000 | - | - |")


def test_one_line_under_the_table_says_what_was_measured_and_how(root: Path) -> None:
    found = evidence(row(128, [10.0], [20.0], trials=96), row(256, [10.0], [20.0], trials=256))
    ranked = {"ranked_by": "graph-coldl2-hot/1", "rounds": 50, "commit_from": "git"}
    _, readme = render(root, found | ranked)
    last = readme.partition(END)[0].strip().splitlines()[-1]
    assert last == (
        f"a device (`a-key`), driver 1.2; kernel `{kernel_hash()}`; commit `0123abc`; protocol "
        "`graph-coldl2-hot/1`, 50 rounds; configs ranked by it alone; 96 to 256 trials a shape. "
        "[The command](docs/evidence.md#commands)."
    )
    _, readme = render(
        root, evidence(row(128, [10.0], [20.0], trials=96), ranked_by="hot and cool")
    )
    assert "; configs ranked by hot and cool; 96 trials a shape. [The" in readme


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"commit_from": "stated"}, "`0123abc` (as stated on the command line)"),
        ({"command": "x --commit 0123abc"}, "`0123abc` (as stated on the command line)"),
        ({"command": "x --commit 0123abc", "commit_from": "git"}, "`0123abc`"),
        ({}, "`0123abc`"),
    ],
)
def test_commit_that_a_person_stated_is_marked(
    root: Path, said: dict[str, str], shown: str
) -> None:
    _, readme = render(root, evidence(row(128, [10.0], [20.0]), **said))
    assert f"; commit {shown}; protocol" in readme
    assert f"; commit {shown})." in (root / PAGE).read_text()


def test_commands_and_what_files_lack_stand_on_the_page_of_evidence(root: Path) -> None:
    (root / "benchmarks/results/times.json").write_text('{"command": "times --out x"}')
    render(root, evidence(row(128, [10.0], [20.0])))
    assert (root / PAGE).read_text() == (
        f"above\n{PAGE_BEGIN}\n"
        "- `benchmarks/results/article-hot.json`, written by\n"
        "  `python benchmarks/article.py`\n"
        f"  (device name a device, key a-key; driver 1.2; kernel {kernel_hash()}; "
        "commit `0123abc`).\n"
        "- `benchmarks/results/times.json`, written by\n"
        "  `times --out x`\n"
        "  The file lacks device, driver, kernel, commit, until it is written again.\n"
        f"{PAGE_END}\nbelow\n"
    )


def test_check_refuses_a_stale_page_of_evidence(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert render(root, evidence(row(128, [10.0], [20.0])))[0] == 0
    page = (root / PAGE).read_text()
    (root / PAGE).write_text(page.replace("article.py", "other.py"))
    assert render(root, None, "--check")[0] == 1
    assert "docs/evidence.md is older than the evidence" in capsys.readouterr().out
    (root / PAGE).unlink()
    assert render(root, None, "--check")[0] == 2


def test_table_of_an_older_kernel_says_so_and_a_changed_kernel_alone_is_not_stale(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evidence(row(128, [10.0], [20.0]))
    assert OLDER_KERNEL not in render(root, found)[1]
    monkeypatch.setattr("benchmarks.evidence_tables.kernel_hash", lambda: "another")
    code, readme = render(root, None, "--check")
    assert (code, OLDER_KERNEL in readme) == (0, False)
    assert "results of an older kernel" in capsys.readouterr().out
    code, readme = render(root, None)
    assert (code, readme.partition(END)[0].endswith(f"\n\n{OLDER_KERNEL}\n")) == (0, True)
    monkeypatch.undo()
    assert render(root, None, "--check")[0] == 0
    assert OLDER_KERNEL not in render(root, None)[1]


def test_check_refuses_a_stale_table_without_changing_it_and_accepts_a_rendered_one(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evidence(row(128, [10.0], [20.0]))
    code, readme = render(root, found, "--check")
    assert (code, "old" in readme) == (1, True)
    assert "run python benchmarks/render.py" in capsys.readouterr().out
    assert render(root, found)[0] == 0
    assert render(root, found, "--check")[0] == 0


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("{", "is not JSON"),
        ([], "is not a JSON object"),
        (evidence(), "lacks rows"),
        (evidence(row(1, [1.0], [1.0]), commit=""), "lacks commit"),
        (evidence(row(1, [1.0], [1.0]) | {"rounds": {}}), "lacks 'tuned'"),
        (evidence(row(1, [1.0], [1.0]) | {"rounds": None}), "malformed"),
        (evidence(row(1, [1.0], [1.0], tuned_us=0.9)), "not the median of its rounds"),
        (evidence(row(1, [1.0], [1.0]), source="replay"), "was not measured"),
        (evidence(row(1, [1.0], [1.0]), commit="0123-dirty"), "not written from a clean tree"),
        (evidence(row(1, [1.0, 2.0], [1.0])), "different rounds"),
        (evidence(row(1, [1.0], [float("nan")])), "not positive and finite"),
        (evidence(row(1, [0.0], [1.0])), "not positive and finite"),
        (evidence(row(1, [1.0], [1.0]), row(1, [1.0], [1.0])), "has a shape twice"),
        (evidence(row(1, [1.0], [1.0], article_us=None)), "malformed"),
        (evidence(row(1, [1.0], [1.0], config=None)), "malformed"),
        (evidence(row(1, [1.0], [1.0], tuned_plain_us=0.9)), "not the median of its rounds"),
        (evidence(two_ways(1, 1.0, 1.5, 2.0, tuned_plain_us=1.0)), "not the median of its rounds"),
        (evidence(row(1, [1.0], [1.0], config=DEPENDENT)), "has no plain config"),
        (evidence(two_ways(1, 1.0, 1.5, 2.0, plain_config=DEPENDENT)), "has no plain config"),
        (evidence(one_way(1, 1.0, 2.0) | {"config": DEPENDENT}), "not the rounds of it"),
        (evidence(two_ways(1, 1.0, 1.5, 2.0, config=PLAIN)), "not the rounds of it"),
    ],
)
def test_evidence_that_cannot_be_trusted_is_refused_in_one_sentence(
    root: Path, capsys: pytest.CaptureFixture[str], found: object, reason: str
) -> None:
    assert render(root, found)[0] == 2
    assert reason in capsys.readouterr().err


def test_readme_without_markers_is_refused(root: Path) -> None:
    (root / "README.md").write_text(f"{BEGIN}\n")
    assert main(["--root", str(root)]) == 2


def test_scores_of_look_ups_are_shown_in_percent_with_the_intervals_that_held(
    root: Path,
) -> None:
    scores = {
        "command": "score",
        "recording": "r",
        "device_key": "k",
        "kernel_hash": "h",
        "shapes": [[1, 2, 3], [4, 5, 6]],
        "table": [
            {"rule": "a", "cases": 2, "mean": 0.0838, "p95": 0.2, "worst": 0.3, "recorded": 1}
        ],
        "tiers": {"nearest": [{"up_to": None, "cases": 4, "covered": 3}]},
    }
    path = root / look_up_table.FILE
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(scores))
    assert main(["--root", str(root)]) == 0
    text = (root / LOOK_UPS).read_text()
    assert "| a | 8.4 | 20.0 | 30.0 | 2 | 1 |" in text
    assert "tier `nearest`, any distance: 3 of 4 hold." in text
    path.write_text("{}")
    assert main(["--root", str(root)]) == 2
