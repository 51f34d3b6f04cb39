"""What Prometheus asks for."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, multiprocess
from prometheus_fastapi_instrumentator import Instrumentator

from tuner.api.follower import Follower

TIERS = ("exact", "layer", "nearest", "sibling", "model")


class Metrics:
    """The numbers that are the service's own, beside those of its requests.

    Look-ups that are answered without a request's whole way through the service are counted here
    and not among the requests.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        lookups = Counter(
            "tuner_lookups",
            "Answers given, by how they were found.",
            ["tier"],
            registry=self.registry,
        )
        self._lookups = {tier: lookups.labels(tier) for tier in TIERS}
        self._up = self._gauge("tuner_database_up", "1 if the database could be read.", "livemin")
        self._in_step = self._gauge(
            "tuner_in_step_timestamp_seconds",
            "When the answers in memory were last in step with the database.",
            "livemin",
        )
        self._due = self._gauge(
            "tuner_due_problems", "Stored problems that are not read yet.", "livemax"
        )
        self._answers = self._gauge(
            "tuner_answers", "Problems with a measured answer.", "livemin", ["device"]
        )

    def served(self, tier: str) -> None:
        """One more answer of that tier."""
        self._lookups[tier].inc()

    def followed(self, follower: Follower) -> None:
        """Take down where the follower stands."""
        self._up.set(follower.failure is None)
        self._in_step.set(follower.in_step_at or 0)
        self._due.set(follower.due)
        for key, book in follower.view.books.items():
            self._answers.labels(key).set(len(book))

    def _gauge(self, name: str, what: str, mode: Any, labels: Sequence[str] = ()) -> Gauge:
        return Gauge(name, what, labels, registry=self.registry, multiprocess_mode=mode)


def forget_the_dead() -> None:
    """Take the numbers of processes that ended out of those that all processes share."""
    folder = os.environ.get("PROMETHEUS_MULTIPROC_DIR")
    for file in Path(folder).glob("gauge_live*.db") if folder else ():
        pid = file.stem.rpartition("_")[2]
        if not Path("/proc", pid).exists():
            multiprocess.mark_process_dead(int(pid), folder)  # type: ignore[no-untyped-call]


def install(app: FastAPI, metrics: Metrics) -> None:
    """Count the requests of `app`, and add GET /metrics."""
    instrumentator = Instrumentator(excluded_handlers=["/metrics"], registry=metrics.registry)
    instrumentator.instrument(app).expose(app, tags=["health"], response_class=PlainTextResponse)
