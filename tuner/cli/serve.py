"""`tuner serve`: the HTTP service."""

import os
import socket
from typing import Annotated

import typer

from tuner.cli.interrupts import interruptible
from tuner.cli.options import DatabaseOption, settings
from tuner.errors import TunerError


class AddressInUse(TunerError):
    """The service cannot listen where it was told to."""


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that answer.")] = 1,
    db: DatabaseOption = None,
) -> None:
    """Serve GET /best-config and the API's documentation from the database.

    Example: tuner serve --port 8000, then curl 'localhost:8000/best-config?m=4096&n=4096&k=4096'
    """
    # Heavy, and needed by this command only.
    import uvicorn

    from tuner.store.engine import open_store

    chosen = settings(db)
    # Made, upgraded or refused here, before anybody is told that it serves.
    with open_store(chosen.database_url) as repository:
        location = repository.location
    _require_free(host, port)
    # The processes of several workers build their app from the environment they inherit.
    os.environ["TUNER_DATABASE_URL"] = chosen.database_url
    typer.echo(f"Serving {location} on http://{host}:{port}; see /docs there.", err=True)
    with interruptible():  # the server ends in order, then passes its signal on to us
        uvicorn.run(
            "tuner.api.app:from_environment", factory=True, host=host, port=port, workers=workers
        )


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
