"""Rows as JSON: the one format of exports, recordings and shipped snapshots.

A file is JSON Lines: a header object first, which names the format and may name the device, then
one measurement a line. A row stands for itself: the full config, never an index.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, fields
from datetime import datetime
from math import isfinite
from typing import Any, NoReturn, get_args

from tuner.config import KernelConfig
from tuner.errors import InvalidConfig, InvalidShape, TunerError
from tuner.hardware import DeviceIdentity
from tuner.shape import GemmShape, OutputLayout, Problem
from tuner.trial import Conditions, Contender, Measurement, Source, Toolchain, TrialState

FORMAT = "gemm-tuner-rows/1"
BESIDE = (frozenset({"outcome"}), frozenset({"run"}))
"""Fields of lines that are no measurements: an export tells how shapes and runs ended, too."""

_CONTENDERS = ("kernel", "cublas", "cublaslt")
_TEXTS = (
    "dtype",
    "layout",
    "epilogue",
    "device_key",
    "device_name",
    "protocol",
    "kernel_hash",
    "nvrtc_version",
    "detail",
    "run_id",
    "worker",
)


class InvalidRow(TunerError):
    """A row or header that is not of this format; the message names the field."""


def to_json(row: Measurement) -> dict[str, Any]:
    """A measurement as the JSON object of one line."""
    problem = asdict(row.problem)
    return {
        **problem.pop("shape"),
        **problem,
        "device_key": row.device_key,
        "device_name": row.device_name,
        "protocol": row.protocol,
        "contender": row.contender.name,
        "config": row.contender.config.to_stored() if row.contender.config else None,
        "algorithm": row.contender.algorithm,
        "kernel_hash": row.toolchain.kernel_hash,
        "nvrtc_version": row.toolchain.nvrtc_version,
        "state": row.state.value,
        "samples_us": list(row.samples_us),
        "detail": row.detail,
        "conditions": asdict(row.conditions),
        "source": row.source,
        "run_id": row.run_id,
        "race": row.race,
        "worker": row.worker,
        "measured_at": row.measured_at.isoformat(),
    }


def from_json(values: Mapping[str, Any]) -> Measurement:
    """The measurement of one line.

    Raises: InvalidRow for a missing, unknown, mistyped or impossible field.
    """
    _require_fields(values)
    try:
        shape = GemmShape(*(_integer(values, name) for name in ("m", "n", "k")))
        config = values["config"]
        read = None if config is None else KernelConfig.from_dict(_object(values, "config"))
    except (InvalidShape, InvalidConfig) as error:
        raise InvalidRow(f"the row cannot be used: {error}") from error
    text = {name: _text(values, name) for name in _TEXTS}
    name = _one_of(values, "contender", _CONTENDERS)
    if (name == "kernel") != (read is not None):
        raise InvalidRow(f"a {name} row has config={config!r}; only kernel rows have one.")
    state = TrialState(_one_of(values, "state", tuple(TrialState)))
    return Measurement(
        Problem(
            shape,
            sms=_integer(values, "sms"),
            dtype=text["dtype"],
            layout=text["layout"],
            d=_one_of(values, "d", get_args(OutputLayout)),
            epilogue=text["epilogue"],
        ),
        text["device_key"],
        text["device_name"],
        text["protocol"],
        Contender(name, read, _text_or_none(values, "algorithm")),
        Toolchain(text["kernel_hash"], text["nvrtc_version"]),
        state,
        _samples(values, state),
        text["detail"],
        _conditions(_object(values, "conditions")),
        _one_of(values, "source", get_args(Source)),
        text["run_id"],
        _text_or_none(values, "race"),
        text["worker"],
        _moment(values, "measured_at"),
    )


def write_lines(device: DeviceIdentity | None, rows: Iterable[Measurement]) -> Iterator[str]:
    """The lines of a file, each with its newline. `device`: the one that all rows are of."""
    header = {"format": FORMAT, "device": asdict(device) if device else None}
    yield _line(header)
    for row in rows:
        yield _line(to_json(row))


def read_lines(lines: Iterable[str], name: str) -> tuple[DeviceIdentity | None, list[Measurement]]:
    """What `write_lines` wrote. `name`: what to call the file in errors.

    Raises: InvalidRow naming the line, for anything else.
    """
    device: DeviceIdentity | None = None
    rows = []
    number = 0
    for number, line in enumerate(lines, start=1):
        try:
            values = json.loads(line, parse_constant=_refuse_constant)
            if not isinstance(values, dict):
                raise InvalidRow("a line must be one JSON object.")
            if number == 1:
                device = header_device(values)
            elif set(values) not in BESIDE:
                rows.append(from_json(values))
        except ValueError as error:
            raise InvalidRow(f"{name}:{number}: this is not JSON ({error}).") from error
        except InvalidRow as error:
            raise InvalidRow(f"{name}:{number}: {error}") from error
    if not number:
        raise InvalidRow(f"{name} is empty; a file of rows begins with a header.")
    return device, rows


def _line(values: Mapping[str, Any]) -> str:
    return json.dumps(values, allow_nan=False, separators=(",", ":")) + "\n"


def header_device(header: Mapping[str, Any]) -> DeviceIdentity | None:
    """The device that all rows are of, if the header names one. Raises: InvalidRow."""
    if header.get("format") != FORMAT:
        raise InvalidRow(
            f"the header names the format {header.get('format')!r}; this version reads {FORMAT}."
        )
    device = header.get("device")
    if device is None:
        return None
    names = {f.name for f in fields(DeviceIdentity)}
    if not isinstance(device, dict) or set(device) != names:
        raise InvalidRow(f"the header's device must have the fields {sorted(names)}.")
    capability = device["compute_capability"]
    numbers = isinstance(capability, list) and all(isinstance(part, int) for part in capability)
    if not (numbers and len(capability) == 2):
        raise InvalidRow("compute_capability must be two numbers, such as [9, 0].")
    return DeviceIdentity(
        _text(device, "name"),
        (capability[0], capability[1]),
        _integer(device, "sms"),
        _integer(device, "memory_bytes"),
        _text(device, "uuid"),
        _text(device, "driver"),
        _text(device, "cublas_version"),
        _integer(device, "l2_bytes"),
    )


_FIELDS = frozenset(
    (*_TEXTS, "m", "n", "k", "sms", "d", "contender", "config", "algorithm", "state", "samples_us")
) | {"conditions", "source", "race", "measured_at"}


def _require_fields(values: Mapping[str, Any]) -> None:
    if missing := sorted(_FIELDS - set(values)):
        raise InvalidRow(f"the row lacks {missing}.")
    if unknown := sorted(set(values) - _FIELDS):
        raise InvalidRow(f"the row has unknown fields {unknown}; it is from another version.")


def _samples(values: Mapping[str, Any], state: TrialState) -> tuple[float, ...]:
    samples = values["samples_us"]
    if not isinstance(samples, list) or not all(
        isinstance(s, int | float) and not isinstance(s, bool) and isfinite(s) and s > 0
        for s in samples
    ):
        raise InvalidRow("samples_us must be a list of positive finite times.")
    if (state is TrialState.OK) != bool(samples):
        raise InvalidRow(f"a row in state {state} has {len(samples)} samples; only ok rows have.")
    return tuple(float(s) for s in samples)


def _conditions(values: Mapping[str, Any]) -> Conditions:
    names = {f.name for f in fields(Conditions)}
    if unknown := sorted(set(values) - names):
        raise InvalidRow(f"conditions have unknown fields {unknown}.")
    power = values.get("power_w")
    if power is not None and (not isinstance(power, int | float) or not isfinite(power)):
        _refuse("power_w", power)
    return Conditions(
        _text_or_none(values, "driver"),
        _text_or_none(values, "cublas_version"),
        _text_or_none(values, "gpu_uuid"),
        _integer_or_none(values, "sm_clock_mhz"),
        power,
        _integer_or_none(values, "temperature_c"),
        _integer_or_none(values, "throttle_reasons"),
    )


def _integer(values: Mapping[str, Any], name: str) -> int:
    value = values[name]
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(name, value)
    return value


def _integer_or_none(values: Mapping[str, Any], name: str) -> int | None:
    return None if values.get(name) is None else _integer(values, name)


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values[name]
    return value if isinstance(value, str) else _refuse(name, value)


def _text_or_none(values: Mapping[str, Any], name: str) -> str | None:
    return None if values.get(name) is None else _text(values, name)


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values[name]
    return value if isinstance(value, dict) else _refuse(name, value)


def _one_of(values: Mapping[str, Any], name: str, choices: tuple[Any, ...]) -> Any:
    value = values[name]
    return value if isinstance(value, str) and value in choices else _refuse(name, value)


def _moment(values: Mapping[str, Any], name: str) -> datetime:
    try:
        moment = datetime.fromisoformat(_text(values, name))
    except ValueError:
        _refuse(name, values[name])
    return moment if moment.tzinfo else _refuse(name, values[name])


def _refuse(name: str, value: object) -> NoReturn:
    raise InvalidRow(f"{name} cannot be {str(value)[:40]!r}.")


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")
