"""Many look-ups at once, and all of a device as it was published."""

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from tests.api.conftest import FAILED, KEY, LOST, NAME, TUNED, race
from tests.api.test_following import NEW, assert_served_from_memory, eventually
from tuner.api.routes.best_configs import BestConfigs
from tuner.lookup.snapshot import read_snapshot
from tuner.shape import GemmShape
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.trial import PROTOCOL_HOT


def publish(database: Path) -> str:
    with open_store(f"sqlite:///{database}") as repository:
        return Generations(repository).publish(KEY, "a test").id


def extents(shape: GemmShape) -> dict[str, int]:
    return {"m": shape.m, "n": shape.n, "k": shape.k}


def test_batch_answers_each_shape_as_a_look_up_of_its_own_does(client: TestClient) -> None:
    shapes = [TUNED, FAILED, GemmShape(8, 8, 9), LOST, NEW, TUNED]
    asked = [extents(shape) for shape in shapes]
    response = client.post("/best-configs", json={"shapes": asked, "protocol": PROTOCOL_HOT})
    assert response.status_code == 200
    BestConfigs.model_validate(response.json())
    for shape, result in zip(shapes, response.json()["results"], strict=True):
        alone = client.get("/best-config", params={**extents(shape), "protocol": PROTOCOL_HOT})
        assert result["shape"] == extents(shape)
        told = result["answer"] if alone.status_code == 200 else result["problem"]
        assert told == alone.json()
        assert (result["answer"] is None) is (alone.status_code != 200)


def test_batch_names_a_device_or_is_told_which_there_are(two_devices: TestClient) -> None:
    asked: dict[str, Any] = {"shapes": [extents(TUNED)] * 1000}
    assert client_status(two_devices, asked) == 400
    assert client_status(two_devices, {**asked, "device": "NVIDIA H200"}) == 404
    found = two_devices.post("/best-configs", json={**asked, "device": KEY}).json()["results"]
    assert [r["answer"]["device"]["key"] for r in found] == [KEY] * 1000


def client_status(client: TestClient, asked: dict[str, Any]) -> int:
    return client.post("/best-configs", json=asked).status_code


def test_snapshot_that_is_published_is_served_compressed_or_plain_under_its_id(
    client: TestClient, database: Path
) -> None:
    assert client.get("/snapshot").json()["state"] == "never_published"
    id = publish(database)
    eventually(lambda: client.get("/snapshot").status_code == 200)
    zipped = client.get("/snapshot", headers={"Accept-Encoding": "br, gzip;q=0.5"})
    plain = client.get("/snapshot", headers={"Accept-Encoding": "gzip;q=0, identity"})
    assert (zipped.headers["content-encoding"], zipped.headers["etag"]) == ("gzip", f'"{id}-gzip"')
    assert ("content-encoding" not in plain.headers, plain.headers["etag"]) == (True, f'"{id}"')
    assert zipped.content == plain.content
    snapshot = read_snapshot(plain.content, id)
    assert [e["shape"] for e in snapshot.entries] == [extents(LOST), extents(TUNED)]
    assert (snapshot.device_key, snapshot.device_name) == (KEY, NAME)
    assert plain.headers["cache-control"] == "no-cache"
    assert plain.headers["vary"] == "Accept-Encoding"


def test_client_that_has_the_snapshot_is_told_so_until_another_is_published(
    client: TestClient, database: Path
) -> None:
    id = publish(database)
    eventually(lambda: client.get("/snapshot").status_code == 200)
    for tag in (f'"{id}"', f'"{id}-gzip"', f'W/"{id}"', f'"other", "{id}"', "*"):
        response = client.get("/snapshot", headers={"If-None-Match": tag})
        assert (response.status_code, response.content) == (304, b""), tag
        assert id in response.headers["etag"]
    assert client.get("/snapshot", headers={"If-None-Match": '"other"'}).status_code == 200
    with open_store(f"sqlite:///{database}") as repository:
        repository.add(race(NEW, 150.0, 160.0, KEY, NAME))
    newer = publish(database)
    assert newer != id
    eventually(lambda: newer in client.get("/snapshot").headers["etag"])
    assert client.get("/snapshot", headers={"If-None-Match": f'"{id}"'}).status_code == 200
    pinned = client.get(f"/snapshot?id={id}")
    read_snapshot(pinned.content, id)
    assert "immutable" in pinned.headers["cache-control"]
    assert client.get(f"/snapshot?id={'0' * 64}").json()["state"] == "unknown_generation"


def test_snapshots_that_were_served_are_served_without_the_database_too(
    client: TestClient, database: Path
) -> None:
    id = publish(database)
    eventually(lambda: client.get("/snapshot").status_code == 200)
    for path in database.parent.glob("tuner.db*"):
        path.unlink()
    assert_served_from_memory(client, str(database))
    for url in ("/snapshot", f"/snapshot?id={id}"):
        read_snapshot(client.get(url).content, id)
    assert client.get(f"/snapshot?id={'0' * 64}").status_code == 503


def test_each_of_several_devices_has_its_snapshot(two_devices: TestClient, database: Path) -> None:
    publish(database)
    assert two_devices.get("/snapshot").status_code == 400
    eventually(lambda: two_devices.get(f"/snapshot?device={KEY}").status_code == 200)
    problem = two_devices.get("/snapshot?device=sm90-132sm-80gb").json()
    assert (problem["status"], problem["state"]) == (404, "never_published")
