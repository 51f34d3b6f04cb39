"""Tiles and clusters that Hopper's tensor cores run well, for `space` to choose from."""

from dataclasses import dataclass

from tuner.config import Schedule, Split


@dataclass(frozen=True, slots=True)
class Family:
    """Tiles that share a way of dividing work among consumer warpgroups."""

    consumers: int
    schedule: Schedule
    split: Split
    block_m: int
    block_n: tuple[int, ...]
    registers: tuple[tuple[int, int], ...]


# Registers of the producer and of each consumer, per thread; the first is what a tile starts with.
ONE_CONSUMER = ((0, 0),)
TWO_CONSUMERS = ((24, 240), (40, 232))
THREE_CONSUMERS = ((32, 160),)

FAMILIES = (
    Family(1, "cooperative", "m", 64, (16, 32, 48, 64, 80, 96, 112, 128), ONE_CONSUMER),
    Family(1, "cooperative", "m", 64, (144, 160, 176, 192, 224, 256), ONE_CONSUMER),
    Family(2, "cooperative", "m", 128, (16, 32, 48, 64, 96, 112, 128), TWO_CONSUMERS),
    Family(2, "cooperative", "m", 128, (144, 160, 176, 192, 208, 224, 256), TWO_CONSUMERS),
    Family(2, "cooperative", "m", 256, (64, 96, 112, 128), TWO_CONSUMERS),
    Family(2, "cooperative", "n", 192, (128, 160, 192), TWO_CONSUMERS),
    Family(2, "cooperative", "n", 256, (128,), TWO_CONSUMERS),
    Family(2, "cooperative", "n", 320, (128,), TWO_CONSUMERS),
    Family(2, "pingpong", "m", 64, (64, 96, 112, 128, 160, 192, 224, 256), TWO_CONSUMERS),
    Family(2, "pingpong", "m", 128, (64, 96, 112, 128, 144, 160, 176, 192, 208), TWO_CONSUMERS),
    Family(2, "pingpong", "m", 192, (128,), TWO_CONSUMERS),
    Family(3, "cooperative", "m", 192, (128, 144, 160, 176, 192, 208, 224, 256), THREE_CONSUMERS),
)
PAIRS = ((1, 1), (2, 1), (1, 2))
FOURS = ((4, 1), (1, 4), (2, 2))
WIDE = ((8, 1), (1, 8), (4, 2), (2, 4), (3, 1), (1, 3), (7, 1), (1, 7))
