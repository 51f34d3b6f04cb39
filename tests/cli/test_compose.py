"""docker-compose.yml and Dockerfile start commands that exist, in an order that works, safely."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.walk_service import Failed, in_order, read_compose
from tests.cli.conftest import Cli

ROOT = Path(__file__).resolve().parent.parent.parent
COMPOSE, DOCKERFILE = ROOT / "docker-compose.yml", ROOT / "Dockerfile"
SECRETS = {"POSTGRES_PASSWORD": "of the tests", "TUNER_API_TOKEN": "of the tests too"}
OURS = ("migrate", "api", "worker")


@pytest.fixture(scope="module")
def services() -> Mapping[str, Any]:
    return read_compose(COMPOSE, SECRETS)


def test_each_service_waits_for_what_it_needs(services: Mapping[str, Any]) -> None:
    assert in_order(services) == ["postgres", "migrate", "api", "worker"]
    waits = {name: services[name]["depends_on"] for name in OURS}
    assert waits["migrate"] == {"postgres": {"condition": "service_healthy"}}
    migrated = {"migrate": {"condition": "service_completed_successfully"}}
    assert waits["api"] == waits["worker"] == migrated
    assert "pg_isready" in services["postgres"]["healthcheck"]["test"]
    assert "/readyz" in services["api"]["healthcheck"]["test"][-1]
    assert services["postgres"]["volumes"] == ["database:/var/lib/postgresql/data"]


def test_commands_and_their_options_exist(services: Mapping[str, Any], cli: Cli) -> None:
    for name in OURS:
        command = services[name]["command"]
        words = [word for word in command if re.fullmatch("[a-z]+", word)]
        told = cli(*words[: 2 if name == "migrate" else 1], "--help")
        assert told.code == 0, command
        for option in (word for word in command if word.startswith("--")):
            assert option in told.out, (name, option)


def test_services_read_settings_that_exist(services: Mapping[str, Any]) -> None:
    read = set(re.findall(r'"(TUNER_[A-Z_]+)"', (ROOT / "tuner/settings.py").read_text()))
    for name in OURS:
        environment = services[name]["environment"]
        # The last two are read by libpq and by uvicorn.
        assert set(environment) - {"PGPASSWORD", "FORWARDED_ALLOW_IPS"} <= read, name
        assert environment["TUNER_DATABASE_URL"] == "postgresql://tuner@postgres/tuner"
        assert environment["PGPASSWORD"] == services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert services["api"]["environment"]["TUNER_API_TOKEN"] == SECRETS["TUNER_API_TOKEN"]


def test_services_may_do_no_more_than_they_must(services: Mapping[str, Any]) -> None:
    for name in OURS:
        service = services[name]
        assert service["read_only"] is True, name
        assert service["tmpfs"] == ["/tmp"], name
        assert service["cap_drop"] == ["ALL"], name
        assert "privileged" not in service
        assert not [v for v in service.get("volumes", ()) if v.startswith((".", "/", "~"))]
    for name, service in services.items():
        assert "no-new-privileges:true" in service["security_opt"], name
    # Only the API listens to the outside and, unless told otherwise, to this machine only.
    assert {name for name in services if "ports" in services[name]} == {"api"}
    assert services["api"]["ports"] == ["127.0.0.1:8000:8000"]


def test_only_the_worker_has_a_gpu(services: Mapping[str, Any]) -> None:
    assert [name for name in services if "deploy" in services[name]] == ["worker"]
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": 1, "capabilities": ["gpu"]}
    assert services["worker"]["command"][:3] == ["worker", "--device", "cuda:0"]


def test_secrets_have_no_default_and_a_missing_password_is_named() -> None:
    with pytest.raises(Failed, match=r"POSTGRES_PASSWORD: put POSTGRES_PASSWORD=... into .env"):
        read_compose(COMPOSE, {})
    assert read_compose(COMPOSE, {"POSTGRES_PASSWORD": "x"})["api"]["environment"][
        "TUNER_API_TOKEN"
    ] in ("", None)


def test_images_run_as_a_user_of_their_own_and_each_target_is_there(
    services: Mapping[str, Any],
) -> None:
    text = DOCKERFILE.read_text(encoding="utf-8")
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", text, re.M)
    names = {name for _, name in stages}
    assert {services[name]["build"]["target"] for name in OURS} <= names
    final = {name: base for base, name in stages if name in ("api", "worker")}
    assert set(final.values()) == {"runtime"}
    runtime = text.partition(" AS runtime\n")[2].partition("\nFROM ")[0]
    (user,) = re.findall(r"^USER (\d+)$", runtime, re.M)
    assert int(user) > 0
    assert "USER" not in text.partition("AS worker\n")[2]
    # What is copied into the build is what .dockerignore lets through.
    copies = re.findall(r"^COPY (.*) \S+$", text.partition(" AS runtime")[0], re.M)
    copied = {word for line in copies for word in line.split()}
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line[0] == "!"}
    assert copied == allowed
    assert all((ROOT / path).exists() for path in copied)
