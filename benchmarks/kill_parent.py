"""SIGKILL of `tuner run` at random moments: `python -m benchmarks.kill_parent --kills 50`.

Replays a recording into a new database, SQLite and Postgres in turn. A run is killed at a moment
drawn at random from the time that a whole run takes, and started again, until the database has
seen its share of kills; then it is left to finish. It fails if a row or an ended shape is lost, a
shape that had ended is tuned again, a config is attempted twice, a race is torn, or a shape is left
without an end. Needs no GPU. `--out` stores the result.
"""

import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from benchmarks.harness import Results, command_of, parser
from benchmarks.store_databases import environment, private_server
from tuner.cli import evidence
from tuner.cli.provenance import commit_measured
from tuner.device.replay import Recording
from tuner.shape import Problem
from tuner.shape_files import read_shape_files
from tuner.store.engine import open_store
from tuner.trial import PROTOCOL_COOL, PROTOCOL_HOT, Measurement, ShapeOutcome, ShapeState

MODULE = "benchmarks.kill_parent"
EXAMPLES = Path(__file__).parent.parent / "examples" / "shapes.txt"
TUNER = [sys.executable, "-c", "import sys; from tuner.cli.main import main; sys.exit(main())"]
KILLS_PER_DATABASE = 8
FINISH_S = 600.0
"""How long a run that is not killed may take."""


class Started(Protocol):
    """A process that runs the command."""

    def wait(self, timeout: float) -> int | None:
        """Its exit code, or None if it still runs after `timeout` seconds."""

    def kill(self) -> None:
        """SIGKILL it, and wait until it is gone."""

    def said(self) -> str:
        """What it wrote on stderr so far."""


Start = Callable[[str], Started]
"""Begins `tuner run` over the problems, with the database of a URL."""
Moment = Callable[[Started], bool]
"""Waits for the moment to kill a run at; False if the run ended before it came."""


@dataclass
class Command:
    """`tuner` with `arguments`, in a process of its own."""

    process: "subprocess.Popen[bytes]"
    stderr: Path

    @classmethod
    def start(cls, arguments: Sequence[str], folder: Path) -> "Command":
        stderr = folder / "stderr"
        with stderr.open("wb") as told:
            process = subprocess.Popen([*TUNER, *arguments], stdout=subprocess.DEVNULL, stderr=told)
        return cls(process, stderr)

    def wait(self, timeout: float) -> int | None:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def said(self) -> str:
        return self.stderr.read_text(errors="replace")


@dataclass(frozen=True)
class Stored:
    """What a database holds of some problems."""

    rows: frozenset[Measurement]
    ended: dict[Problem, ShapeOutcome]

    def of(self, problem: Problem) -> frozenset[Measurement]:
        return frozenset(row for row in self.rows if row.problem == problem)

    @classmethod
    def read(cls, url: str, problems: Sequence[Problem], recording: Recording) -> "Stored":
        rows: list[Measurement] = []
        ended = {}
        with open_store(url) as store:
            for problem in problems:
                rows += store.attempts(problem, recording.device.key, sources=["replay"])
                told = store.outcome(problem, recording.device.key, recording.toolchain, "replay")
                if told is not None:
                    ended[problem] = told
        return cls(frozenset(rows), ended)


@dataclass
class Case:
    """One database, and what its kills did to it; the lists of seconds are of its runs.

    ended_lost: shapes that a run had said, or a database had, to have ended, and that were not in
    it afterwards. attempted_twice: configs of one shape with two attempts outside a race.
    """

    database: str
    shapes: int
    kills: int = 0
    killed_after_s: list[float] = field(default_factory=list)
    rows_at_kills: list[int] = field(default_factory=list)
    ended_at_kills: list[int] = field(default_factory=list)
    rows: int = 0
    attempts: int = 0
    rows_lost: int = 0
    ended_lost: int = 0
    tuned_again: int = 0
    attempted_twice: int = 0
    races_torn: int = 0
    shapes_undone: int = 0
    exit_code: int | None = None

    @property
    def failed(self) -> bool:
        faults = (self.rows_lost, self.ended_lost, self.tuned_again, self.attempted_twice)
        return bool(any(faults) or self.races_torn or self.shapes_undone or self.exit_code)


def after(seconds: float) -> Moment:
    return lambda run: run.wait(seconds) is None


def compare(case: Case, before: Stored, now: Stored) -> None:
    """Count in `case` what `now` lacks of `before`, and what was done to ended shapes since."""
    case.rows_lost += len(before.rows - now.rows)
    case.ended_lost += len(before.ended.keys() - now.ended.keys())
    for problem, outcome in before.ended.items():
        again = now.ended.get(problem, outcome) != outcome
        case.tuned_again += again or now.of(problem) != before.of(problem)


def count_end(case: Case, problems: Sequence[Problem], end: Stored) -> None:
    """Count in `case` what must not be in a database whose run has finished."""
    attempts = Counter((row.problem, row.contender) for row in end.rows if row.race is None)
    case.rows, case.attempts = len(end.rows), attempts.total()
    case.attempted_twice = sum(times > 1 for times in attempts.values())
    races: dict[str, set[str]] = {}
    for row in end.rows:
        if row.race is not None and row.protocol in (PROTOCOL_HOT, PROTOCOL_COOL):
            races.setdefault(row.race, set()).add(row.contender.name)
    # Entrants of a race are stored in one transaction: cuBLAS and a kernel, or nobody.
    case.races_torn = sum(not {"cublas", "kernel"} <= names for names in races.values())
    tuned = {p for p, outcome in end.ended.items() if outcome.state is ShapeState.TUNED}
    case.shapes_undone = len(set(problems) - tuned)


