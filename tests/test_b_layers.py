"""What interval answers lose: the arithmetic, and the whole path on a fake device."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.harness import Bench, Results
from benchmarks.layer_regret import CUBLAS, loss, row_of, summary, told
from benchmarks.layers import HIGH, LAYERS, NotTuned, fields_of, measured, ms_of
from tests.device.fake import H200, TOOLCHAIN, FakeCompiler, FakeDevice, Faults
from tests.lookup.measured import NARROW, SQUARE, book, known, launched, problem
from tuner.cli.extents import parse_layer
from tuner.config import KernelVariant
from tuner.errors import DeviceError
from tuner.lookup import Answer, find
from tuner.lookup.cross_races import Span
from tuner.lookup.layer import at_m
from tuner.shape import GemmShape, Problem
from tuner.shape_files import read_shape_files
from tuner.store.engine import open_store
from tuner.store.repository import Repository
from tuner.study import Budget, LayerTask, Tools, run_layers
from tuner.trial import CompileFailure, Contender, Cubin, Sampled, TrialState

KEY = Problem(GemmShape(1, 2112, 4096), 132)
ASKED = problem(40, 2112, 4096)
SMALL, LARGE = launched(NARROW, ASKED), launched(SQUARE, ASKED)


def answered(use: Any = "kernel") -> Answer:
    found = find(ASKED, {H200.key: book(known(), H200.key)}, device_key=H200.key)
    assert isinstance(found, Answer)
    return replace(found, config=SMALL, use=use)


def times(**us: Iterable[float]) -> list[Sampled]:
    who = {"small": Contender("kernel", SMALL), "large": Contender("kernel", LARGE)}
    made = [Sampled(who[name], TrialState.OK, tuple(us[name])) for name in who if name in us]
    library = [tuple(us[name]) for name in ("cublas", "again")]
    return [*made, *(Sampled(CUBLAS, TrialState.OK, one) for one in library)]


def test_a_regret_is_how_much_slower_than_the_best_the_answer_is_round_by_round() -> None:
    sampled = times(small=[11, 22, 11, 22], large=[10, 20, 10, 20], cublas=[30] * 4, again=[33] * 4)
    found = loss(40, answered(), sampled)
    assert found.regret == pytest.approx(0.1)
    assert found.noise == pytest.approx(0.1)
    assert (found.best, found.entrants) == (LARGE, 4)
    assert (found.answer_us, found.best_us, found.cublas_us) == (16.5, 15.0, 30.0)


def test_the_best_is_chosen_in_other_rounds_than_those_it_is_compared_in() -> None:
    lucky = times(small=[10, 10, 10, 10], large=[9, 12, 9, 12], cublas=[30] * 4, again=[30] * 4)
    found = loss(40, answered(), lucky)
    assert (found.best, found.regret) == (LARGE, 0.0)


def test_an_answer_that_names_cublas_is_compared_by_its_time() -> None:
    sampled = times(small=[20] * 4, cublas=[22] * 4, again=[22] * 4)
    assert loss(40, answered("cublas"), sampled).regret == pytest.approx(0.1)
    faster = times(small=[30] * 4, cublas=[22] * 4, again=[22] * 4)
    assert loss(40, answered("cublas"), faster).regret == 0.0
    assert loss(40, answered("kernel"), faster).regret == pytest.approx(30 / 22 - 1)
    assert loss(40, answered("kernel"), faster).best is None


def test_a_rival_that_is_wrong_does_not_count_and_an_answer_that_is_ends_the_race() -> None:
    wrong = Sampled(Contender("kernel", LARGE), TrialState.WRONG_RESULT, (), "bits differ")
    right = times(small=[20] * 4, cublas=[22] * 4, again=[22] * 4)
    assert loss(40, answered(), [*right, wrong]).regret == 0.0
    with pytest.raises(DeviceError, match="M=40: the race broke"):
        loss(40, answered(), [*right[1:], wrong])
    with pytest.raises(DeviceError, match="cuBLAS is missing"):
        loss(40, answered(), right[:2])


def test_the_summary_tells_worst_and_mean_by_layer_and_what_has_no_interval() -> None:
    rows = [
        {"n": 8, "k": 16, "ms": [entry(1, 0.0), entry(2, 0.02)]},
        {"n": 8, "k": 16, "ms": [entry(3, 0.04)]},
        {"n": 16, "k": 16, "ms": [entry(1, 0.0)]},
    ]
    found = summary(rows, {"8x16": [4], "16x16": []})
    assert (found["worst_regret"], found["mean_regret"]) == (0.04, pytest.approx(0.015))
    assert (found["raced"], found["within_aim"], found["noise_worst"]) == (4, 3, 0.001)
    assert found["unanswered"] == {"8x16": [4]}
    first = found["layers"]["8x16"]
    assert (first["worst_m"], first["mean_regret"], first["p95_regret"]) == (
        3,
        pytest.approx(0.02),
        0.04,
    )
    assert first["ratio_cublas"] == pytest.approx(2.0)
    assert told(rows[0]) == "N=8 K=16 M 1..2: worst 2.0% at M=2, mean 1.00%"
    assert summary([], {})["worst_regret"] is None


def entry(m: int, regret: float) -> dict[str, Any]:
    return {"m": m, "regret": regret, "noise": -0.001, "cublas_us": 20.0, "answer_us": 10.0}


def test_every_m_is_raced_or_with_a_step_every_small_one_and_the_last() -> None:
    assert ms_of(1) == list(range(1, HIGH + 1))
    thinned = ms_of(7)
    assert thinned[:33] == [*range(1, 33), 39]
    assert thinned[-1] == HIGH


def test_the_layers_are_of_the_list_of_real_models() -> None:
    listed = read_shape_files([Path("benchmarks/shapes/llm-inference.txt")]).shapes
    named = {(shape.n, shape.k) for shape in listed}
    assert {(s.n, s.k) for s in map(parse_layer, LAYERS)} <= named


class Pool(FakeCompiler):
    def compile(
        self, variants: Iterable[KernelVariant]
    ) -> dict[KernelVariant, Cubin | CompileFailure]:
        return {variant: self.submit(variant).result() for variant in variants}


@pytest.fixture
def tuned(tmp_path: Path) -> Iterator[Repository]:
    with open_store(f"sqlite:///{tmp_path / 'tuner.db'}") as repository:
        tools = Tools(FakeDevice(), FakeCompiler(), repository, run_id="r")
        budget = Budget(trials=6, batch=4, finalists=2, rounds_hot=5, rounds_cool=5)
        run_layers([LayerTask(KEY, Span(16, 64))], tools, budget)
        yield repository


def test_tuned_layers_are_raced_at_every_m_on_a_device(tuned: Repository) -> None:
    ms = range(14, 67, 4)
    fields = fields_of(tuned, KEY, H200.key, TOOLCHAIN, ms)
    assert [f.answer is None for f in fields] == [not 16 <= m <= 64 for m in ms]
    assert {f.answer.match.tier for f in fields if f.answer} == {"layer"}
    for field in fields:
        assert len(field.configs) == len(set(field.configs)) >= 3
        assert field.answer is None or field.configs[0] == field.answer.config
    bench = Bench(cast(Any, FakeDevice()), cast(Any, Pool()), Results(None, {}))
    failed: list[str] = []
    answered = [field for field in fields if field.answer]
    losses = [one for some in measured(bench, answered, 8, failed) for one in some]
    assert (failed, [one.m for one in losses]) == ([], list(range(18, 65, 4)))
    assert all(one.regret >= 0 and one.answer_us > 0 for one in losses)
    row = row_of(KEY, losses)
    assert summary([row], {})["raced"] == len(losses)


def test_a_config_is_proved_once_and_one_that_is_wrong_does_not_race(tuned: Repository) -> None:
    fields = fields_of(tuned, KEY, H200.key, TOOLCHAIN, [20, 24, 28])
    shared = set.intersection(*(set(one.configs) for one in fields))
    answers = {one.answer.config for one in fields if one.answer}
    wrong = next(config for config in sorted(shared - answers))
    device = FakeDevice(Faults(wrong=frozenset({wrong.variant})))
    bench = Bench(cast(Any, device), cast(Any, Pool()), Results(None, {}))
    losses = [one for some in measured(bench, fields, 8, []) for one in some]
    verified = [config for call, config in device.calls if call == "verify"]
    assert len(verified) == len(set(verified)) == len({c for f in fields for c in f.configs})
    for one, chosen in zip(losses, fields, strict=True):
        unfit = [config for config in chosen.configs if config.variant == wrong.variant]
        assert one.entrants == len(chosen.configs) - len(unfit) + 2


def test_a_race_that_fails_is_noted_and_the_others_go_on(tuned: Repository) -> None:
    class Broken(FakeDevice):
        def race(self, *asked: Any) -> list[Sampled]:
            if self._problem == at_m(KEY, 20):
                raise DeviceError("out of order.")
            return super().race(*asked)

    fields = fields_of(tuned, KEY, H200.key, TOOLCHAIN, [19, 20, 21])
    bench = Bench(cast(Any, Broken()), cast(Any, Pool()), Results(None, {}))
    failed: list[str] = []
    losses = [one for some in measured(bench, fields, 8, failed) for one in some]
    assert [one.m for one in losses] == [19, 21]
    (sentence,) = failed
    assert sentence.startswith("20x2112x4096: ")
    assert sentence.endswith("out of order.")


def test_a_layer_that_was_not_tuned_is_refused_with_the_command_that_tunes_it(
    tuned: Repository,
) -> None:
    with pytest.raises(NotTuned, match=r"N=8 K=64 has no intervals .* tuner run --layer 6144,4096"):
        fields_of(tuned, Problem(GemmShape(1, 8, 64), 132), H200.key, TOOLCHAIN, [1])
