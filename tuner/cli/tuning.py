"""A run from its first shape to its last, or to what ended it: nothing finished is lost."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

from rich.console import Console

from tuner.cli import exits
from tuner.cli.layers import TunedLayer, tuned_layer
from tuner.cli.opening import Opened
from tuner.cli.progress import shown_on
from tuner.cli.provenance import this_worker
from tuner.cli.summary import Result
from tuner.device.tally import TalliedDevice, Usage
from tuner.errors import StoreError, TunerError
from tuner.hardware import DeviceIdentity
from tuner.lookup import Answer
from tuner.shape import Problem
from tuner.store.spooling import SpoolingRepository
from tuner.study import (
    Budget,
    Event,
    LayerTask,
    Leases,
    ShapeEnded,
    Tools,
    run_all,
    run_layers,
)
from tuner.trial import ShapeOutcome, ShapeState


@dataclass(frozen=True, slots=True)
class Tuned:
    """Finished shapes with their answers, layers as they are now, and how the run ended.

    ended_by: the error that stopped the run before its last shape, if one did.
    usage: what the device did in this run; shapes tuned before add nothing.
    """

    run_id: str
    device: DeviceIdentity
    database: str
    results: Sequence[Result]
    exit_code: int
    ended_by: TunerError | None = None
    layers: Sequence[TunedLayer] = ()
    usage: Usage = field(default_factory=Usage)


def tune_all(
    problems: Sequence[Problem],
    layers: Sequence[LayerTask],
    opened: Opened,
    repository: SpoolingRepository,
    leases: Leases,
    budget: Budget,
    command: str,
    progress: Console,
) -> Tuned:
    """Tune `problems` in order, then `layers`; an interrupt or a fatal error ends it, and is told.

    Raises: DeviceError or StoreError if the run cannot even begin.
    """
    identity, toolchain = opened.device.identify(), opened.compiler.toolchain()
    run_id = uuid4().hex
    repository.start_run(run_id, command, opened.source, identity)
    results: list[Result] = []

    def answer_of(outcome: ShapeOutcome) -> Answer | None:
        if outcome.state is not ShapeState.TUNED:
            return None
        return repository.best(outcome.problem, identity.key, current=toolchain)

    device = TalliedDevice(opened.device)
    tools = Tools(
        device,
        opened.compiler,
        repository,
        run_id,
        opened.source,
        worker=this_worker(),
        menu=opened.menu,
        leases=leases,
    )
    ended_by: TunerError | None = None
    shown: list[TunedLayer] = []
    try:
        total = len(problems) + sum(task.most_ms for task in layers)
        with shown_on(progress, total) as show:

            def follow(event: Event) -> None:
                answer = None
                if isinstance(event, ShapeEnded):
                    answer = answer_of(event.outcome)
                    results.append((event.outcome, answer))
                show(event, answer)

            if problems:
                run_all(problems, tools, budget, follow)
            run_layers(layers, tools, budget, follow)
        if layers:  # whose cross races may have chosen anew
            results = [(outcome, answer_of(outcome)) for outcome, _ in results]
        shown = [tuned_layer(task, repository, identity.key, toolchain) for task in layers]
        whole = all(answer for _, answer in results) and all(one.layer for one in shown)
        exit_code = exits.DONE if whole else exits.PARTIAL
    except KeyboardInterrupt:
        exit_code = exits.INTERRUPTED
    except TunerError as error:
        exit_code, ended_by = exits.exit_code(error), error
    with suppress(StoreError):  # the run's own record is worth less than its summary
        repository.finish_run(run_id, exit_code)
    usage = device.usage()
    return Tuned(run_id, identity, repository.location, results, exit_code, ended_by, shown, usage)
