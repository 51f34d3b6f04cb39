"""`tuner bench`: race what is stored against the libraries, and write the evidence."""

from pathlib import Path
from typing import Annotated
from uuid import uuid4

import typer

from tuner.cli import console
from tuner.cli.devices import Cuda, choose_device
from tuner.cli.interrupts import interruptible
from tuner.cli.options import (
    DatabaseOption,
    DeviceOption,
    JobsOption,
    MoreShapes,
    Output,
    OutputOption,
    RaceProtocol,
    ShapesOption,
    command_line,
    settings,
    shape_paths,
)
from tuner.cli.provenance import commit_measured, this_worker
from tuner.shape import Problem
from tuner.shape_files import read_shape_files


def bench(
    context: typer.Context,
    shapes: ShapesOption = None,
    more: MoreShapes = None,
    device: DeviceOption = None,
    db: DatabaseOption = None,
    protocol: Annotated[
        RaceProtocol,
        typer.Option(
            help="hot: products back to back, so that large ones meet the power limit. cool: idle "
            "gaps, so that clocks stay high."
        ),
    ] = RaceProtocol.HOT,
    rounds: Annotated[int, typer.Option(min=2, help="Rounds of each race.")] = 50,
    article: Annotated[
        bool, typer.Option("--article", help="Race the config of the article as well.")
    ] = False,
    best_of_protocol: Annotated[
        bool,
        typer.Option(
            "--best-of-protocol",
            help="Race the config that is best under the protocol, not the default answer.",
        ),
    ] = False,
    d: OutputOption = Output.ROW,
    jobs: JobsOption = None,
    json_out: Annotated[
        Path | None,
        typer.Option("--json", metavar="OUT", help="Write the evidence, every round, to a file."),
    ] = None,
    commit: Annotated[
        str | None,
        typer.Option(
            help="The commit that is measured, where git cannot say; it is marked as stated."
        ),
    ] = None,
) -> None:
    """Race each shape's stored config against cuBLAS and the best cuBLASLt algorithm.

    Where it is launched dependently, the best config that is not races as well.
    All contenders run in the same shuffled rounds, on fresh samples; ratio is the median over
    rounds of theirs / ours. Exit code 3: some shapes could not be raced.

    Example: tuner bench --shapes examples/shapes.txt --article --json article-hot.json
    """
    listing = read_shape_files(shape_paths(shapes, more))
    where = choose_device(device)
    # Loads SQLAlchemy and the search, which `tuner --help` should not wait for.
    from tuner.bench import Terms, Tools
    from tuner.cli import evidence
    from tuner.cli.opening import opened
    from tuner.cli.racing import print_races, race_shapes
    from tuner.store.engine import open_store

    if json_out:
        evidence.require_writable(json_out)
    chosen = settings(db)
    with (
        interruptible(),
        open_store(chosen.database_url, create=False) as repository,
        opened(where, chosen.cache_dir, jobs) as found,
    ):
        identity, toolchain = found.device.identify(), found.compiler.toolchain()
        terms = Terms(
            protocol.id,
            rounds,
            ranked_by=protocol.id if best_of_protocol else None,
            article=article,
            keep=isinstance(where, Cuda),
            source=found.source,
            run_id=uuid4().hex,
            worker=this_worker(),
        )
        races = race_shapes(
            [Problem(shape, identity.sms, d=d.layout) for shape in listing.shapes],
            Tools(found.device, found.compiler, repository),
            terms,
            console.stderr(),
        )
    print_races(console.stdout(), races.results, article)
    if json_out and races.results:
        out = json_out if races.complete else json_out.with_name(json_out.name + ".partial")
        command = command_line(context)
        made_from = commit_measured(commit)
        origin = evidence.origin(command, made_from, identity, toolchain)
        evidence.write(out, evidence.document(origin, races.results, terms))
        told = f"{made_from.name}, as stated" if made_from.stated else made_from.name
        typer.echo(f"Evidence: {out} (commit {told})")
    if races.ended_by:
        typer.echo(str(races.ended_by), err=True)
    raise typer.Exit(races.exit_code)
