"""Variants that between them take every path of the kernel, by the names that results use."""

from collections.abc import Mapping
from typing import Any

from tuner.config import KernelVariant

V = KernelVariant
ALONE: Any = {"consumers": 1, "producer_registers": 0, "consumer_registers": 0}
THREE: Any = {"consumers": 3, "producer_registers": 32, "consumer_registers": 160}
BUSY: Any = {"producer_registers": 40, "consumer_registers": 232}
"""A producer with more to work out than its coordinates."""
SPLIT: Any = {"reduction": "workspace"}
PINGPONG: Any = {"schedule": "pingpong"}
EXCHANGED: Any = {"transposed_store": True}
DIRECT: Any = {"store": "direct"}

KINDS: Mapping[str, KernelVariant] = {
    "cooperative": V(128, 128, 4),
    "cooperative 128x256": V(128, 256, 4),
    "cooperative 128x256, cluster 2x1": V(128, 256, 4, cluster_m=2),
    "split along n": V(192, 192, 4, split="n"),
    "ping-pong": V(128, 128, 6, **PINGPONG),
    "ping-pong 64x192": V(64, 192, 5, **PINGPONG),
    "ping-pong, cluster 2x1": V(64, 128, 6, cluster_m=2, **PINGPONG),
    "ping-pong, exchanged": V(128, 192, 4, **PINGPONG, **EXCHANGED),
    "ping-pong, exchanged, cluster 1x2": V(128, 192, 4, cluster_n=2, **PINGPONG, **EXCHANGED),
    "one consumer": V(64, 128, 8, **ALONE),
    "one consumer, four slabs": V(64, 32, 4, slabs_per_stage=4, **ALONE),
    "three consumers": V(192, 176, 4, **THREE),
    "three consumers, exchanged": V(192, 176, 4, **THREE, **EXCHANGED),
    "cluster 2x2": V(128, 128, 5, cluster_m=2, cluster_n=2),
    "cluster 4x2": V(128, 64, 6, cluster_m=4, cluster_n=2),
    "uneven, cluster 8x1": V(128, 72, 6, cluster_m=8, **BUSY),
    "uneven, cluster 3x1": V(192, 128, 4, split="n", cluster_m=3, **BUSY),
    "uneven, cluster 1x7, exchanged": V(64, 200, 5, cluster_n=7, **ALONE, **EXCHANGED),
    "direct store": V(128, 160, 4, **DIRECT),
    "direct store, ping-pong, cluster 2x1": V(64, 64, 8, cluster_m=2, **PINGPONG, **DIRECT),
    "split K": V(128, 128, 5, **BUSY, **SPLIT),
    "split K, exchanged": V(128, 88, 5, **BUSY, **SPLIT, **EXCHANGED),
    "split K, one consumer, cluster 2x1": V(
        64, 32, 9, slabs_per_stage=2, cluster_m=2, **ALONE, **SPLIT
    ),
    "split K, ping-pong, cluster 1x2": V(64, 128, 6, cluster_n=2, **BUSY, **SPLIT, **PINGPONG),
    "split K, ping-pong, exchanged": V(128, 64, 6, **BUSY, **SPLIT, **PINGPONG, **EXCHANGED),
    "split K, cluster 1x4": V(128, 64, 6, cluster_n=4, **BUSY, **SPLIT),
    "split K, direct store": V(128, 160, 4, **BUSY, **SPLIT, **DIRECT),
}
