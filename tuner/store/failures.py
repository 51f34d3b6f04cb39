"""Failure knowledge: which variants hung, were wrong, spilled or crashed, and how often."""

from dataclasses import dataclass

from sqlalchemy import func, select

from tuner.config import KernelConfig, KernelVariant
from tuner.errors import InvalidConfig
from tuner.store.queries import FAILURES
from tuner.store.repository import Repository
from tuner.store.rows import config_of
from tuner.store.tables import measurements
from tuner.trial import Toolchain, TrialState


@dataclass(frozen=True, slots=True)
class VariantFailure:
    """One variant of one kernel and how attempts at it ended in one state, over all shapes.

    detail: what one of the attempts said. shapes: how many M, N, K it happened on.
    """

    device_key: str
    toolchain: Toolchain
    variant: KernelVariant
    state: TrialState
    attempts: int
    shapes: int
    detail: str


def variant_failures(
    repository: Repository, device_key: str | None = None, kernel_hash: str | None = None
) -> list[VariantFailure]:
    """What failed on a device (default: all) with a kernel (default: all), the most often first.

    Raises: StoreError.
    """
    c = measurements.c
    identity = (c.device_key, c.kernel_hash, c.nvrtc_version, c.config, c.state, c.m, c.n, c.k)
    query = (
        select(*identity, func.count().label("attempts"), func.max(c.detail).label("detail"))
        .where(c.state.in_(FAILURES), c.config.is_not(None))
        .group_by(*identity)
    )
    if device_key is not None:
        query = query.where(c.device_key == device_key)
    if kernel_hash is not None:
        query = query.where(c.kernel_hash == kernel_hash)
    together: dict[tuple[str, Toolchain, KernelVariant, TrialState], list[tuple[int, str]]] = {}
    shapes: dict[tuple[str, Toolchain, KernelVariant, TrialState], set[tuple[int, ...]]] = {}
    with repository.transaction(writes=False) as connection:
        for row in connection.execute(query):
            config = _config(row.config)
            if config is None:
                continue
            made_with = Toolchain(row.kernel_hash, row.nvrtc_version)
            key = (row.device_key, made_with, config.variant, TrialState(row.state))
            together.setdefault(key, []).append((row.attempts, row.detail))
            shapes.setdefault(key, set()).add((row.m, row.n, row.k))
    found = [
        VariantFailure(
            *key, sum(n for n, _ in told), len(shapes[key]), max(detail for _, detail in told)
        )
        for key, told in together.items()
    ]
    return sorted(found, key=lambda f: (-f.attempts, f.state, f.toolchain.kernel_hash, f.variant))


def _config(text: str) -> KernelConfig | None:
    try:
        return config_of(text)
    except (InvalidConfig, ValueError):
        return None
