"""`tuner serve`: the HTTP service."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from tuner.cli.interrupts import interruptible
from tuner.cli.options import DatabaseOption, settings
from tuner.errors import TunerError

GRACE_S = 10
"""For requests that a stop finds unanswered."""


class AddressInUse(TunerError):
    """The service cannot listen where it was told to."""


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that answer.")] = 1,
    db: DatabaseOption = None,
) -> None:
    """Serve GET /best-config and the API's documentation from the database.

    Logs one JSON object a line to standard error. On SIGTERM it answers what it has begun, for up
    to ten seconds, and ends.

    Example: tuner serve --port 8000, then curl 'localhost:8000/best-config?m=4096&n=4096&k=4096'
    """
    # Heavy, and needed by this command only.
    import uvicorn

    from tuner.api.limits import Limits
    from tuner.api.logs import log_config
    from tuner.compiler.source import kernel_hash
    from tuner.store.engine import open_store

    chosen = settings(db)
    Limits.of(chosen.rate_limit)  # refused here, before any process is started
    # Made, upgraded or refused here, before anybody is told that it serves.
    with open_store(chosen.database_url) as repository:
        location = repository.location
    _require_free(host, port)
    # The processes of several workers build their app from the environment they inherit.
    os.environ["TUNER_DATABASE_URL"] = chosen.database_url
    os.environ["TUNER_KERNEL_HASH"] = chosen.kernel_hash or kernel_hash()
    typer.echo(f"Serving {location} on http://{host}:{port}; see /docs there.", err=True)
    with interruptible(), _shared_metrics(workers):
        # The server ends in order, then passes its signal on to us.
        uvicorn.run(
            "tuner.api.app:from_environment",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            log_config=log_config(),
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE_S,
        )


@contextmanager
def _shared_metrics(workers: int) -> Iterator[None]:
    """A folder in which several processes keep the numbers that any of them tells Prometheus."""
    if workers == 1 or "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        yield
        return
    with TemporaryDirectory(prefix="tuner-metrics-") as folder:
        os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
        yield


def _require_free(host: str, port: int) -> None:
    """Raises: AddressInUse, as a sentence, before a server starts and fails."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise AddressInUse(
            f"{host}:{port} cannot be listened on: {error.strerror}. Use another --port or --host."
        ) from None
