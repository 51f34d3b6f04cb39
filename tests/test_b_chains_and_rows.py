"""Chains and invariant rows: which configs are asked, and what their results say."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import chains, invariance
from benchmarks.chains_on_device import KINDS, OURS, ChainResult, steps, weight_exponent
from benchmarks.harness import SHAPES
from benchmarks.invariance import BATCHES, LAYERS, Cost, field_of, is_whole, summary
from benchmarks.invariance_on_device import Bits
from benchmarks.stored import fastest, ordered, ours
from tests.device.fake import H200, TOOLCHAIN
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.errors import InvalidConfig
from tuner.legality import faults
from tuner.lookup import Race
from tuner.lookup.race import Candidate
from tuner.shape import GemmShape, Problem
from tuner.shape_files import read_shape_files
from tuner.trial import PROTOCOL_HOT, Contender, Measurement, Toolchain, TrialState

PROBLEM = Problem(GemmShape(1024, 1024, 1024), 132)
DEEP = Problem(GemmShape(256, 256, 16384), 132)
PLAIN = KernelConfig(KernelVariant(128, 128, 4), LaunchKnobs(132))
DEPENDENT = chains.dependent(KernelConfig(KernelVariant(64, 128, 4), LaunchKnobs(132)))
SPLIT = KernelConfig(
    KernelVariant(
        *(128, 128, 5), producer_registers=40, consumer_registers=232, reduction="workspace"
    ),
    LaunchKnobs(132, split_k=16),
)


def candidates(
    problem: Problem, us: Mapping[KernelConfig, float], made_with: Toolchain = TOOLCHAIN
) -> list[Candidate]:
    """Configs as one stored race of this kernel shows them, cuBLAS at 100 µs."""
    contenders = [(Contender("cublas"), 100.0)]
    contenders += [(Contender("kernel", config), time) for config, time in us.items()]
    rows = [
        Measurement(
            *(problem, H200.key, H200.name, PROTOCOL_HOT, contender, made_with),
            state=TrialState.OK,
            samples_us=(time,) * 5,
            race="one",
        )
        for contender, time in contenders
    ]
    return ours([Race("one", PROTOCOL_HOT, tuple(rows))], TOOLCHAIN)


def test_a_chain_runs_the_fastest_stored_config_that_is_launched_dependently() -> None:
    found = candidates(PROBLEM, {PLAIN: 80.0, DEPENDENT: 90.0})
    choice = chains.choose(PROBLEM, found, None)
    assert choice.config == DEPENDENT
    assert choice.came_from == "fastest stored with dependent launch"


def test_without_one_the_fastest_stored_config_is_launched_dependently() -> None:
    choice = chains.choose(PROBLEM, candidates(PROBLEM, {PLAIN: 80.0}), None)
    assert choice.config == chains.dependent(PLAIN)


def test_races_of_another_kernel_choose_no_config() -> None:
    older = candidates(PROBLEM, {PLAIN: 80.0}, Toolchain("another", "13.0.88"))
    assert older == []
    assert chains.choose(PROBLEM, older, None).came_from.startswith("best modelled")


def test_a_stated_config_goes_before_what_is_stored_and_must_be_legal() -> None:
    found = candidates(PROBLEM, {DEPENDENT: 80.0})
    assert chains.choose(PROBLEM, found, PLAIN).config == chains.dependent(PLAIN)
    with pytest.raises(InvalidConfig, match="cannot run"):
        chains.choose(Problem(GemmShape(64, 1001, 64), 132), found, PLAIN)


@pytest.mark.parametrize("shape", read_shape_files([SHAPES / "chains12.txt"]).shapes, ids=str)
def test_every_chain_has_a_legal_dependent_config_without_a_database(shape: GemmShape) -> None:
    problem = Problem(shape, 132)
    config = chains.choose(problem, [], None).config
    assert faults(config, problem) == []
    assert config.knobs.dependent_launch


class Step:
    def __init__(self, name: str) -> None:
        self.name = name

    def enqueue(self, stream: int) -> None:
        raise AssertionError(f"nothing is launched here, on {stream} or elsewhere")


class ForeignKernels:
    """A chain whose normalisations are only counted."""


def names(kind: str) -> list[str]:
    found = steps([Step("even"), Step("odd")], 24, kind, ForeignKernels(), None)  # type: ignore[arg-type]
    return [getattr(step, "name", "foreign") for step in found]


def test_a_chain_is_24_products_that_change_places() -> None:
    assert names("bare") == ["even", "odd"] * 12


def test_a_foreign_kernel_stands_before_every_product_but_the_first() -> None:
    found = names("normalised")
    assert [name for name in found if name != "foreign"] == ["even", "odd"] * 12
    assert found[1::2] == ["foreign"] * 23


@given(st.integers(1, 2**16).map(lambda k: 8 * k))
def test_scaled_weights_keep_products_near_what_they_read(k: int) -> None:
    growth = k**0.5 / 2 ** weight_exponent(k)
    assert 0.7 <= growth <= 1.42


def result(wrong: int) -> ChainResult:
    rounds = {"dependent": [4.0, 5.0, 4.0], "plain": [5.0, 6.0, 5.0], "cublas": [6.0, 6.0, 6.0]}
    return ChainResult(
        dict.fromkeys(KINDS, rounds),
        {kind: dict.fromkeys(OURS, wrong if kind == "bare" else 0) for kind in KINDS},
    )


def test_a_chain_tells_medians_and_paired_ratios() -> None:
    row = chains.described(PROBLEM, chains.Choice(DEPENDENT, "stated"), result(wrong=0))
    assert row["bare"]["us_per_step"] == {"dependent": 4.0, "plain": 5.0, "cublas": 6.0}
    assert row["normalised"]["plain_over_dependent"] == 1.25
    assert row["right"] is True


def test_one_wrong_element_makes_a_chain_wrong() -> None:
    row = chains.described(PROBLEM, chains.Choice(DEPENDENT, "stated"), result(wrong=1))
    assert row["right"] is False
    assert "WRONG" in chains.told(row)


def test_the_layers_are_ten_of_real_models() -> None:
    listed = read_shape_files([SHAPES / "llm-inference.txt", SHAPES / "deepgemm.txt"]).shapes
    assert len(set(LAYERS)) == 10
    assert set(LAYERS) <= {(shape.n, shape.k) for shape in listed}
    assert BATCHES == (1, 16, 17, 128, 4096)


@pytest.mark.parametrize("m", BATCHES)
def test_several_very_different_configs_that_do_not_split_k_run_every_product(m: int) -> None:
    for n, k in LAYERS[::4]:
        problem = Problem(GemmShape(m, n, k), 132)
        field = field_of(problem, [])
        run = [*field.whole, *field.beside]
        assert field.whole
        assert all(map(is_whole, run))
        assert [faults(config, problem) for config in run] == [[]] * len(run)
        variants = {config.variant for config in run}
        assert len(variants) >= 8
        assert len({(v.schedule, v.transposed_store) for v in variants}) >= 3
        assert {v.consumers for v in variants} == {1, 2, 3}


def test_stored_configs_run_plainly_and_a_tuned_one_that_splits_k_is_compared_apart() -> None:
    whole = replace(PLAIN, variant=KernelVariant(128, 128, 6, schedule="pingpong"))
    found = candidates(DEEP, {SPLIT: 10.0, chains.dependent(whole): 20.0})
    field = field_of(DEEP, found)
    assert field.tuned == field.split == SPLIT
    assert field.whole[0] == whole
    assert SPLIT not in field.whole


def test_configs_are_ordered_by_what_they_showed_beside_cublas() -> None:
    found = candidates(DEEP, {PLAIN: 30.0, SPLIT: 10.0, DEPENDENT: 20.0})
    assert ordered(found) == [SPLIT, DEPENDENT, PLAIN]
    assert fastest(found, is_whole) == DEPENDENT
    assert fastest(found, lambda _: False) is None


def bits(who: str, m: int, first_row: str, differing: int = 0) -> Bits:
    return Bits(m, who, PLAIN if who == "whole" else None, first_row, differing)  # type: ignore[arg-type]


COST = Cost(PLAIN, (10.0, 20.0), (12.0, 24.0), (12.0, 24.0))


@pytest.mark.parametrize(
    ("seen", "invariant", "cublas_changes"),
    [
        ([bits("whole", 1, "a"), bits("whole", 16, "a"), bits("cublas", 1, "b")], True, 0),
        ([bits("whole", 1, "a"), bits("whole", 16, "c")], False, 0),
        ([bits("whole", 1, "a"), bits("whole", 16, "a", differing=1)], False, 0),
        ([bits("whole", 1, "a"), bits("cublas", 1, "a"), bits("cublas", 16, "b", 3)], True, 1),
        ([bits("whole", 1, "a"), bits("split", 1, "z", differing=1)], True, 0),
    ],
)
def test_rows_are_invariant_if_no_whole_config_differs_anywhere(
    seen: list[Bits], invariant: bool, cublas_changes: int
) -> None:
    found = summary([invariance.described(64, 64, seen, {1: COST})])
    assert found["invariant"] is invariant
    assert found["cublas_changes_first_row"] == cublas_changes


def test_the_cost_is_the_geometric_mean_of_paired_ratios() -> None:
    halved = replace(COST, ours_us=(24.0, 48.0))
    row = invariance.described(64, 64, [bits("whole", 1, "a")], {1: COST, 16: halved})
    found = summary([row])
    assert found["ratio_cublas_geometric_mean"] == pytest.approx((1.2 * 0.5) ** 0.5)
    assert found["ratio_cublas_least"] == 0.5


def test_nothing_measured_proves_nothing() -> None:
    found = summary([])
    assert found["invariant"] is False
    assert found["ratio_cublas_geometric_mean"] is None
