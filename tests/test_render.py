"""README's results come from the evidence, and from nowhere else."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.render import BEGIN, COOL, COOL_TITLE, END, EVIDENCE, NOT_MEASURED, main


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


def evidence(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "command": "python benchmarks/article.py",
        "commit": "0123abc",
        "device": "a device",
        "driver": "1.2",
        "toolchain": {"nvrtc": "13.0"},
        "protocol": "graph-coldl2-hot/1",
        "rows": list(rows),
    } | changes


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / EVIDENCE).parent.mkdir(parents=True)
    (tmp_path / "README.md").write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    return tmp_path


def render(root: Path, found: object | None, *flags: str) -> tuple[int, str]:
    if found is not None:
        text = found if isinstance(found, str) else json.dumps(found)
        (root / EVIDENCE).write_text(text)
    code = main(["--root", str(root), *flags])
    return code, (root / "README.md").read_text()


def test_without_evidence_the_readme_says_not_measured_yet(root: Path) -> None:
    assert render(root, None) == (0, f"before\n{BEGIN}\n{NOT_MEASURED}\n{END}\nafter\n")


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
    code, readme = render(root, evidence(noisy, not_raced=[{"m": 1, "state": "unsupported"}]))
    assert code == 0
    assert "differs by at most 2.0 %. Shapes without a race: 1;" in readme
    assert "| 128 x 256 x 512 | 10.0 | 20.0 | 2.000 | 10.0 | 1.000 | - | - |" in readme


def test_commit_device_driver_and_command_stand_under_the_table(root: Path) -> None:
    _, readme = render(root, evidence(row(128, [10.0], [20.0])))
    last = readme.partition(END)[0].strip().splitlines()[-1]
    assert last == (
        "Device a device; driver 1.2; nvrtc 13.0; protocol `graph-coldl2-hot/1`; "
        "commit `0123abc`; written by `python benchmarks/article.py`."
    )


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
