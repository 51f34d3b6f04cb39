"""A service over a real SQLite store that holds two tuned shapes and one that failed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from tuner.api import follower
from tuner.api.app import create_app
from tuner.api.limits import Limits
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.trial import (
    PROTOCOL_COOL,
    PROTOCOL_HOT,
    Contender,
    Measurement,
    ShapeOutcome,
    ShapeState,
    Toolchain,
    TrialState,
)

KEY, NAME, SMS = "sm90-132sm-141gb", "NVIDIA H200", 132
TOOLCHAIN = Toolchain("kernel-hash", "13.0.88")
CONFIG = KernelConfig(KernelVariant(128, 256, 4), LaunchKnobs(num_sms=SMS))
TUNED = GemmShape(4096, 4096, 4096)
LOST = GemmShape(512, 512, 4096)
FAILED = GemmShape(64, 64, 64)
TOO_LARGE = GemmShape(2**31 - 1, 2**31 - 1, 8)


def race(
    shape: GemmShape,
    kernel_us: float,
    cublas_us: float,
    key: str,
    name: str,
    config: KernelConfig = CONFIG,
) -> list[Measurement]:
    """Ten equal rounds under each protocol."""
    contenders = {
        Contender("kernel", config): kernel_us,
        Contender("cublas"): cublas_us,
        Contender("cublaslt", algorithm="tile 128x256"): cublas_us,
    }
    return [
        Measurement(
            problem=Problem(shape, SMS),
            device_key=key,
            device_name=name,
            protocol=protocol,
            contender=contender,
            toolchain=TOOLCHAIN,
            state=TrialState.OK,
            samples_us=(us,) * 10,
            race=f"{shape}-{protocol}-{key}-{config}",
        )
        for protocol in (PROTOCOL_HOT, PROTOCOL_COOL)
        for contender, us in contenders.items()
    ]


def outcome(shape: GemmShape, state: ShapeState, key: str, name: str, detail: str) -> ShapeOutcome:
    return ShapeOutcome(
        problem=Problem(shape, SMS),
        device_key=key,
        device_name=name,
        toolchain=TOOLCHAIN,
        state=state,
        detail=detail,
        counts={"crashed": 2, "wrong_result": 3} if state is ShapeState.NO_VALID_CONFIG else {},
    )


def fill(repository: Repository, key: str = KEY, name: str = NAME) -> None:
    repository.add(race(TUNED, 200.0, 220.0, key, name))
    repository.add(race(LOST, 12.0, 10.0, key, name))
    for shape, state, detail in (
        (TUNED, ShapeState.TUNED, ""),
        (LOST, ShapeState.TUNED, ""),
        (FAILED, ShapeState.NO_VALID_CONFIG, ""),
        (TOO_LARGE, ShapeState.DOES_NOT_FIT, "needs 8.0 EiB; the device has 141 GiB."),
    ):
        repository.finish_shape(outcome(shape, state, key, name, detail))


@pytest.fixture(autouse=True)
def _follow_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "POLL_S", 0.03)


@pytest.fixture(scope="session")
def filled_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A filled SQLite file that nobody may change."""
    path = tmp_path_factory.mktemp("filled") / "tuner.db"
    with open_store(f"sqlite:///{path}") as repository:
        fill(repository)
    return path


@pytest.fixture
def database(filled_database: Path, tmp_path: Path) -> Path:
    """A filled SQLite file of the test's own."""
    return Path(shutil.copy(filled_database, tmp_path))


@contextmanager
def serving(url: str, api_token: str | None = None) -> Iterator[TestClient]:
    """A client that turns an exception of the service into its 500, as a server does."""
    app = create_app(url, api_token=api_token, limits=Limits(rate=None))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def client(database: Path) -> Iterator[TestClient]:
    with serving(f"sqlite:///{database}") as client:
        yield client


@pytest.fixture
def empty_client(tmp_path: Path) -> Iterator[TestClient]:
    with serving(f"sqlite:///{tmp_path / 'empty.db'}") as client:
        yield client


@pytest.fixture
def two_devices(database: Path) -> Iterator[TestClient]:
    with open_store(f"sqlite:///{database}") as repository:
        fill(repository, "sm90-132sm-80gb", "NVIDIA H100 80GB HBM3")
    with serving(f"sqlite:///{database}") as client:
        yield client
