"""Compiling ahead: the device never waits for a batch, nor for work nobody wants any more."""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import islice

import pytest

from tuner.config import KernelConfig, KernelVariant
from tuner.errors import CompileError
from tuner.search.space import menu
from tuner.shape import GemmShape, Problem
from tuner.study.ahead import Compiled, compiled_ahead
from tuner.trial import CompileFailure, Cubin, TrialState

MENU = menu(Problem(GemmShape(64, 2112, 7168), 132))[:40]


class Press:
    """Compiles when told to; remembers what was asked."""

    def __init__(self, finish: Callable[[KernelVariant], Compiled | Exception | None]) -> None:
        self.futures: dict[KernelVariant, Future[Compiled]] = {}
        self._finish = finish

    def submit(self, variant: KernelVariant) -> Future[Compiled]:
        future: Future[Compiled] = Future()
        self.futures[variant] = future
        outcome = self._finish(variant)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        elif outcome is not None:
            future.set_result(outcome)
        return future


def cubin(variant: KernelVariant) -> Cubin:
    return Cubin(variant, "", 168, 0, 0.1, False)


class Asking:
    def __init__(self) -> None:
        self.left = list(MENU)

    def __call__(self, count: int) -> list[KernelConfig]:
        given, self.left = self.left[:count], self.left[count:]
        return given


def test_a_slow_compile_does_not_hold_up_those_that_are_ready() -> None:
    slow = MENU[0].variant
    press = Press(lambda v: None if v == slow else cubin(v))
    ready = compiled_ahead(Asking(), press.submit, 4, lambda: 1000)
    done = [config for config, _ in islice(ready, 39)]
    assert set(done) == set(MENU[1:])
    ready.close()
    assert press.futures[slow].cancelled()


def test_a_compile_that_takes_longer_than_anything_is_wanted_for_is_dropped() -> None:
    press = Press(lambda _: None)
    answers = iter([5, 5, 0])
    assert list(compiled_ahead(Asking(), press.submit, 4, lambda: next(answers))) == []
    assert all(future.cancelled() for future in press.futures.values())


def test_the_next_batch_is_in_the_making_before_the_last_of_this_one_is_used() -> None:
    press = Press(cubin)
    done: list[KernelConfig] = []
    ahead = []
    for config, _ in compiled_ahead(Asking(), press.submit, 8, lambda: 24 - len(done)):
        done.append(config)
        ahead.append(len(press.futures) - len(done))
    assert len(done) == 24
    assert min(ahead[:-8]) >= 4
    assert len(press.futures) == 24


def test_it_ends_when_nothing_more_is_proposed() -> None:
    press = Press(cubin)
    got = list(compiled_ahead(Asking(), press.submit, 16, lambda: 1000))
    assert len(got) == 40


def test_an_error_nobody_foresaw_fails_one_variant_and_names_its_class() -> None:
    bad = MENU[1].variant
    press = Press(lambda v: OSError("disk on fire") if v == bad else cubin(v))
    got = dict(compiled_ahead(Asking(), press.submit, 4, lambda: 1000))
    failure = got[MENU[1]]
    assert isinstance(failure, CompileFailure)
    assert failure.state is TrialState.CRASHED
    assert failure.detail == "the compiler raised OSError: disk on fire"
    assert sum(isinstance(c, Cubin) for c in got.values()) == 39


def test_a_compiler_that_says_it_cannot_work_is_believed() -> None:
    press = Press(lambda _: CompileError("no compiler here."))
    with pytest.raises(CompileError, match="no compiler here"):
        next(compiled_ahead(Asking(), press.submit, 4, lambda: 1))
