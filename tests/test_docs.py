"""The documents name what exists and nothing else."""

import re
from pathlib import Path

import pytest

from tuner.client.settings import OWN
from tuner.device.replay import Recording
from tuner.trial import TrialState

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = (
    *("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    *("docs/evidence.md", "docs/results.md", "docs/kernel-log.md"),
    *("docs/look-ups.md", "docs/service.md", "docs/client.md", "docs/trust.md"),
)
TOP_LEVEL = (
    *("tuner/", "api/", "kernels/", "migrations/"),
    *("tests/", "benchmarks/", "examples/", "docs/", ".ci/"),
)


def text(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_path_a_document_names_exists(document: str) -> None:
    quoted = re.findall(r"`([^`\s]+)`", text(document))
    named = {q for q in quoted if q.startswith(TOP_LEVEL)}
    assert sorted(path for path in named if not (ROOT / path).exists()) == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_link_of_a_document_leads_somewhere(document: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", text(document))
    folder = (ROOT / document).parent
    assert [t for t in targets if "://" not in t and not (folder / t).exists()] == []


def test_architecture_names_every_module_and_stage_of_the_package() -> None:
    architecture = text("ARCHITECTURE.md")
    linked = {"api", "kernels", "migrations"}
    parts = {
        f"tuner/{path.name}"
        for path in (ROOT / "tuner").iterdir()
        if path.name not in linked | {"__init__.py", "__pycache__", "py.typed", "recordings"}
    }
    assert sorted(part for part in parts if f"`{part}`" not in architecture) == []


def test_readme_names_every_environment_variable_that_settings_read() -> None:
    read = set(re.findall(r'"(TUNER_[A-Z_]+)"', text("tuner/settings.py")))
    assert read
    assert {name for name in read if f"`{name}`" not in text("README.md")} == set()


def test_client_page_names_every_environment_variable_that_the_client_reads() -> None:
    assert {name for name in OWN if f"`{name}`" not in text("docs/client.md")} == set()


def test_readme_names_every_extra_and_no_other() -> None:
    import tomllib

    extras = set(tomllib.loads(text("pyproject.toml"))["project"]["optional-dependencies"])
    listed = text("README.md").partition("Extras: ")[2].partition(".\n")[0]
    assert set(re.findall(r"`(\w+)`", listed)) == extras - {"cli"}


def test_readme_starts_with_the_two_commands_that_set_up_and_check() -> None:
    first_block = text("README.md").split("```")[1].splitlines()
    assert first_block[0] == "sh"
    assert len(first_block) == 3
    assert first_block[1].startswith("python3 -m venv .venv && ")
    assert first_block[1].endswith("tuner run --shapes examples/shapes.txt --device replay")
    assert first_block[2].endswith(" && .ci/check")


def test_changelog_starts_with_unreleased() -> None:
    headings = re.findall(r"^## (.*)$", text("CHANGELOG.md"), flags=re.MULTILINE)
    assert headings[0] == "Unreleased"


def test_evidence_page_counts_the_recorded_configs_of_every_shape() -> None:
    recording = Recording.load("h200")
    lines = []
    for problem in recording.problems():
        screened = [row for row in recording.rows(problem) if row.race is None]
        refused = sum(row.state is not TrialState.OK for row in screened)
        shape = problem.shape
        lines.append(f"| {shape.m} {shape.n} {shape.k} | {len(screened)} | {refused} |")
    assert "\n".join(lines) in text("docs/evidence.md")
    assert len(lines) >= 6


def test_every_evidence_file_is_named_on_the_evidence_page() -> None:
    files = {f"benchmarks/results/{path.name}" for path in (ROOT / "benchmarks/results").iterdir()}
    assert {file for file in files if f"`{file}`" not in text("docs/evidence.md")} == set()
