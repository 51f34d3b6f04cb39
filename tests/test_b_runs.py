"""The commands on a device without a GPU: from their options to the file they leave."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks import chains, invariance, soak, verify_shapes
from benchmarks.chains_on_device import KINDS, OURS, ChainResult, RunChains
from benchmarks.harness import Bench, Results
from benchmarks.invariance_on_device import Bits, CompareRows
from benchmarks.laboratory import Laboratory
from benchmarks.soak_on_device import Soak, Soaked
from tests.device.fake import FakeCompiler, FakeDevice, Faults
from tuner.compiler.pool import CompilePool
from tuner.config import KernelVariant
from tuner.device.protocol import Entrant
from tuner.errors import DeviceCrashed, DeviceTimeout
from tuner.search.space import trusted_config
from tuner.trial import CompileFailure, Cubin, Sampled

Outcome = Cubin | CompileFailure


class Pool(FakeCompiler):
    def compile(self, variants: Iterable[KernelVariant]) -> dict[KernelVariant, Outcome]:
        return {variant: self.submit(variant).result() for variant in variants}


class Lab(FakeDevice):
    """Answers what it is asked as it is told to."""

    def __init__(self, answer: Callable[[Any], Any], faults: Faults | None = None) -> None:
        super().__init__(faults)
        self._answer = answer
        self.asked: list[Any] = []

    def ask(self, work: Any, deadline_s: float) -> Any:
        assert deadline_s > 0
        self.asked.append(work)
        return self._answer(work)


def run(
    module: Any, lab: Lab, out: Path, monkeypatch: pytest.MonkeyPatch, *options: str
) -> tuple[dict[str, Any], int]:
    """The file that a command leaves, and its exit status."""

    @contextmanager
    def gpu(chosen: argparse.Namespace, name: str) -> Iterator[Bench]:
        results = Results(chosen.out, {"command": name})
        yield Bench(cast(Laboratory, lab), cast(CompilePool, Pool()), results)

    monkeypatch.setattr(module, "gpu", gpu)
    monkeypatch.setattr(sys, "argv", ["command", "--out", str(out), *options])
    status = 0
    try:
        module.main()
    except SystemExit as left:
        status = int(left.code or 0)
    return json.loads(out.read_text()), status


def soaked(work: Soak) -> Soaked:
    links = sum(map(len, work.groups))
    return Soaked(-(-work.launches // links) * links, 0, 0, 0.1, ())


def test_a_soak_runs_every_path_and_has_a_cubin_for_every_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(soaked)
    body, status = run(soak, lab, tmp_path / "soak.json", monkeypatch, "--launches", "100")
    assert status == 0
    assert [row["path"] for row in body["rows"]] == [path.name for path in soak.PATHS]
    assert all(row["launches"] >= 100 for row in body["rows"])
    assert body["not_right"] == []
    for work in lab.asked:
        links = [link for group in work.groups for link in group]
        launched = {config.variant for link in links for config in link.configs}
        trusted = {trusted_config(link.problem).variant for link in links}
        assert set(work.cubins) == launched | trusted


def test_a_path_that_hangs_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(work: Soak) -> Soaked:
        if any(c.knobs.split_tail for group in work.groups for c in group[0].configs):
            raise DeviceTimeout("no answer within 42 s")
        return soaked(work)

    body, status = run(soak, Lab(answer), tmp_path / "soak.json", monkeypatch)
    hanging = [row for row in body["rows"] if row["state"] == "hangs"]
    assert [row["path"] for row in hanging] == ["split K, tail", "split K, ping-pong, tail"]
    assert body["not_right"] == [row["path"] for row in hanging]
    assert status != 0
    assert len(body["rows"]) == len(soak.PATHS)


def chained(work: RunChains) -> ChainResult:
    config = work.entrant.contender.config
    assert config is not None
    assert config.knobs.dependent_launch
    rounds = {who: [2.0] * work.rounds for who in (*OURS, "cublas")}
    return ChainResult(dict.fromkeys(KINDS, rounds), {k: dict.fromkeys(OURS, 0) for k in KINDS})


def test_chains_of_a_dozen_shapes_are_kept_with_every_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "chains.json"
    body, status = run(chains, Lab(chained), out, monkeypatch, "--rounds", "5")
    assert (status, len(body["rows"]), body["failed"], body["wrong"]) == (0, 12, [], [])
    for row in body["rows"]:
        assert row["launches"] == 24
        assert len(row["bare"]["rounds"]["plain"]) == 5


def test_a_chain_that_breaks_the_device_is_told_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(work: RunChains) -> ChainResult:
        if work.problem.shape.m == 512 and work.problem.shape.k == 512:
            raise DeviceCrashed("CUDA reported an illegal address.")
        return chained(work)

    body, status = run(chains, Lab(answer), tmp_path / "chains.json", monkeypatch)
    assert body["failed"] == ["512x512x512: CUDA reported an illegal address."]
    assert len(body["rows"]) == 11
    assert status != 0


def rows(work: CompareRows) -> list[Bits]:
    found = [
        Bits(m, "whole", entrant.contender.config, "same", 0)
        for m, entrants in work.entrants.items()
        for entrant in entrants
    ]
    return [*found, *(Bits(m, "cublas", None, f"row at {m}", m) for m in work.entrants)]


def test_invariance_compares_every_m_and_races_cublas_on_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(invariance, "LAYERS", invariance.LAYERS[:2])
    lab = Lab(rows)
    body, status = run(invariance, lab, tmp_path / "invariance.json", monkeypatch, "--rounds", "5")
    assert (status, body["invariant"], body["cublas_changes_first_row"]) == (0, True, 2)
    for row in body["rows"]:
        assert tuple(cost["m"] for cost in row["costs"]) == invariance.BATCHES
        for cost in row["costs"]:
            assert [len(us) for us in cost["rounds"].values()] == [5, 5, 5]
            assert cost["config"]["reduction"] == "none"
    ratios = [cost["ratio_cublas"] for row in body["rows"] for cost in row["costs"]]
    assert body["ratio_cublas_least"] == min(ratios)
    assert all(len(entrants) >= 8 for work in lab.asked for entrants in work.entrants.values())


class Wrong(Lab):
    """Every config that splits K hangs."""

    def verify(self, entrant: Entrant) -> Sampled:
        config = entrant.contender.config
        if config and config.knobs.split_k > 1:
            self._problem = None
            raise DeviceTimeout("no answer within 8 s")
        return super().verify(entrant)


def test_a_hanging_proof_is_a_failure_of_its_config_and_the_rest_is_proved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = tmp_path / "shapes.txt"
    shapes.write_text("256 256 16384\n512 512 64\n")
    out = tmp_path / "verified.json"
    body, status = run(verify_shapes, Wrong(rows), out, monkeypatch, "--shapes", str(shapes))
    deep, shallow = body["rows"]
    assert (deep["configs"], shallow["configs"]) == (24, 24)
    assert len(deep["failures"]) == deep["splitting"] == 6
    assert (shallow["failures"], body["shapes_with_failures"]) == ([], 1)
    assert status != 0
