"""Put what was measured into the package: `python -m benchmarks.ship_snapshot [ROWS...]`.

ROWS are files of `tuner export`, recordings, or databases; left out, the exports of tuning runs
that `benchmarks/measured/` keeps.
They are put together in a database of their own and published, and what each device serves is
written to `tuner/snapshots/KEY.ID.json.gz`, which the client reads when it has nothing better. The
same rows have the same ID. Exits with 1, and writes nothing, if a row cannot be read or a config
is not legal.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tuner.cli.options import database_url
from tuner.client.rules import check
from tuner.client.sources import ENDING
from tuner.client.told import Told, packed
from tuner.errors import TunerError
from tuner.lookup.snapshot import Snapshot
from tuner.store.engine import open_store
from tuner.store.generations import Generations
from tuner.store.transfer import import_file, merge

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "tuner"
MEASURED = sorted(str(path) for path in (ROOT / "benchmarks" / "measured").glob("*.jsonl.gz"))
MOST_BYTES = 4 * 2**20
"""Of one file: every installation carries it."""


def published(rows: Sequence[str]) -> list[Snapshot]:
    """What each device of some rows would serve. Raises: TunerError."""
    with tempfile.TemporaryDirectory() as folder:
        url = database_url(str(Path(folder) / "tuner.db"))
        with open_store(url) as store:
            for named in rows:
                is_rows = named.removesuffix(".gz").endswith(".jsonl")
                moved = (
                    import_file(store, Path(named))
                    if is_rows
                    else merge(store, database_url(named))
                )
                if not moved.whole:
                    raise TunerError(f"{named} has rows that cannot be used; see `tuner import`.")
            generations = Generations(store)
            keys = [device.key for device in store.devices()]
            return [
                generations.snapshot(generations.publish(key, "ship_snapshot").id) for key in keys
            ]


def ship(snapshots: Sequence[Snapshot], folder: Path) -> list[str]:
    """Write them, each checked as a client would; what was written, as sentences.

    Raises: TunerError before anything is written.
    """
    files = []
    for snapshot in snapshots:
        told = Told(snapshot.body, checked=False)
        check(told)
        content = packed(snapshot.body)
        if not told.checked:
            raise TunerError(
                f"a config of {snapshot.device_key} is not legal; nothing was written."
            )
        if len(content) > MOST_BYTES:
            raise TunerError(f"{snapshot.device_key} takes {len(content)} B; ship fewer shapes.")
        files.append((f"{snapshot.device_key}.{snapshot.id}{ENDING}", content, snapshot))
    folder.mkdir(exist_ok=True)
    said = []
    for name, content, snapshot in files:
        for before in folder.glob(f"{snapshot.device_key}.*{ENDING}"):
            before.unlink()
        (folder / name).write_bytes(content)
        shapes = len(snapshot.entries)
        said.append(f"{name}: {shapes} problems, {len(content)} B.")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows", nargs="*", default=MEASURED)
    parser.add_argument("--out", type=Path, default=PACKAGE / "snapshots", help="the folder")
    chosen = parser.parse_args(arguments)
    try:
        said = ship(published(chosen.rows), chosen.out)
    except (TunerError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    print("\n".join(said))
    return 0


if __name__ == "__main__":
    sys.exit(main())
