"""Clients that see no machine but the test's: their cache, environment and server are its own."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.lookup.measured import H200, known
from tuner.client import TunedConfigs, sources
from tuner.client.settings import OWN, ClientSettings
from tuner.client.sources import find_source
from tuner.client.told import packed
from tuner.lookup.snapshot import Snapshot, build_snapshot

Client = Callable[..., TunedConfigs]
"""Loads configs with TUNER_ variables by their rest, in lower case."""


@pytest.fixture(scope="session")
def snapshot() -> Snapshot:
    """Seven problems of an H200."""
    return build_snapshot(H200, "NVIDIA H200", known())


@pytest.fixture(scope="session")
def newer() -> Snapshot:
    """What the device serves after that."""
    return build_snapshot(H200, "NVIDIA H200", known()[:4])


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Where the client keeps snapshots."""
    return tmp_path / "cache" / "client"


@pytest.fixture(autouse=True)
def _own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the user's cache and settings, or says something when all have ended."""
    for name in OWN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(TunedConfigs, "report_at_exit", lambda _: None)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of shipped snapshots; empty."""
    folder = tmp_path / "snapshots"
    folder.mkdir()
    monkeypatch.setattr(sources, "SHIPPED", str(folder))
    return folder


@pytest.fixture
def ships(package: Path) -> Callable[[Snapshot], None]:
    """Put a snapshot into the package."""

    def ship(one: Snapshot) -> None:
        (package / f"{one.device_key}.{one.id}.json.gz").write_bytes(packed(one.body))

    return ship


@pytest.fixture
def client(package: Path) -> Client:
    """As a new process would load, on a machine where nothing but the test's cache is kept."""

    def load(device: str | None = None, patience_s: float = 20.0, **variables: str) -> TunedConfigs:
        # A good server has its time, however busy the machine is.
        settings = settings_of(package.with_name("cache"), variables)
        return TunedConfigs(
            find_source(settings, device, patience_s),
            device,
            strict=settings.strict,
            kernel_hash=settings.kernel_hash,
        )

    return load


@pytest.fixture
def impatient(client: Client) -> Client:
    """The same, which waits for no server that hangs."""
    return partial(client, patience_s=0.3)


def settings_of(cache: Path, variables: Mapping[str, str]) -> ClientSettings:
    named = {f"TUNER_{name.upper()}": value for name, value in variables.items()}
    settings = ClientSettings.from_environment({"TUNER_CACHE_DIR": str(cache), **named})
    settings.folders = settings.folders[:1]  # and not the folder of the machine
    return settings
