"""One answer for one question: `python -m benchmarks.client_agreement`.

A service is started on what was recorded, with one shape that was tuned in vain, and the client
fetches what it serves. Both are then asked the same: shapes that were measured, shapes near those,
and shapes drawn at random, on terms drawn at random; the client's answer must be the service's, in
every field. `--out` stores the counts. Exits with 1 if one answer differs.
"""

import json
import os
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import harness
from benchmarks.load_processes import SERVICE, serving
from benchmarks.store_databases import environment
from tuner.cli.provenance import commit_measured
from tuner.client.configs import TunedConfigs
from tuner.client.settings import ClientSettings
from tuner.client.sources import find_source
from tuner.config import KernelConfig
from tuner.device.replay import Recording
from tuner.shape import GemmShape, Problem
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, ShapeOutcome, ShapeState

BATCH = 20
"""Shapes that are asked for on the same terms."""
VAIN = GemmShape(640, 640, 640)
SHOWN = 5


@dataclass
class Agreement:
    """asked: questions by the tier that answered; `none`: refused. differ: where answers did."""

    generation: str
    asked: Counter[str] = field(default_factory=Counter)
    stale: int = 0
    differ: list[dict[str, Any]] = field(default_factory=list)


def fill(url: str) -> str:
    """Store the recording and one vain tuning, and publish; the id of the generation."""
    recording = Recording.load("h200")
    with open_store(url) as store:
        for problem in recording.problems():
            store.add(recording.rows(problem))
        row = recording.rows(recording.problems()[0])[0]
        store.finish_shape(
            ShapeOutcome(
                Problem(VAIN, row.problem.sms),
                row.device_key,
                row.device_name,
                row.toolchain,
                ShapeState.NO_VALID_CONFIG,
                counts={"wrong_result": 3},
            )
        )
        return Generations(store).publish(row.device_key, "benchmark").id


def questions(count: int, seed: int) -> Iterator[tuple[dict[str, Any], list[GemmShape]]]:
    """Terms, and shapes to ask for on them; `count` shapes in all."""
    random = Random(seed)
    tuned = [problem.shape for problem in Recording.load("h200").problems()]
    while count > 0:
        terms = {
            "d": random.choice(("row", "row", "col")),
            "sms": random.choice((None, None, None, 132, 66, random.randint(1, 132))),
            "protocol": random.choice((None, None, PROTOCOL_HOT, PROTOCOL_COOL)),
            "numerics": random.choice((None, None, "invariant", "deterministic")),
            "launch": random.choice(("any", "any", "plain")),
            "match": random.choice((*("any",) * 7, "exact")),
        }
        size = min(BATCH, count)
        yield terms, [shape(random, tuned) for _ in range(size)]
        count -= size


def shape(random: Random, tuned: Sequence[GemmShape]) -> GemmShape:
    kind = random.random()
    if kind < 0.3:
        return random.choice((*tuned, VAIN))
    if kind < 0.6:
        near = random.choice(tuned)
        extents = [max(1, round(e * 2 ** random.gauss(0, 1))) for e in (near.m, near.n, near.k)]
    else:
        extents = [max(1, round(2 ** random.uniform(0, 16))) for _ in range(3)]
    k = extents[2] if random.random() < 0.05 else extents[2] + -extents[2] % 8
    return GemmShape(extents[0], extents[1], k)


def asked_service(
    port: int, device: str, terms: dict[str, Any], shapes: Sequence[GemmShape]
) -> list[dict[str, Any]]:
    body = {
        "shapes": [harness.extents(shape) for shape in shapes],
        "device": device,
        **{name: value for name, value in terms.items() if value is not None},
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/best-configs",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        read: dict[str, list[dict[str, Any]]] = json.loads(response.read())
    return read["results"]


def compare(count: int, seed: int, kernel_hash: str | None = None) -> Agreement:
    """Ask both `count` questions. kernel_hash: the kernel that both judge answers by."""
    recorded = Recording.load("h200").toolchain.kernel_hash
    judged = kernel_hash or recorded
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        url = f"sqlite:///{folder / 'tuner.db'}"
        agreement = Agreement(fill(url))
        with (
            changed({"TUNER_KERNEL_HASH": judged, "TUNER_RATE_LIMIT": "off"}),
            serving(SERVICE, "/readyz", folder / "log", url) as port,
        ):
            configs = client_of(port, folder / "cache", judged)
            if configs.generation != agreement.generation or configs.device is None:
                raise SystemExit(f"the client was not served: {' '.join(configs.problems)}")
            for terms, shapes in questions(count, seed):
                results = asked_service(port, configs.device, terms, shapes)
                for one, result in zip(shapes, results, strict=True):
                    note(agreement, configs, terms, one, result)
    return agreement


def note(
    agreement: Agreement,
    configs: TunedConfigs,
    terms: dict[str, Any],
    shape: GemmShape,
    result: dict[str, Any],
) -> None:
    best = configs.best_config(shape.m, shape.n, shape.k, **terms)
    answer = json.loads(json.dumps(best.answer))
    refused = result["problem"]["detail"] if result["problem"] else ""
    agreement.asked[best.tier] += 1
    agreement.stale += best.stale
    if best.config is not None:
        KernelConfig.from_dict(best.config)
    if (answer, best.reason) != (result["answer"], refused):
        told = {"service": result, "client": answer, "reason": best.reason}
        agreement.differ.append({**harness.extents(shape), **terms, **told})


def client_of(port: int, cache: Path, kernel_hash: str) -> TunedConfigs:
    """As `load` in a new process, with as much time as it takes."""
    environment = {
        "TUNER_API_URL": f"http://127.0.0.1:{port}",
        "TUNER_CACHE_DIR": str(cache),
        "TUNER_KERNEL_HASH": kernel_hash,
    }
    settings = ClientSettings.from_environment(environment)
    loaded = find_source(settings, Recording.load("h200").device.key, patience_s=60.0)
    return TunedConfigs(loaded, kernel_hash=kernel_hash)


@contextmanager
def changed(variables: dict[str, str]) -> Iterator[None]:
    """The environment of processes that are started meanwhile."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> int:
    arguments = harness.parser(__doc__, "benchmarks.client_agreement")
    arguments.add_argument("--shapes", type=int, default=10_000)
    arguments.add_argument("--seed", type=int, default=1)
    chosen = arguments.parse_args()
    rows = []
    for kernel_hash in (None, "0123456789abcdef"):
        found = compare(chosen.shapes, chosen.seed, kernel_hash)
        row = {
            "judged_by": kernel_hash or "the kernel that was recorded",
            "generation": found.generation,
            "asked": found.asked.total(),
            "by_tier": dict(found.asked),
            "stale": found.stale,
            "differ": len(found.differ),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
        for one in found.differ[:SHOWN]:
            print(json.dumps(one), file=sys.stderr)
    if chosen.out:
        body = {
            "command": harness.command_of("benchmarks.client_agreement"),
            "commit": commit_measured(chosen.commit).name,
            "environment": environment(None),
            "rows": rows,
        }
        chosen.out.write_text(json.dumps(body, indent=1) + "\n")
    return int(any(row["differ"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