def told_ended(said: str, problems: Sequence[Problem]) -> set[Problem]:
    """The shapes whose end a run has reported."""
    lines = [line for line in said.splitlines() if line.startswith("[")]
    return {p for p in problems if any(f"] {p.shape} " in line for line in lines)}


def kill_and_finish(
    database: str,
    url: str,
    problems: Sequence[Problem],
    recording: Recording,
    start: Start,
    moments: Sequence[Moment],
) -> Case:
    """Kill one run after another at `moments`, then let one finish.

    A run that ends before its moment ends the killing: nothing is left to interrupt.
    """
    case = Case(database, len(problems))
    with open_store(url):
        pass  # made by the newest revision, so that the first run finds it
    stored = Stored.read(url, problems, recording)
    for moment in moments:
        run = start(url)
        began = time.monotonic()
        if not moment(run):
            break
        run.kill()
        killed_after_s = time.monotonic() - began
        now = Stored.read(url, problems, recording)
        compare(case, stored, now)
        case.ended_lost += len(told_ended(run.said(), problems) - now.ended.keys())
        case.kills += 1
        case.killed_after_s.append(round(killed_after_s, 2))
        case.rows_at_kills.append(len(now.rows))
        case.ended_at_kills.append(len(now.ended))
        stored = now
    last = start(url)
    case.exit_code = last.wait(FINISH_S)
    if case.exit_code is None:
        last.kill()
        case.exit_code = -9
    end = Stored.read(url, problems, recording)
    compare(case, stored, end)
    count_end(case, problems, end)
    return case


def shown(case: Case) -> str:
    verdict = "FAILED" if case.failed else "ok"
    return (
        f"{case.database}: {verdict}; {case.kills} kills, {case.rows} rows, {case.rows_lost} lost; "
        f"shapes ended at the kills: {case.ended_at_kills} of {case.shapes}; "
        f"{case.tuned_again} tuned again, {case.attempted_twice} configs attempted twice"
    )


def summary(cases: Sequence[Case]) -> dict[str, Any]:
    counted = ("kills", "rows", "rows_lost", "ended_lost", "tuned_again", "attempted_twice")
    names = (*counted, "races_torn", "shapes_undone")
    totals = {name: sum(getattr(case, name) for case in cases) for name in names}
    in_mid_tuning = sum(
        rows > 0 and ended < case.shapes
        for case in cases
        for rows, ended in zip(case.rows_at_kills, case.ended_at_kills, strict=True)
    )
    failed = sum(case.failed for case in cases)
    return {"databases": len(cases), "failed": failed, "killed_with_rows": in_mid_tuning, **totals}


def main() -> None:
    arguments = parser(__doc__, MODULE)
    arguments.add_argument("--kills", type=int, default=50)
    arguments.add_argument("--shapes", type=Path, default=EXAMPLES)
    arguments.add_argument("--trials", type=int, default=48)
    arguments.add_argument("--seed", type=int, default=1, help="of the moments")
    chosen = arguments.parse_args()
    recording = Recording.load("h200")
    listing = read_shape_files([chosen.shapes])
    problems = [Problem(shape, recording.device.sms) for shape in listing.shapes]
    random = Random(chosen.seed)
    asked = ["run", "--shapes", str(chosen.shapes), "--device", "replay"]
    asked += ["--trials", str(chosen.trials)]
    commit = commit_measured(chosen.commit)
    head = evidence.origin(command_of(MODULE), commit, recording.device, recording.toolchain)
    cases: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="tuner-kill-") as made, private_server() as server:
        folder = Path(made)

        def start(url: str) -> Started:
            return Command.start([*asked, "--db", url], folder)

        results = Results(chosen.out, {**head, "source": "replay", **environment(server)})
        began = time.monotonic()
        undisturbed = start(f"sqlite:///{folder / 'undisturbed.db'}")
        if undisturbed.wait(FINISH_S) != 0:
            sys.exit(f"a run that nobody kills does not finish: {undisturbed.said()}")
        whole_s = time.monotonic() - began
        while (left := chosen.kills - sum(case.kills for case in cases)) > 0:
            number = len(cases)
            kind = "postgres" if number % 2 else "sqlite"
            url = f"sqlite:///{folder / f'{number}.db'}"
            url = server.create(f"run_{number}") if kind == "postgres" else url
            count = min(left, KILLS_PER_DATABASE)
            moments = [after(random.uniform(0, whole_s)) for _ in range(count)]
            case = kill_and_finish(kind, url, problems, recording, start, moments)
            cases.append(case)
            results.add(asdict(case), shown(case))
    results.finish({"whole_run_s": round(whole_s, 2), **summary(cases)})
    if any(case.failed for case in cases):
        sys.exit("a run failed; its line says how.")


if __name__ == "__main__":
    main()
