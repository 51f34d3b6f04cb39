"""Servers that a client must survive, each behind a URL; used by tests and `client_servers`."""

import gzip
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256

Behaviour = Callable[[socket.socket, threading.Event], None]
"""Answers one connection; the event is set when the server ends."""

DRIP_S = 0.25
OTHER_DEVICE = "sm90-114sm-80gb"
BOMB_BYTES = 200 * 2**20
BACKLOG = 16
"""Connections that fill the queue of a server that accepts none."""


def response(
    status: int, body: bytes = b"", kind: str = "application/json", **headers: str
) -> bytes:
    """A whole HTTP response. headers: with underscores for dashes."""
    named = {"Content-Type": kind, "Content-Length": str(len(body)), "Connection": "close"}
    named |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"HTTP/1.1 {status} So", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body


def snapshot_response(body: bytes, **headers: str) -> bytes:
    """As the service sends a snapshot."""
    tag = f'"{sha256(body).hexdigest()}-gzip"'
    return response(200, gzip.compress(body), Content_Encoding="gzip", ETag=tag, **headers)


def sending(content: bytes) -> Behaviour:
    """Reads the request, answers so, and closes."""

    def answer(connected: socket.socket, _: threading.Event) -> None:
        connected.recv(65536)
        connected.sendall(content)

    return answer


def dripping(content: bytes, at_once: int) -> Behaviour:
    """Sends the first bytes at once, and then one after the other, slowly."""

    def answer(connected: socket.socket, ended: threading.Event) -> None:
        connected.recv(65536)
        connected.sendall(content[:at_once])
        for at in range(at_once, len(content)):
            if ended.wait(DRIP_S):
                return
            connected.sendall(content[at : at + 1])

    return answer


def silent(connected: socket.socket, ended: threading.Event) -> None:
    connected.recv(65536)
    ended.wait()


def endless_headers(connected: socket.socket, ended: threading.Event) -> None:
    connected.recv(65536)
    connected.sendall(b"HTTP/1.1 200 OK\r\n")
    while not ended.wait(0.01):
        connected.sendall(b"X-More: of them\r\n")


def endless_body(connected: socket.socket, ended: threading.Event) -> None:
    connected.recv(65536)
    connected.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
    while not ended.is_set():
        connected.sendall(b" " * 2**16)


def behaviours(body: bytes) -> Mapping[str, Behaviour]:
    """By name what servers do that have something else to send than the snapshot `body`."""
    good = snapshot_response(body)
    other = body.replace(json.loads(body)["device"]["key"].encode(), OTHER_DEVICE.encode())
    cut = good[: len(good) // 2]
    html = b"<!doctype html><title>Log in</title>"
    problem = b'{"type": "about:blank", "status": 404, "detail": "Nothing is published."}'
    found: dict[str, Behaviour] = {
        "silent": silent,
        "drips headers": dripping(good, 4),
        "drips the body": dripping(good, good.index(b"\r\n\r\n") + 4),
        "endless headers": endless_headers,
        "endless body": endless_body,
        "closes at once": sending(b""),
        "no HTTP": sending(b"\x15\x03\x01\x00\x02\x02\x16"),
        "HTML": sending(response(200, html, "text/html")),
        "HTML, 404": sending(response(404, html, "text/html")),
        "problem, 404": sending(response(404, problem, "application/problem+json")),
        "redirects to itself": sending(response(302, Location="/snapshot")),
        "redirects without saying where": sending(response(301)),
        "500": sending(response(500, b"Internal Server Error", "text/plain")),
        "503": sending(response(503, b"{}", Retry_After="1")),
        "304 of what nobody has": sending(response(304)),
        "cut off": sending(cut),
        "not what the ETag says": sending(response(200, body, ETag=f'"{"0" * 64}"')),
        "damaged gzip": sending(response(200, b"\x1f\x8b" + b"\0" * 99)),
        "gzip bomb": sending(response(200, bomb())),
        "empty": sending(response(200)),
        "other JSON": sending(response(200, b'{"hello": "world"}')),
        "nested JSON": sending(response(200, b"[" * 200_000)),
        "another device": sending(snapshot_response(other)),
    }
    return found


def bomb() -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
    piece = b" " * 2**20
    packed = [deflate.compress(piece) for _ in range(BOMB_BYTES // len(piece))]
    return b"".join([*packed, deflate.flush()])


class Counted:
    """requests: connections that were answered, or are being answered."""

    def __init__(self, url: str) -> None:
        self.url, self.requests = url, 0


@contextmanager
def behaving(behaviour: Behaviour) -> Iterator[Counted]:
    """A server on the loopback that does so with every connection."""
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        counted = Counted(f"http://127.0.0.1:{listening.getsockname()[1]}")

        def answer(connected: socket.socket) -> None:
            with connected, suppress(OSError):
                behaviour(connected, ended)

        def accept() -> None:
            with suppress(OSError):
                while not ended.is_set():
                    connected, _ = listening.accept()
                    counted.requests += 1
                    threading.Thread(target=answer, args=[connected], daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield counted
        finally:
            ended.set()
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


@contextmanager
def refusing() -> Iterator[Counted]:
    """Nobody listens at the port."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield Counted(f"http://127.0.0.1:{bound.getsockname()[1]}")


@contextmanager
def swallowing() -> Iterator[Counted]:
    """Packets get no answer: the queue is full and nothing is accepted."""
    with ExitStack() as open_, socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(BACKLOG):
            waiting = open_.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(listening.getsockname())
        yield Counted(f"http://127.0.0.1:{listening.getsockname()[1]}")
