"""A config that won on one problem, as it would be launched for another."""

from dataclasses import replace

from tuner.config import KernelConfig, KernelVariant
from tuner.lookup.launches import fewest_sms, resident_sms, split_choices, store_for
from tuner.shape import Problem


def adapted(config: KernelConfig, won_on: Problem, problem: Problem) -> KernelConfig | None:
    """The same tile, ring and order of tiles; None if K is split here and that cannot pay there.

    The output's pitch decides how it is stored, and the SM budget how many thread blocks start. A
    launch keeps its style: all multiprocessors stay all, the fewest for as many waves stay the
    fewest, anything else stays the same share, and K is split as nearly to the utmost. Clusters
    that a budget cannot hold are given up. Whether the result is legal is for `faults` to say.
    """
    variant, knobs = config.variant, config.knobs
    if variant.cluster_size > problem.sms:
        variant = replace(variant, cluster_m=1, cluster_n=1)
    if variant.store != (store := store_for(problem)):
        variant = replace(variant, store=store)
    split = _split(config, won_on, problem, variant)
    if split is None:
        return None
    launch = (_sms(config, won_on, problem, variant), *split)
    if launch != (knobs.num_sms, knobs.split_k, knobs.split_tail):
        num_sms, split_k, split_tail = launch
        knobs = replace(knobs, num_sms=num_sms, split_k=split_k, split_tail=split_tail)
    return KernelConfig(variant, knobs)


def _sms(config: KernelConfig, won_on: Problem, problem: Problem, variant: KernelVariant) -> int:
    size, used = variant.cluster_size, config.knobs.num_sms
    all_of_them = resident_sms(problem.sms, size)
    if variant.reduction != "none" or used >= resident_sms(won_on.sms, config.variant.cluster_size):
        return all_of_them
    if used == fewest_sms(won_on, config.variant):
        return fewest_sms(problem, variant)
    return max(min(used * problem.sms // won_on.sms, all_of_them) // size, 1) * size


def _split(
    config: KernelConfig, won_on: Problem, problem: Problem, variant: KernelVariant
) -> tuple[int, bool] | None:
    knobs = config.knobs
    if knobs.split_k == 1:
        return 1, False
    choices = split_choices(problem, variant)
    there = split_choices(won_on, config.variant)
    style = there.index(own) if (own := (knobs.split_k, knobs.split_tail)) in there else 0
    return choices[min(style, len(choices) - 1)] if choices else None
