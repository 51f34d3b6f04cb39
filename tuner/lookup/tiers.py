"""One question, answered by the first tier that can: measured, or as sure as it can be.

exact    measured for this problem, on these terms, on this device
layer    M lies inside a tuned interval of this N and K
nearest  borrowed from a shape tuned on this device, at most REACH doublings away
sibling  borrowed from another Hopper part, which counts as SIBLING doublings more
model    proposed by the analytic model, at most MODEL_REACH doublings from what it was scored on

Every config that is returned is legal for the problem.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice, takewhile
from math import exp, log, log2
from typing import Literal

from tuner.config import KernelConfig
from tuner.hardware import DeviceClass, device_class
from tuner.legality import faults
from tuner.lookup.adapt import adapted
from tuner.lookup.answer import Answer, Library, Match, Tier, Use
from tuner.lookup.book import Book
from tuner.lookup.choose import TIE_MARGIN
from tuner.lookup.confidence import Confidence
from tuner.lookup.distance import distance
from tuner.lookup.miss import Miss, why_none
from tuner.lookup.neighbours import REACH
from tuner.lookup.numerics import Numerics, numerics_of
from tuner.lookup.proposals import Near, Proposal, proposals
from tuner.lookup.regret import tier_regret
from tuner.lookup.terms import Terms
from tuner.shape import GemmShape, Problem
from tuner.trial import Contender

Books = Mapping[str, Book]

SIBLING = 1.0
"""Doublings that another Hopper part counts for, beside those of its SM count."""
MODEL_REACH = 16.0
"""Doublings from every shape that the model was scored on, beyond which it is not asked."""
LENDERS = 12
"""Tuned problems that lend their winners, the nearest."""
MOST_TIES = 3
_MODELLED = ("bf16", "tn", "none")
"""dtype, layout and epilogue of the kernel; of others only measurements are known."""


def find(
    problem: Problem,
    books: Books,
    *,
    device_key: str,
    match: Literal["any", "exact"] = "any",
    protocol: str | None = None,
    numerics: Numerics | None = None,
    plain: bool = False,
) -> Answer | Miss:
    """The config to use for `problem`, how it was found and how sure that is, or why there is none.

    books: what is known of each device, by its key. match: `exact` takes measured answers only.
    protocol: rank by one; None for hot and cool together. numerics, plain: what the config must
    keep to, whatever the tier. The same books give the same answer, on any machine.
    """
    terms = Terms(protocol, plain, numerics == "invariant")
    book = books.get(device_key)
    if book is not None and (measured := book.exact(problem, terms)) is not None:
        return measured
    keeper = next(iter(books.values()), None) if book is None else book
    if keeper is None:
        return _search(problem, books, device_key, match, terms)
    asked = (problem, device_key, match, terms, *(b.serial for b in books.values()))
    found = keeper.recall(asked)
    if found is None:
        found = keeper.remember(asked, _search(problem, books, device_key, match, terms))
    return found


def _search(
    problem: Problem, books: Books, device_key: str, match: str, terms: Terms
) -> Answer | Miss:
    book, device = books.get(device_key), device_class(device_key)
    if book is None and not (device and device.is_hopper):
        return Miss("unknown_device", _unknown(device_key, books))
    if book is None:
        book = Book(device_key, device_key)
    refused = why_none(problem, book.device_name, None)
    if refused.state == "unsupported":
        return refused
    if refusal := book.refusal(problem):
        return refusal
    if device and (reason := _beyond(problem, device)):
        return Miss("unsupported", reason)
    where = f"{problem.shape} (d={problem.d}, {problem.sms} SMs) on {book.device_name}"
    if match == "exact":
        return _not_measured(problem, book, terms, where)
    if answer := of_layer(problem, book, terms):
        return answer
    if (problem.dtype, problem.layout, problem.epilogue) != _MODELLED:
        return Miss("never_tuned", f"{where} has no stored config. Tune it with `tuner run`.")
    near = _near(problem, books, book, terms)
    if not near and (away := _from_scored(problem)) > MODEL_REACH:
        return Miss(
            "never_tuned",
            f"{where} was never tuned, and no shape within {REACH:g} doublings of it; it is "
            f"{away:.0f} doublings from all that the model was scored on, more than "
            f"{MODEL_REACH:g}. Tune it with `tuner run`.",
        )
    return _predicted(problem, book, near, terms) or refused


def _unknown(device_key: str, books: Books) -> str:
    stored = ", ".join(f"{b.device_key} ({b.device_name})" for b in books.values()) or "none"
    return f"No device has the key {device_key[:40]!a}. Stored devices: {stored}."


def _beyond(problem: Problem, device: DeviceClass) -> str | None:
    """Why the device cannot hold the problem, or grant it so many multiprocessors."""
    needed, there = problem.shape.operand_bytes / 2**30, device.memory_gb
    if needed > there:
        return (
            f"{problem.shape} does not fit: A, B and D need {needed:.1f} GiB and the device has "
            f"{there} GiB. Split the product."
        )
    if problem.sms > device.sms:
        return f"The device has {device.sms} multiprocessors, fewer than sms={problem.sms}."
    return None


def _not_measured(problem: Problem, book: Book, terms: Terms, where: str) -> Miss:
    if problem in book and terms.label:
        return Miss(
            "no_valid_config",
            f"{where} was tuned and no config that was raced is {terms.label}. Ask without that, "
            "or with match=any.",
        )
    return Miss(
        "never_tuned",
        f"{where} was not measured, and match=exact takes nothing else. Tune it with `tuner run`, "
        "or ask with match=any.",
    )


def of_layer(problem: Problem, book: Book, terms: Terms) -> Answer | None:
    """What a tuned interval of this N and K says of this M; None if none holds it."""
    layer, m = book.layer(problem, terms), problem.shape.m
    interval = layer.interval(m) if layer else None
    if layer is None or interval is None:
        return None
    tuned = replace(problem.shape, m=interval.nearest(m))
    config = adapted(interval.config, replace(problem, shape=tuned), problem)
    if config is None or faults(config, problem):
        return None
    away = abs(log2(tuned.m / m))
    return Answer(
        problem=problem,
        device_key=book.device_key,
        device_name=book.device_name,
        match=Match("layer", tuned),
        config=config,
        timings=(),
        speedup=None,
        use=interval.use,
        library=None if interval.use == "kernel" else Library(None, None),
        ties=(),
        toolchain=layer.toolchain,
        measured_at=None,
        stale=book.stale(layer.toolchain),
        source=layer.source,
        numerics=numerics_of(Contender("kernel", config)),
        predicted=Confidence(0, None, interval.regret, away),
    ).promising(terms.numerics)


def _near(problem: Problem, books: Books, own: Book, terms: Terms) -> list[Near]:
    """The nearest measured problems; other devices are asked where nothing of this one is close."""
    near = own.near(problem, terms, REACH, LENDERS)
    if near and near[0][0] <= SIBLING:
        return near
    for other in books.values():
        device = device_class(other.device_key)
        if other is not own and device and device.is_hopper:
            lent = other.near(problem, terms, REACH - SIBLING, LENDERS)
            near += [(away + SIBLING, lesson) for away, lesson in lent]
    near.sort(key=lambda n: (n[0], n[1].answer.device_key, n[1].problem))
    return near[:LENDERS]


def _from_scored(problem: Problem) -> float:
    """Doublings to the nearest shape that the model was scored on."""
    scored = (replace(problem, shape=shape, d="row") for shape in tier_regret().shapes)
    return min(distance(problem, other) for other in scored)


def _predicted(problem: Problem, book: Book, near: Sequence[Near], terms: Terms) -> Answer | None:
    usual = 0.0 if near else book.usual(problem, terms) or 0.0
    proposed = proposals(problem, near, terms, usual, book.model)
    legal = (proposal for proposal in proposed if not faults(proposal.config, problem))
    chosen = next(legal, None)
    if chosen is None:
        return None
    ties = _ties(chosen, legal)
    lesson = chosen.lesson
    tier: Tier = "model"
    if lesson is not None:
        tier = "nearest" if lesson.answer.device_key == book.device_key else "sibling"
    band = tier_regret().of(tier, chosen.distance)
    width = exp(band.log_width)
    us = exp(chosen.log_us)
    use, library = _expected(near, band.regret.mean)
    return Answer(
        problem=problem,
        device_key=book.device_key,
        device_name=book.device_name,
        match=Match(tier, _as_asked(lesson.problem, problem) if lesson else None),
        config=chosen.config,
        timings=(),
        speedup=None,
        use=use,
        library=library,
        ties=ties,
        toolchain=lesson.answer.toolchain if lesson else tier_regret().toolchain,
        measured_at=None,
        stale=lesson.answer.stale if lesson else False,
        source=lesson.answer.source if lesson else "import",
        numerics=numerics_of(Contender("kernel", chosen.config)),
        predicted=Confidence(0, (us / width, us * width), band.regret, chosen.distance),
    ).promising(terms.numerics)


def _ties(chosen: Proposal, others: Iterator[Proposal]) -> tuple[KernelConfig, ...]:
    """Other legal proposals that cost as good as nothing more."""
    tied = takewhile(lambda p: p.cost <= chosen.cost + TIE_MARGIN, others)
    return tuple(sorted(p.config for p in islice(tied, MOST_TIES)))


def _expected(near: Sequence[Near], regret: float) -> tuple[Use, Library | None]:
    """The kernel, if its lead over cuBLAS nearby is more than what a guess is expected to lose.

    Without anything measured nearby nothing says that it leads.
    """
    weights = [exp(-away) for away, _ in near]
    leads = [log(lesson.answer.speedup or 1.0) for _, lesson in near]
    lead = sum(w * one for w, one in zip(weights, leads, strict=True)) / (sum(weights) or 1.0)
    if near and lead >= log(1 + regret):
        return "kernel", None
    libraries = (lesson.answer.library for _, lesson in near)
    version = next((lib.cublas_version for lib in libraries if lib), None)
    return "cublas", Library(version, None)


def _as_asked(tuned: Problem, problem: Problem) -> GemmShape:
    """The shape of `tuned` in the memory order of D that was asked for."""
    shape = tuned.shape
    return shape if tuned.d == problem.d else GemmShape(shape.n, shape.m, shape.k)
