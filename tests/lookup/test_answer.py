"""The JSON form that the service, the command line and clients agree on."""

import subprocess
import sys

import pytest

from tests.store.examples import (
    CUBLAS,
    CUBLASLT,
    DEVICE_KEY,
    PROBLEM,
    TOOLCHAIN,
    config,
    kernel,
    race,
)
from tuner.lookup import Answer, Confidence, Match, Race, Regret, choose
from tuner.shape import GemmShape
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT


def test_the_json_is_that_of_the_service() -> None:
    hot = {CUBLAS: [100.0] * 9, CUBLASLT: [96.0] * 9, kernel(): [80.0] * 9, kernel(256): [80.0] * 9}
    cool = {CUBLAS: [90.0] * 9, CUBLASLT: [90.0] * 9, kernel(): [75.0] * 9, kernel(256): [75.0] * 9}
    races = [
        Race("h", PROTOCOL_HOT, tuple(race("h", hot))),
        Race("c", PROTOCOL_COOL, tuple(race("c", cool, PROTOCOL_COOL))),
    ]
    answer = choose(races)
    assert answer is not None
    flops = 2 * 4096 * 2112 * 72
    shown = {
        "median_us": 80.0,
        "tflops": pytest.approx(flops / 80.0 / 1e6),
        "ci95_us": [80.0, 80.0],
        "samples": 9,
        "protocol": "graph-coldl2-hot/1",
    }
    baseline = {"cublas_us": 100.0, "cublaslt_best_us": 96.0}
    assert answer.to_json() == {
        "shape": {"m": 4096, "n": 2112, "k": 72},
        "dtype": "bf16",
        "layout": "tn",
        "d": "row",
        "epilogue": "none",
        "sms": 132,
        "device": {"name": "NVIDIA H200", "key": DEVICE_KEY},
        "match": {"tier": "exact", "from_shape": None},
        "config": config().to_dict(),
        "measurement": shown,
        "baseline": baseline,
        "speedup": pytest.approx((1.25 * 1.2) ** 0.5),
        "protocols": {
            "graph-coldl2-hot/1": {**shown, **baseline, "speedup": 1.25},
            "graph-coldl2-cool/1": {
                "median_us": 75.0,
                "tflops": pytest.approx(flops / 75.0 / 1e6),
                "ci95_us": [75.0, 75.0],
                "samples": 9,
                "protocol": "graph-coldl2-cool/1",
                "cublas_us": 90.0,
                "cublaslt_best_us": 90.0,
                "speedup": pytest.approx(1.2),
            },
        },
        "confidence": {
            "samples": 9,
            "ci95_us": [80.0, 80.0],
            "expected_regret": None,
            "distance": 0.0,
        },
        "use": "kernel",
        "library": None,
        "ties": [config(256).to_dict()],
        "numerics": "invariant",
        "kernel_hash": "5eed",
        "toolchain": "nvrtc 13.0.88",
        "measured_at": "2026-03-01T12:00:00.123456+00:00",
        "stale": False,
        "source": "measured",
    }


def test_a_library_to_be_used_is_named_with_its_algorithm_and_version() -> None:
    times = {CUBLAS: [100.0] * 9, CUBLASLT: [70.0] * 9, kernel(): [80.0] * 9}
    answer = choose([Race("h", PROTOCOL_HOT, tuple(race("h", times)))])
    assert answer is not None
    body = answer.to_json()
    assert body["use"] == "cublaslt"
    assert body["library"] == {"cublas_version": "13.1.0.3", "algorithm": "tile=20 stages=35"}


def test_an_answer_that_was_not_measured_has_room_in_the_same_form() -> None:
    answer = Answer(
        problem=PROBLEM,
        device_key=DEVICE_KEY,
        device_name="NVIDIA H200",
        match=Match("layer", GemmShape(4000, 2112, 72)),
        config=config(),
        timings=(),
        speedup=None,
        use="kernel",
        library=None,
        ties=(),
        toolchain=TOOLCHAIN,
        measured_at=None,
        stale=False,
        source="measured",
        numerics="invariant",
        predicted=Confidence(0, (70.0, 90.0), Regret(0.01, 0.03, 4), 0.03),
    )
    body = answer.to_json()
    assert body["match"] == {"tier": "layer", "from_shape": {"m": 4000, "n": 2112, "k": 72}}
    assert (body["measurement"], body["baseline"], body["speedup"]) == (None, None, None)
    assert body["measured_at"] is None
    assert body["confidence"] == {
        "samples": 0,
        "ci95_us": [70.0, 90.0],
        "expected_regret": {"mean": 0.01, "p95": 0.03, "cases": 4},
        "distance": 0.03,
    }


def test_looking_up_needs_the_standard_library_only() -> None:
    code = (
        "import sys, tuner.lookup;"
        "third = {'numpy', 'sqlalchemy', 'alembic', 'optuna', 'fastapi', 'pydantic'};"
        "foreign = {m for m in sys.modules if (f := getattr(sys.modules[m], '__file__', '') or '')"
        " and 'site-packages' in f and not m.startswith(('tuner', '_', 'sitecustomize'))};"
        "print(sorted(third & set(sys.modules)), sorted(foreign))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] []"
