"""Timing by CUDA graphs: many launches over rotated operands, between two events."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cupy

from tuner.device.cuda.blas import Enqueue
from tuner.trial import PROTOCOL_HOT

GRAPH_TARGET_US = 1500.0
"""The fastest contender's graph lasts about this long: what starting it costs is a few µs."""
MAX_GRAPH_LAUNCHES = 1200
COOL_GAP_SECONDS = 0.012
WARM_SECONDS = 0.4

_delay = cupy.RawKernel(
    """
    extern "C" __global__ void delay(long long nanoseconds) {
        unsigned long long start, now;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
        do {
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        } while (now - start < nanoseconds);
    }
    """,
    "delay",
)
"""Holds the stream while the host enqueues what is to be timed, so launch cost stays outside."""
DELAY_NS = 80_000
"""Longer than the host takes to launch a graph and record an event."""
ESTIMATE_LAUNCHES = 6
ESTIMATE_DELAY_NS = 600_000
"""Longer than the host takes to enqueue so many launches one by one."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A captured sequence of launches of one contender."""

    graph: Any
    launches: int


def capture(stream: Any, contender: Sequence[Enqueue], launches: int) -> Graph:
    """Capture `launches` launches that take the operand sets in turn."""
    with stream:
        stream.begin_capture()
        for i in range(launches):
            contender[i % len(contender)].enqueue(stream.ptr)
        graph = stream.end_capture()
    graph.upload(stream)
    return Graph(graph, launches)


def launches_for(estimate_us: float, sets: int, target_us: float = GRAPH_TARGET_US) -> int:
    """How many launches fill a graph: whole turns of the operand sets, at least one."""
    wanted = round(target_us / max(estimate_us, 1.0) / sets)
    return max(1, min(wanted, MAX_GRAPH_LAUNCHES // sets)) * sets


def estimate_us(stream: Any, launches: Sequence[Enqueue]) -> float:
    """Rough microseconds of one launch, after one that loads whatever is loaded lazily."""
    launches[0].enqueue(stream.ptr)
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    _delay((1,), (1,), (ESTIMATE_DELAY_NS,), stream=stream)
    start.record(stream)
    for i in range(ESTIMATE_LAUNCHES):
        launches[i % len(launches)].enqueue(stream.ptr)
    stop.record(stream)
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) * 1000 / ESTIMATE_LAUNCHES


def warm(stream: Any, graph: Graph, seconds: float) -> None:
    """Keep the card busy until its clocks have settled."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(4):
            graph.graph.launch(stream)
        stream.synchronize()


@dataclass(frozen=True, slots=True)
class Track:
    """Where a race is run.

    order: shuffles every round. between: enqueued before each graph, outside what is timed; it
    flushes L2 where the operands alone do not. look: called once a round.
    """

    stream: Any
    order: random.Random
    between: Callable[[], None]
    look: Callable[[], None] = lambda: None


def time_once(track: Track, graph: Graph) -> float:
    """Microseconds of one launch, averaged over the graph; waits for it."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    track.between()
    _delay((1,), (1,), (DELAY_NS,), stream=track.stream)
    start.record(track.stream)
    graph.graph.launch(track.stream)
    stop.record(track.stream)
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) * 1000 / graph.launches


def race_hot(track: Track, graphs: Sequence[Graph], rounds: int) -> list[list[float]]:
    """Every graph once a round, in an order shuffled anew, back to back. Returns µs by contender.

    The host stays ahead of the card: a round is enqueued while the one before still runs.
    """
    samples: list[list[float]] = [[] for _ in graphs]
    pending: list[tuple[int, Any, Any]] = []
    for _ in range(rounds):
        enqueued = []
        for index in track.order.sample(range(len(graphs)), len(graphs)):
            start, stop = cupy.cuda.Event(), cupy.cuda.Event()
            track.between()
            start.record(track.stream)
            graphs[index].graph.launch(track.stream)
            stop.record(track.stream)
            enqueued.append((index, start, stop))
        _collect(pending, graphs, samples)
        pending = enqueued
        track.look()
    _collect(pending, graphs, samples)
    return samples


def race_cool(track: Track, graphs: Sequence[Graph], rounds: int) -> list[list[float]]:
    """The same with an idle gap before every graph, so that clocks stay high."""
    samples: list[list[float]] = [[] for _ in graphs]
    for _ in range(rounds):
        for index in track.order.sample(range(len(graphs)), len(graphs)):
            time.sleep(COOL_GAP_SECONDS)
            samples[index].append(time_once(track, graphs[index]))
        track.look()
    return samples


def race_graphs(
    track: Track, graphs: Sequence[Graph], protocol: str, rounds: int, warm_seconds: float
) -> list[list[float]]:
    """A race under `protocol`, after the card has been brought into its state."""
    if protocol == PROTOCOL_HOT:
        warm(track.stream, graphs[0], warm_seconds)
        return race_hot(track, graphs, rounds)
    for graph in graphs:
        time_once(track, graph)
    return race_cool(track, graphs, rounds)


def _collect(
    pending: Sequence[tuple[int, Any, Any]], graphs: Sequence[Graph], samples: list[list[float]]
) -> None:
    for index, start, stop in pending:
        stop.synchronize()
        elapsed_us = float(cupy.cuda.get_elapsed_time(start, stop)) * 1000
        samples[index].append(elapsed_us / graphs[index].launches)
