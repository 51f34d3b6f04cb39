"""`tuner worker`: tune what others ask the service for."""

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated
from uuid import uuid4

import typer

from tuner.cli import console, exits
from tuner.cli.devices import choose_device
from tuner.cli.interrupts import interruptible
from tuner.cli.options import (
    DatabaseOption,
    DeviceOption,
    JobsOption,
    SecondsOption,
    TrialsOption,
    command_line,
    settings,
)
from tuner.cli.provenance import this_worker
from tuner.errors import StoreError, TunerError


def worker(
    context: typer.Context,
    device: DeviceOption = None,
    db: DatabaseOption = None,
    misses: Annotated[
        bool,
        typer.Option(
            "--misses",
            help="When no job is queued, tune what look-ups missed, what promises most first.",
        ),
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="End when there is nothing to do, instead of waiting.")
    ] = False,
    poll: Annotated[
        float, typer.Option(min=0.05, help="Seconds between two looks for something to do.")
    ] = 2.0,
    trials: TrialsOption = None,
    seconds_per_shape: SecondsOption = None,
    jobs: JobsOption = None,
) -> None:
    """Tune the shapes that are queued for this device, and publish what comes of it.

    Shapes are queued by POST /runs of the service. Any number of workers may share a database: a
    job is one worker's at a time, and that of a worker that died is taken up by the next. A
    worker keeps its GPU for itself as long as it runs. Exit codes with --once: as of `tuner run`.

    Example: tuner worker --device cuda:0 --misses --db postgresql://tuner@db/tuner
    """
    where = choose_device(device)
    # Loads Optuna and SQLAlchemy, which `tuner --help` should not wait for.
    from tuner.cli import opening
    from tuner.cli.working import Publisher, Worker
    from tuner.store.engine import open_store
    from tuner.store.generations import Generations
    from tuner.store.jobs import Jobs
    from tuner.store.leases import Leases
    from tuner.store.spooling import SpoolingRepository
    from tuner.study import Budget, Tools

    budget = Budget(seconds_per_shape=seconds_per_shape)
    chosen = settings(db)
    say = partial(console.stderr().print, markup=False, soft_wrap=True)
    with (
        interruptible(),
        opening.opened(where, chosen.cache_dir, jobs) as found,
        open_store(chosen.database_url) as database,
        SpoolingRepository(database, chosen.cache_dir / "spool", say) as repository,
    ):
        identity, run_id = found.device.identify(), uuid4().hex
        # From here on the service knows the device, and takes jobs for it.
        repository.start_run(run_id, command_line(context), found.source, identity)
        working = Worker(
            Tools(
                found.device,
                found.compiler,
                repository,
                run_id,
                found.source,
                worker=this_worker(),
                menu=found.menu,
            ),
            Jobs(database),
            Leases(database, patiently=repository.patiently),
            repository,
            Publisher(Generations(database), identity.key, f"worker {this_worker()}", repository),
            replace(budget, trials=trials) if trials else budget,
            misses,
            say,
        )
        say(f"Working on {identity.name} ({identity.key}); database {repository.location}")
        ended_by: TunerError | None = None
        try:
            working.work(None if once else poll)
            code = exits.DONE if set(working.ended) <= {"tuned"} else exits.PARTIAL
        except KeyboardInterrupt:
            code = exits.INTERRUPTED
        except TunerError as error:
            code, ended_by = exits.exit_code(error), error
        with suppress(StoreError):  # the run's own record is worth less than what it measured
            repository.finish_run(run_id, code)
    say(str(working))
    if ended_by:
        say(str(ended_by))
    raise typer.Exit(code)
