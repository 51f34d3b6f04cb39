"""The driver: propose, compile, prove, time and store; then race the best and store that."""

from tuner.study.layers import LayerTask, run_layers
from tuner.study.ports import Compiler, Leases, Tools
from tuner.study.progress import (
    Budget,
    Event,
    RaceStarted,
    Remark,
    ShapeEnded,
    ShapeStarted,
    TrialDone,
)
from tuner.study.run import run_all, tune

__all__ = [
    "Budget",
    "Compiler",
    "Event",
    "LayerTask",
    "Leases",
    "RaceStarted",
    "Remark",
    "ShapeEnded",
    "ShapeStarted",
    "Tools",
    "TrialDone",
    "run_all",
    "run_layers",
    "tune",
]
