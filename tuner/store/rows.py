"""Between values and rows: the only place that knows both."""

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import sha256
from math import isfinite
from typing import Any, Literal, cast

from tuner.config import KernelConfig
from tuner.errors import InvalidConfig, StoreError
from tuner.lookup import numerics_of
from tuner.shape import GemmShape, Problem
from tuner.store.tables import MAX_INT64, storable_text
from tuner.trial import (
    Conditions,
    Contender,
    Measurement,
    Sampled,
    ShapeOutcome,
    ShapeState,
    Toolchain,
    TrialState,
)

Row = dict[str, Any]
_NOT_TOLD = frozenset({"id", "digest", "numerics", "median_us", "sample_count"})
"""Columns that follow from the others."""


def canonical_json(value: Any) -> str:
    """One text per value, so that equal configs are equal strings; NaN is an error."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def problem_row(problem: Problem, device_key: str) -> Row:
    """The columns that name a problem on a device."""
    shape = problem.shape
    return {
        "device_key": device_key,
        "m": shape.m,
        "n": shape.n,
        "k": shape.k,
        "sms": problem.sms,
        "dtype": problem.dtype,
        "layout": problem.layout,
        "d": problem.d,
        "epilogue": problem.epilogue,
    }


def measurement_row(measurement: Measurement) -> Row:
    """One row of `measurements`.

    Samples that are no times are not kept: an `ok` row with such becomes `implausible`, whose
    detail shows them. Raises: StoreError for a value that no column can hold.
    """
    m = _plausible(measurement)
    config = canonical_json(m.contender.config.to_stored()) if m.contender.config else None
    told = {
        **problem_row(m.problem, m.device_key),
        "protocol": m.protocol,
        "contender": m.contender.name,
        "algorithm": m.contender.algorithm,
        "config": config,
        "config_hash": _config_hash(config or m.contender.algorithm),
        "kernel_hash": m.toolchain.kernel_hash,
        "nvrtc_version": m.toolchain.nvrtc_version,
        "state": m.state.value,
        "detail": m.detail,
        "samples_us": canonical_json([float(sample) for sample in m.samples_us]),
        "source": m.source,
        "run_id": m.run_id,
        "race": m.race,
        "worker": m.worker,
        "device_name": m.device_name,
        "driver": m.conditions.driver,
        "cublas_version": m.conditions.cublas_version,
        "gpu_uuid": m.conditions.gpu_uuid,
        "sm_clock_mhz": m.conditions.sm_clock_mhz,
        "power_w": _finite(m.conditions.power_w),
        "temperature_c": m.conditions.temperature_c,
        "throttle_reasons": m.conditions.throttle_reasons,
        "measured_at": _utc(m.measured_at),
    }
    derived = {
        "numerics": numerics_of(m.contender),
        "median_us": m.median_us,
        "sample_count": len(m.samples_us),
    }
    return {**_signed(told), **derived}


def measurement_of(row: Mapping[str, Any]) -> Measurement:
    """The value of a row. Raises: InvalidConfig for the config of a version unlike this one."""
    config = config_of(row["config"]) if row["config"] else None
    return Measurement(
        problem=problem_of(row),
        device_key=row["device_key"],
        device_name=row["device_name"],
        protocol=row["protocol"],
        contender=Contender(row["contender"], config, row["algorithm"]),
        toolchain=Toolchain(row["kernel_hash"], row["nvrtc_version"]),
        state=TrialState(row["state"]),
        samples_us=tuple(json.loads(row["samples_us"])),
        detail=row["detail"],
        conditions=Conditions(
            driver=row["driver"],
            cublas_version=row["cublas_version"],
            gpu_uuid=row["gpu_uuid"],
            sm_clock_mhz=row["sm_clock_mhz"],
            power_w=row["power_w"],
            temperature_c=row["temperature_c"],
            throttle_reasons=row["throttle_reasons"],
        ),
        source=row["source"],
        run_id=row["run_id"],
        race=row["race"],
        worker=row["worker"],
        measured_at=row["measured_at"],
    )


@lru_cache(maxsize=20_000)
def config_of(text: str) -> KernelConfig:
    """The value of a `config` column. Raises: InvalidConfig for that of another version."""
    # Thousands of rows have the same few configs, and reading one is most of reading a row.
    return KernelConfig.from_dict(json.loads(text))


def digest_of(row: Mapping[str, Any]) -> str:
    """What the digest of a stored measurement or outcome must be; TypeError for foreign types."""
    return str(_signed({n: v for n, v in row.items() if n not in _NOT_TOLD})["digest"])


def readable(row: Mapping[str, Any]) -> Measurement | None:
    """The value of a row, or None for a config or state that only another version knows."""
    try:
        return measurement_of(row)
    except (InvalidConfig, ValueError):
        return None


def outcome_row(outcome: ShapeOutcome) -> Row:
    """One row of `shape_outcomes`. Raises: StoreError for a value that no column can hold."""
    told = {
        **problem_row(outcome.problem, outcome.device_key),
        "device_name": outcome.device_name,
        "kernel_hash": outcome.toolchain.kernel_hash,
        "nvrtc_version": outcome.toolchain.nvrtc_version,
        "state": outcome.state.value,
        "detail": outcome.detail,
        "counts": canonical_json({str(state): n for state, n in outcome.counts.items()}),
        "trials": outcome.trials,
        "compiled": outcome.compiled,
        "seconds": float(outcome.seconds),
        "verify_seconds": float(outcome.verify_seconds),
        "measure_seconds": float(outcome.measure_seconds),
        "source": outcome.source,
        "run_id": outcome.run_id,
        "finished_at": _utc(outcome.finished_at),
    }
    return _signed(told)


def outcome_of(row: Mapping[str, Any]) -> ShapeOutcome:
    return ShapeOutcome(
        problem=problem_of(row),
        device_key=row["device_key"],
        device_name=row["device_name"],
        toolchain=Toolchain(row["kernel_hash"], row["nvrtc_version"]),
        state=ShapeState(row["state"]),
        detail=row["detail"],
        counts=json.loads(row["counts"]),
        trials=row["trials"],
        compiled=row["compiled"],
        seconds=row["seconds"],
        verify_seconds=row["verify_seconds"],
        measure_seconds=row["measure_seconds"],
        source=row["source"],
        run_id=row["run_id"],
        finished_at=row["finished_at"],
    )


def problem_of(row: Mapping[str, Any]) -> Problem:
    return Problem(
        shape=GemmShape(row["m"], row["n"], row["k"]),
        sms=row["sms"],
        dtype=row["dtype"],
        layout=row["layout"],
        d=cast(Literal["row", "col"], row["d"]),
        epilogue=row["epilogue"],
    )


def _plausible(m: Measurement) -> Measurement:
    checked = Sampled(m.contender, m.state, m.samples_us, m.detail).checked()
    usable = all(isfinite(sample) and sample > 0 for sample in checked.samples_us)
    samples = checked.samples_us if usable else ()
    return replace(m, state=checked.state, detail=checked.detail, samples_us=samples)


def _config_hash(text: str | None) -> str:
    return sha256(storable_text(text).encode()).hexdigest()[:16] if text else ""


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and isfinite(value) else None


def _utc(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise StoreError(
            f"the time {instant} names no time zone, so it cannot be stored; give one in UTC."
        )
    return instant.astimezone(UTC)


def _signed(told: Row) -> Row:
    """`told` as the database will give it back, with its digest."""
    for name, value in told.items():
        if isinstance(value, int) and not -MAX_INT64 <= value <= MAX_INT64:
            raise StoreError(f"{name} is beyond 64 bits and cannot be stored; correct the value.")
    clean = {n: storable_text(v) if isinstance(v, str) else v for n, v in told.items()}
    text = json.dumps(clean, sort_keys=True, default=datetime.isoformat)
    return {"digest": sha256(text.encode()).hexdigest(), **clean}
