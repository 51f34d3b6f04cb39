"""What a stranger gets: the wheel, the sdist, the editable install, and the import rules."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from ast import literal_eval
from collections.abc import Sequence
from email.parser import Parser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINKED = ("api", "kernels", "migrations")
THIRD_PARTY = (
    "import sys, {modules}\n"
    "own = set(sys.stdlib_module_names) | {{'tuner', '__main__'}}\n"
    "print(sorted({{m.partition('.')[0] for m in sys.modules}} - own - set({before!r})))"
)
PURE = (
    "tuner",
    "tuner.errors",
    "tuner.shape",
    "tuner.hardware",
    "tuner.config",
    "tuner.legality",
    "tuner.trial",
    "tuner.settings",
    "tuner.lookup",
    "tuner.client",
    "tuner.client.rules",
    "tuner.client.fetch",
    "tuner.shape_files",
)


def run(command: Sequence[str | Path], cwd: Path, **environment: str) -> str:
    """Standard output of a command that must succeed."""
    inherited = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PIP_CONSTRAINT")}
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**inherited, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def copy_of_checkout(target: Path) -> Path:
    unwanted = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info", "build", "dist"
    )
    return shutil.copytree(ROOT, target, symlinks=True, ignore=unwanted)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_checkout(tmp_path_factory.mktemp("build") / "checkout")


@pytest.fixture(scope="module")
def wheel(checkout: Path) -> Path:
    """Built from the sdist, as `build` does by default."""
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", "."], checkout)
    (built,) = (checkout / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def setuptools_only(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing to import but the build backend."""
    folder = tmp_path_factory.mktemp("backend")
    site_packages = Path(sysconfig.get_path("purelib"))
    for found in (*site_packages.glob("setuptools*"), site_packages / "_distutils_hack"):
        (folder / found.name).symlink_to(found)
    return folder


def empty_environment(folder: Path) -> Path:
    """The interpreter of an environment without any package."""
    venv.create(folder)
    return folder / "bin" / "python"


def pip(python: Path, *arguments: str | Path) -> list[str | Path]:
    """This environment's pip, which takes seconds to install, at work in another environment."""
    return [sys.executable, "-m", "pip", "--python", python, *arguments]


def sources(root: Path) -> set[str]:
    """Every file the package needs, by its path in the wheel."""
    kinds = {".py", ".cu", ".cuh", ".mako", ".gz", ".json", ".html", ".css", ".typed"}
    found = set()
    for path in (root / "tuner").rglob("*"):
        if path.is_file() and path.suffix in kinds:
            found.add(path.relative_to(root).as_posix())
    for folder in LINKED:
        for path in (root / folder).rglob("*"):
            if path.is_file() and path.suffix in kinds:
                found.add("tuner/" + path.relative_to(root).as_posix())
    return found


def test_wheel_adds_exactly_one_import_package_with_every_source_file_in_it(
    wheel: Path, checkout: Path
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
        links = [i.filename for i in archive.infolist() if (i.external_attr >> 28) == 0o12]
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA")))
    assert {n.partition("/")[0] for n in names} == {"tuner"}
    assert links == []
    assert sources(checkout) - names == set()
    described = Parser().parsestr(metadata.decode())
    assert described["License-Expression"] == "MIT"
    assert [r for r in described.get_all("Requires-Dist", []) if "extra ==" not in r] == []
    assert "torch" not in metadata.decode().lower()


def test_sdist_holds_real_files_under_tuner_only(wheel: Path, checkout: Path) -> None:
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers()}
    assert [name for name, m in members.items() if m.issym() or m.islnk()] == []
    assert sources(checkout) - set(members) == set()
    folders = {name.partition("/")[0] for name in members if "/" in name}
    assert folders == {"tuner", "gemm_tuner.egg-info"}


def test_plain_install_needs_nothing_else_and_importing_it_loads_no_third_party_module(
    wheel: Path, tmp_path: Path
) -> None:
    python = empty_environment(tmp_path / "venv")
    run(pip(python, "install", "--no-index", "--quiet", wheel), tmp_path)
    before = run([python, "-I", "-c", "import sys; print(list(sys.modules))"], tmp_path)
    names = {n.partition(".")[0] for n in literal_eval(before)}
    script = THIRD_PARTY.format(modules=", ".join(PURE), before=sorted(names))
    assert run([python, "-I", "-c", script], tmp_path).strip() == "[]"
    listed = run(pip(python, "list", "--format=freeze"), tmp_path)
    assert [line.partition("==")[0] for line in listed.split()] == ["gemm-tuner"]


def test_editable_install_finds_the_linked_folders_and_leaks_no_other_import_name(
    checkout: Path, setuptools_only: Path, tmp_path: Path
) -> None:
    python = empty_environment(tmp_path / "venv")
    run(
        pip(python, "install", "--no-index", "--no-build-isolation", "-q", "-e", "."),
        checkout,
        PYTHONPATH=str(setuptools_only),
    )
    script = (
        "import importlib.util as u, tuner, tuner.api, tuner.migrations; print(tuner.__file__);"
        "print([n for n in ('api', 'kernels', 'migrations', 'tests', 'benchmarks')"
        " if u.find_spec(n)])"
    )
    where, leaked = run([python, "-I", "-c", script], tmp_path).splitlines()
    assert Path(where) == checkout / "tuner" / "__init__.py"
    assert leaked == "[]"


PLANTED = {
    "one stage importing another": ("tuner/compiler/planted.py", "import tuner.search"),
    "the store importing the device": ("tuner/store/planted.py", "import tuner.device.protocol"),
    "the service importing the compiler": ("api/planted.py", "import tuner.compiler"),
    "the service importing Optuna": ("api/planted.py", "import optuna"),
    "look-ups importing SQLAlchemy": ("tuner/lookup/planted.py", "import sqlalchemy"),
    "the client importing the store": ("tuner/client/planted.py", "import tuner.store"),
    "the client importing NumPy": ("tuner/client/planted.py", "import numpy"),
    "vocabulary importing a stage": ("tuner/planted.py", "import tuner.store"),
    "the search importing SQLAlchemy": ("tuner/search/planted.py", "import sqlalchemy"),
    "a stage reading settings": ("tuner/search/planted.py", "import tuner.settings"),
}


@pytest.mark.parametrize("violation", PLANTED)
def test_import_rules_refuse(violation: str, tmp_path: Path) -> None:
    path, line = PLANTED[violation]
    copied = tmp_path / "checkout"
    for folder in ("tuner", *LINKED):
        shutil.copytree(ROOT / folder, copied / folder, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", copied)
    (copied / path).write_text(f'"""Planted."""\n\n{line}\n')
    lint = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [lint, "--no-cache"], cwd=copied, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "planted" in done.stdout
