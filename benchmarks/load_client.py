"""Loads an HTTP server on the loopback for a bounded time: with `wrk`, or without it in Python.

`wrk` hardly costs anything beside the server. The client in Python costs more than most servers,
so that what it measures is as much itself; ratios are then nearer to 1 than they are.
"""

import asyncio
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

LONGEST_S = 60
TIMEOUT_S = 10
"""For one answer."""

_SCRIPT = """
local paths = {%s}
local n = 0
request = function()
  n = n %% #paths + 1
  return wrk.format("GET", paths[n])
end
done = function(summary, latency, requests)
  local e = summary.errors
  io.write(string.format('JSON {"requests": %%d, "seconds": %%.6f, "p50_ms": %%.4f, ' ..
    '"p99_ms": %%.4f, "not_200": %%d, "failed": %%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3,
    latency:percentile(99) / 1e3, e.status, e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of it. not_200: answers of another status; failed: requests without an answer."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    not_200: int
    failed: int

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def load(
    port: int, paths: Sequence[str], connections: int, seconds: int, with_wrk: bool | None = None
) -> Load:
    """GET `paths` of 127.0.0.1:`port` in turn, over as many connections at once.

    with_wrk: None: if it is installed.
    """
    if not 1 <= seconds <= LONGEST_S:
        raise ValueError(f"a load lasts 1 to {LONGEST_S} seconds, not {seconds}")
    if has_wrk() if with_wrk is None else with_wrk:
        return _by_wrk(port, paths, connections, seconds)
    return asyncio.run(_by_python(port, paths, connections, seconds))


def _by_wrk(port: int, paths: Sequence[str], connections: int, seconds: int) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "paths.lua"
        script.write_text(_SCRIPT % ", ".join(json.dumps(path) for path in paths))
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", f"--timeout={TIMEOUT_S}s"]
        done = subprocess.run(
            [*command, "-s", str(script), f"http://127.0.0.1:{port}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=seconds + 2 * TIMEOUT_S,
        )
    told = next(line for line in done.stdout.splitlines() if line.startswith("JSON "))
    return Load(**json.loads(told.removeprefix("JSON ")))


async def _by_python(port: int, paths: Sequence[str], connections: int, seconds: int) -> Load:
    requests = [f"GET {p} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode() for p in paths]
    took: list[float] = []
    statuses: list[int] = []
    began = time.perf_counter()

    async def ask(first: int) -> int:
        """Requests of one connection that failed; one ends it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        number = first
        try:
            while (asked := time.perf_counter()) < began + seconds:
                writer.write(requests[number % len(requests)])
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(h for h in head.lower().split(b"\r\n") if h.startswith(b"content-le"))
                await reader.readexactly(int(length.split(b":")[1]))
                took.append(time.perf_counter() - asked)
                statuses.append(int(head[9:12]))
                number += connections
        except (OSError, asyncio.IncompleteReadError):
            return 1
        finally:
            writer.close()
        return 0

    failed = sum(await asyncio.gather(*(ask(number) for number in range(connections))))
    lasted = time.perf_counter() - began
    cuts = quantiles(took, n=100, method="inclusive") if len(took) > 1 else [0.0] * 99
    wrong = sum(status != 200 for status in statuses)
    return Load(len(took), lasted, cuts[49] * 1e3, cuts[98] * 1e3, wrong, failed)
