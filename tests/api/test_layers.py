"""Every M of a tuned layer is answered, as its races show it or as it was published."""

import sqlite3
from contextlib import closing
from pathlib import Path

from fastapi.testclient import TestClient

from tests.api.conftest import KEY, serving
from tests.api.test_following import eventually, tier
from tests.lookup.crossed import LARGE, SMALL, K, N, crossed
from tests.store.test_layers import RACES, rows
from tuner.store.engine import open_store
from tuner.store.generations import Generations


def all_exact(client: TestClient) -> bool:
    """Asked first: an answer that is borrowed is lent again for a while."""
    return all(tier(client, ask(m)) == "exact" for m in RACES)


def ask(m: int, more: str = "") -> str:
    return f"/best-config?m={m}&n={N}&k={K}{more}"


def test_a_layer_is_served_as_soon_as_its_races_are_stored(
    client: TestClient, database: Path
) -> None:
    assert tier(client, ask(40)) != "layer"
    with open_store(f"sqlite:///{database}") as repository:
        repository.add(rows())
    eventually(lambda: all_exact(client))
    answer = client.get(ask(41)).json()
    assert answer["match"] == {"tier": "layer", "from_shape": {"m": 32, "n": N, "k": K}}
    assert answer["confidence"]["expected_regret"]["cases"] >= 1
    assert answer["confidence"]["distance"] > 0
    assert (answer["measurement"], answer["speedup"]) == (None, None)
    assert tier(client, ask(32)) == "exact"
    assert tier(client, ask(129)) != "layer"
    assert client.get(ask(41, "&match=exact")).status_code == 404
    assert tier(client, ask(41, "&protocol=graph-coldl2-hot/1")) == "layer"
    assert tier(client, ask(41, "&launch=plain")) == "layer"


def test_a_layer_changes_with_its_races(client: TestClient, database: Path) -> None:
    with open_store(f"sqlite:///{database}") as repository:
        repository.add([row for race in RACES[16] for row in race.measurements])
        eventually(lambda: tier(client, ask(16)) == "exact")
        for m in (18, 20):
            of_m = crossed(m, {SMALL: 70, LARGE: 40 if m == 20 else 71})
            repository.add([row for race in of_m for row in race.measurements])
        eventually(lambda: tier(client, ask(20)) == "exact")
    assert [tier(client, ask(m)) for m in (15, 17, 19)] == ["nearest", "layer", "layer"]


def test_layers_of_a_published_generation_are_served_where_the_rows_are_elsewhere(
    database: Path, tmp_path: Path
) -> None:
    publisher = tmp_path / "publisher.db"
    with open_store(f"sqlite:///{publisher}") as repository:
        repository.add(rows())
        snapshot = Generations(repository).publish(KEY, "me")
    with closing(sqlite3.connect(publisher)) as connection:
        tables = ("generations", "publications")
        brought = {t: connection.execute(f"SELECT * FROM {t}").fetchall() for t in tables}
    with closing(sqlite3.connect(database)) as connection, connection:
        for table, (row,) in brought.items():
            places = ",".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} VALUES ({places})", row)
    with serving(f"sqlite:///{database}") as client:
        assert client.get("/snapshot").headers["etag"].strip('"').startswith(snapshot.id[:8])
        assert tier(client, ask(40)) == "layer"


def test_budgets_and_orders_of_d_are_layers_of_their_own(
    client: TestClient, database: Path
) -> None:
    with open_store(f"sqlite:///{database}") as repository:
        repository.add(rows())
    eventually(lambda: all_exact(client))
    assert tier(client, ask(50)) == "layer"
    assert tier(client, ask(50, "&sms=66")) != "layer"
    assert tier(client, ask(50, "&d=col")) != "layer"
