"""The held-out list is what its command draws, and holds nothing the kernel was built on."""

from benchmarks import draw_shapes
from benchmarks.harness import SHAPES
from tuner.shape_files import read_shape_files


def listed(name: str) -> list[tuple[int, int, int]]:
    return [(s.m, s.n, s.k) for s in read_shape_files([SHAPES / name]).shapes]


def test_the_committed_list_is_what_the_command_writes() -> None:
    committed = (SHAPES / "heldout20.txt").read_text(encoding="utf-8")
    assert committed == draw_shapes.text()


def test_twenty_distinct_shapes_of_the_two_lists_are_drawn_and_none_that_is_known() -> None:
    drawn = listed("heldout20.txt")
    assert len(drawn) == len(set(drawn)) == 20
    assert set(drawn) <= {*listed("llm-inference.txt"), *listed("deepgemm.txt")}
    assert not set(drawn) & set(listed("mixed34.txt"))


def test_every_drawn_shape_can_be_run_and_fits_eight_gibibytes() -> None:
    for shape in draw_shapes.drawn():
        assert shape.k % 8 == 0
        assert 2 * (shape.m * shape.k + shape.n * shape.k + shape.m * shape.n) <= 8 * 2**30


def test_another_seed_draws_other_shapes() -> None:
    assert draw_shapes.drawn(seed=1) != draw_shapes.drawn(seed=2)
    assert draw_shapes.drawn(seed=1) == draw_shapes.drawn(seed=1)


def test_the_chains_run_a_dozen_of_the_known_shapes() -> None:
    chained = listed("chains12.txt")
    assert len(chained) == 12
    assert set(chained) <= set(listed("mixed34.txt"))
