"""Who goes on from a screening and a heat."""

from dataclasses import replace

from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.search.finalists import choose_finalists

WIDE = KernelVariant(128, 200, 5, schedule="pingpong")
NARROW = KernelVariant(192, 128, 4, schedule="pingpong")
KNOBS = LaunchKnobs(132)


def launches(variant: KernelVariant, count: int) -> list[KernelConfig]:
    return [KernelConfig(variant, replace(KNOBS, group=group + 1)) for group in range(count)]


def test_the_heat_goes_first_and_the_two_rankings_take_turns() -> None:
    (wide,), (narrow,) = launches(WIDE, 1), launches(NARROW, 1)
    assert choose_finalists([wide, narrow], [narrow, wide]) == [narrow, wide]
    assert choose_finalists([wide], []) == [wide]


def test_a_variant_sends_no_more_launches_than_it_may() -> None:
    chosen = choose_finalists(launches(WIDE, 3), launches(NARROW, 3), per_variant=2, per_tile=4)
    assert [c.variant for c in chosen].count(WIDE) == 2
    assert [c.variant for c in chosen].count(NARROW) == 2


def test_variants_of_one_tile_leave_room_for_another() -> None:
    alike = [
        WIDE,
        replace(WIDE, stages=4),
        replace(WIDE, producer_registers=40, consumer_registers=232),
        replace(WIDE, transposed_store=True),
    ]
    hot = [launch for variant in alike for launch in launches(variant, 2)] + launches(NARROW, 1)
    chosen = choose_finalists([], hot, per_variant=2, per_tile=4)
    assert len(chosen) == 5
    assert chosen[-1].variant == NARROW


def test_clusters_that_share_loads_differently_are_tiles_of_their_own() -> None:
    paired = replace(WIDE, cluster_n=2)
    chosen = choose_finalists([], launches(WIDE, 1) + launches(paired, 1))
    assert [c.variant for c in chosen] == [WIDE, paired]
