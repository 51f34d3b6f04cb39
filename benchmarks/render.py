"""Write the results tables and the commands of the evidence into the documents.

`python benchmarks/render.py` rewrites what stands between the markers of README.md,
docs/results.md, docs/search.md, docs/look-ups.md and docs/evidence.md from the files in
benchmarks/results/ and what score_lookup.py ships; `--check` only says whether that would change
anything (exit 1). That the kernel has changed since the evidence was made is noted below a table,
and is no reason for `--check` to fail. Exit 2: the evidence or the markers cannot be used.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
if not __package__:
    # Run as a file, Python looks for modules beside it, and not in the checkout.
    sys.path.insert(0, str(ROOT))

from benchmarks.evidence_files import BadEvidence, commands_of  # noqa: E402
from benchmarks.evidence_tables import OLDER_KERNEL, pair  # noqa: E402
from benchmarks.look_up_table import table as look_up_table  # noqa: E402
from benchmarks.search_table import table  # noqa: E402

README = Path("README.md")
TABLES = {README: "article", Path("docs/results.md"): "mixed34"}
"""Documents with tables, and the pair NAME-hot.json, NAME-cool.json that each shows."""
SEARCH = Path("docs/search.md")
LOOK_UPS = Path("docs/look-ups.md")
PAGE = Path("docs/evidence.md")
BEGIN = "<!-- results: written by benchmarks/render.py -->"
END = "<!-- end of results -->"
PAGE_BEGIN = "<!-- commands: written by benchmarks/render.py -->"
PAGE_END = "<!-- end of commands -->"


def texts(root: Path) -> dict[Path, tuple[tuple[str, str], str]]:
    """What belongs between which markers of every document.

    Raises: BadEvidence if a file of evidence cannot be used.
    """
    tables = {
        document: ((BEGIN, END), pair(root, name, commands_from(document)))
        for document, name in TABLES.items()
    }
    return {
        **tables,
        SEARCH: ((BEGIN, END), table(root, commands_from(SEARCH))),
        LOOK_UPS: ((BEGIN, END), look_up_table(root)),
        PAGE: ((PAGE_BEGIN, PAGE_END), commands_of(root)),
    }


def commands_from(document: Path) -> str:
    """A link to the commands, as it is written in `document`."""
    return f"{Path(os.path.relpath(PAGE, document.parent)).as_posix()}#commands"


def replaced(document: str, name: Path, markers: tuple[str, str], text: str) -> str:
    """`document` with `text` between the markers.

    Raises: BadEvidence unless each marker is there once, in order.
    """
    first, last = markers
    before, begin, rest = document.partition(first)
    _, end, after = rest.partition(last)
    if not (begin and end) or first in rest or last in after:
        raise BadEvidence(f"{name} must have the markers {first} and {last} once, in order.")
    return f"{before}{first}\n{text}\n{last}{after}"


def without_note(document: str) -> str:
    """What `--check` compares: a change of the kernel alone makes no document stale."""
    return document.replace(f"\n\n{OLDER_KERNEL}", "")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the results into the documents.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to work on")
    options = parser.parse_args(arguments)
    root: Path = options.root
    try:
        parts = texts(root)
        old = {name: (root / name).read_text(encoding="utf-8") for name in parts}
        new = {name: replaced(old[name], name, *of_one) for name, of_one in parts.items()}
    except (BadEvidence, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    if options.check:
        stale = [name for name in new if without_note(new[name]) != without_note(old[name])]
        for name in stale:
            print(f"{name} is older than the evidence; run python benchmarks/render.py.")
        for name in () if stale else TABLES:
            if OLDER_KERNEL in new[name]:
                print(f"{name}: results of an older kernel than the one in this checkout.")
        return 1 if stale else 0
    for name in (name for name in new if new[name] != old[name]):
        (root / name).write_text(new[name], encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
