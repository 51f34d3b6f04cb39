"""A device's answers, built by hand: one race each, hot and cool."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.store.examples import CUBLAS, race
from tuner.config import KernelConfig, KernelVariant
from tuner.lookup import Answer, Book, Race, answers_on_terms
from tuner.lookup.cost_model import estimate_us
from tuner.lookup.launches import default_knobs, store_for
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Contender

H200 = "sm90-132sm-141gb"
H100_PCIE = "sm90-114sm-80gb"
SQUARE = KernelVariant(128, 256, 4, cluster_m=2)
PINGPONG = KernelVariant(128, 128, 6, schedule="pingpong", transposed_store=True)
NARROW = KernelVariant(64, 32, 16, 1, 1, producer_registers=0, consumer_registers=0)
SPLIT = KernelVariant(
    128, 64, 6, producer_registers=40, consumer_registers=232, reduction="workspace"
)

Answers = tuple[Answer, Mapping[str, Answer]]


def problem(m: int, n: int, k: int, sms: int = 132) -> Problem:
    return Problem(GemmShape(m, n, k), sms)


def launched(variant: KernelVariant, asked: Problem, dependent: bool = False) -> KernelConfig:
    variant = replace(variant, store=store_for(asked))
    knobs = replace(default_knobs(asked, variant), dependent_launch=dependent)
    return KernelConfig(variant, knobs)


def measured(
    asked: Problem, *configs: KernelConfig, us: Sequence[float] = (), device_key: str = H200
) -> Answers:
    """What is known after a race of `configs`; without times, of what the model expects, +5 %."""
    times = us or [1.05 * estimate_us(asked, config) for config in configs]
    rounds = {
        Contender("kernel", config): [time] * 9 for config, time in zip(configs, times, strict=True)
    }
    rounds[CUBLAS] = [1.1 * min(times)] * 9
    races = [
        Race(
            name,
            protocol,
            tuple(race(name, rounds, protocol, problem=asked, device_key=device_key)),
        )
        for name, protocol in (("h", PROTOCOL_HOT), ("c", PROTOCOL_COOL))
    ]
    found = answers_on_terms(races)
    assert found is not None
    return found


def known() -> list[Answers]:
    """Shapes of every kind: square, skinny, deep, column-major, unaligned and on fewer SMs."""
    column = replace(problem(2048, 1024, 512), d="col")
    odd, few, deep = (
        problem(1000, 1001, 1000),
        problem(4096, 4096, 4096, 66),
        problem(64, 256, 16384),
    )
    big, large, skinny = (
        problem(4096, 4096, 4096),
        problem(2048, 2048, 2048),
        problem(16, 8192, 8192),
    )
    return [
        measured(big, launched(SQUARE, big), launched(PINGPONG, big)),
        measured(large, launched(PINGPONG, large, dependent=True), launched(SQUARE, large)),
        measured(skinny, launched(NARROW, skinny)),
        measured(deep, launched(SPLIT, deep), launched(NARROW, deep), us=(10.0, 14.0)),
        measured(column, launched(PINGPONG, column)),
        measured(odd, launched(SQUARE, odd)),
        measured(few, launched(SQUARE, few)),
    ]


def book(answers: Sequence[Answers], device_key: str = H200) -> Book:
    return Book(device_key, f"NVIDIA {device_key}", answers)
