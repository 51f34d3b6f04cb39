"""Shape files: `M N K` a line, read whole or refused whole.

Between the numbers: blanks, tabs, a comma or an `x`. `#` starts a comment. A first line of names
(`M,N,K` in any order and case) says which column is which. UTF-8, with or without a mark. A line
that is not understood is refused as `file:line: reason`, all of them together, so that a typing
error never becomes a shorter run.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import InvalidShape, ShapeFileError
from tuner.shape import MAX_EXTENT, GemmShape

MAX_FILE_BYTES = 64 * 2**20
"""About four million shapes; a longer file was given by mistake, or never ends."""

_COLUMNS = ("M", "N", "K")
_LINE_END = re.compile(r"\r\n|\r|\n")
_SEPARATOR = re.compile(r"[ \t]*,[ \t]*|(?<=[0-9])[ \t]*[xX][ \t]*(?=[-+0-9])|[ \t]+")
_NAME_SEPARATOR = re.compile(
    r"[ \t]*,[ \t]*|(?<=[mnk])[ \t]*x[ \t]*(?=[mnk])|[ \t]+", re.IGNORECASE
)
_DIGITS = re.compile(r"[0-9]+")
_HEXADECIMAL = re.compile(r"(?<![^ \t,])0[xX][0-9a-fA-F]+(?![^ \t,])")
_FOREIGN_MARKS = (
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
MAX_REPORTED = 1000
"""Refused lines that a message shows of one file; what has more was given by mistake."""
_SHOWN = 24
"""Characters of a refused field that a message repeats."""


@dataclass(frozen=True, slots=True)
class ShapeFile:
    """What one file holds: distinct shapes in their order, and lines that repeat one."""

    name: str
    shapes: tuple[GemmShape, ...]
    repeated: int

    def __str__(self) -> str:
        if not self.shapes:
            return f"{self.name}: no shapes"
        repeats = f", {_lines(self.repeated)} repeated" if self.repeated else ""
        return f"{self.name}: {_shapes(len(self.shapes))}{repeats}"


@dataclass(frozen=True, slots=True)
class ShapeList:
    """The distinct shapes of some files, in the order they were first met."""

    files: tuple[ShapeFile, ...]
    shapes: tuple[GemmShape, ...]

    @property
    def repeated(self) -> int:
        """Lines that repeat a shape of their own file or of an earlier one."""
        held = sum(len(file.shapes) + file.repeated for file in self.files)
        return held - len(self.shapes)

    def __str__(self) -> str:
        repeats = f", {_lines(self.repeated)} repeated" if self.repeated else ""
        return f"{_shapes(len(self.shapes))}{repeats}"


def read_shape_files(paths: Sequence[Path]) -> ShapeList:
    """Read every file before anything starts.

    Raises: ShapeFileError naming every refused line of every file, or saying that there are no
    shapes at all.
    """
    files: list[ShapeFile] = []
    refusals: list[str] = []
    for path in paths:
        try:
            files.append(parse_shapes(_read(path), _printable(path)))
        except ShapeFileError as refusal:
            refusals.append(str(refusal))
    if refusals:
        raise ShapeFileError("\n".join(refusals))
    shapes = tuple(dict.fromkeys(shape for file in files for shape in file.shapes))
    if not shapes:
        names = ", ".join(file.name for file in files)
        raise ShapeFileError(f"{names}: no shapes. Write one `M N K` a line.")
    return ShapeList(tuple(files), shapes)


def parse_shapes(content: bytes, name: str) -> ShapeFile:
    """Understand the bytes of one file; `name` is what messages call it.

    Raises: ShapeFileError with one `name:line: reason` for each refused line, and the counts.
    """
    shapes: dict[GemmShape, None] = {}
    faults: list[str] = []
    accepted = 0
    order: tuple[int, ...] | None = (0, 1, 2)
    first = True
    for number, line in _content_lines(_decode(content, name)):
        names = _header(line) if first else None
        first = False
        try:
            if names:
                order = None  # until it is understood, no row below it can be
                order = _column_order(names)
            elif order:
                shape = _shape(line, order)
                accepted += 1
                shapes[shape] = None
        except ValueError as fault:
            faults.append(f"{name}:{number}: {fault}")
    if faults:
        counts = f"{_lines(len(faults))} refused, {accepted} accepted"
        if repeated := accepted - len(shapes):
            counts += f", {repeated} of them repeated"
        shown = faults[:MAX_REPORTED]
        if unshown := len(faults) - len(shown):
            shown.append(f"{name}: and {_lines(unshown)} more")
        raise ShapeFileError("\n".join([*shown, f"{name}: {counts}. Correct the file."]))
    return ShapeFile(name, tuple(shapes), accepted - len(shapes))


def parse_shape(text: str) -> GemmShape:
    """Understand one shape as a line of a file would be, such as `4096x4096x512`.

    Raises: InvalidShape.
    """
    try:
        return _shape(text.strip(" \t"), (0, 1, 2))
    except ValueError as fault:
        raise InvalidShape(f"{_shown(text)} is not a shape: {fault}.") from None


def format_shapes(shapes: Iterable[GemmShape], comment: str = "") -> str:
    """A shape file that `parse_shapes` reads back, under an optional comment."""
    head = [f"# {line}".rstrip() for line in comment.splitlines()]
    return "".join(f"{line}\n" for line in [*head, *(f"{s.m} {s.n} {s.k}" for s in shapes)])


def _read(path: Path) -> bytes:
    name = _printable(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise ShapeFileError(f"{name}: there is no such file. Correct the path.") from None
    except IsADirectoryError:
        raise ShapeFileError(f"{name} is a directory. Name the shape files in it.") from None
    except (OSError, ValueError) as error:  # ValueError: a path that holds a NUL
        reason = getattr(error, "strerror", None) or error
        raise ShapeFileError(f"{name} cannot be read: {reason}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise ShapeFileError(
            f"{name} is longer than {MAX_FILE_BYTES // 2**20} MiB, so it is not a list of shapes."
        )
    return content


def _decode(content: bytes, name: str) -> str:
    for mark, encoding in _FOREIGN_MARKS:
        if content.startswith(mark):
            raise ShapeFileError(f"{name}:1: the file is {encoding}. Save it as UTF-8.")
    if (nul := content.find(b"\0")) >= 0:
        line = _line_of(content, nul)
        wide = content.count(b"\0") * 3 >= len(content)
        what = "the file is UTF-16 or UTF-32" if wide else "a NUL byte, so the file is not text"
        raise ShapeFileError(f"{name}:{line}: {what}. Save it as UTF-8.")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # `error.object` is what was decoded, which lacks the mark.
        line = _line_of(error.object, error.start)
        raise ShapeFileError(
            f"{name}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8; the file may be "
            "Latin-1 or Windows-1252. Save it as UTF-8."
        ) from None


def _line_of(content: bytes, offset: int) -> int:
    before = content[:offset]
    return 1 + before.count(b"\n") + before.count(b"\r") - before.count(b"\r\n")


def _content_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines that hold more than blanks and a comment, with their numbers."""
    for number, line in enumerate(_LINE_END.split(text), start=1):
        if content := line.partition("#")[0].strip(" \t"):
            yield number, content


def _header(line: str) -> list[str] | None:
    """Column names, if at least one of them is ours and none is a number."""
    names = _NAME_SEPARATOR.split(line)
    ours = {name.upper() for name in names} & set(_COLUMNS)
    return names if ours and not any(_DIGITS.fullmatch(name) for name in names) else None


def _column_order(names: Sequence[str]) -> tuple[int, ...]:
    """Where M, N and K are.

    Raises: ValueError naming unknown, repeated and missing columns.
    """
    upper = [name.upper() for name in names]
    reasons = []
    if unknown := [_shown(n) for n, u in zip(names, upper, strict=True) if u not in _COLUMNS]:
        reasons.append(f"unknown column {', '.join(unknown)}")
    if repeated := [c for c in _COLUMNS if upper.count(c) > 1]:
        reasons.append(f"repeated column {', '.join(repeated)}")
    if missing := [c for c in _COLUMNS if c not in upper]:
        reasons.append(f"no column {', '.join(missing)}")
    if reasons:
        raise ValueError(f"{'; '.join(reasons)}. A header names M, N and K, each once")
    return tuple(upper.index(column) for column in _COLUMNS)


def _shape(line: str, order: Sequence[int]) -> GemmShape:
    if found := _HEXADECIMAL.search(line):
        raise ValueError(f"{_shown(found[0])} is not a decimal number; use the digits 0 to 9 only")
    # A line has three fields, so what follows a fourth separator need not be looked at.
    fields = _SEPARATOR.split(line, maxsplit=4)
    extents = [_extent(field) for field in fields[:3]]
    if len(fields) != 3:
        count = "more than four" if len(fields) > 4 else str(len(fields))
        raise ValueError(f"{count} fields where three are expected: M N K")
    return GemmShape(*(extents[column] for column in order))


def _extent(field: str) -> int:
    if not field:
        raise ValueError("an empty field beside a comma or x; three numbers are expected: M N K")
    if field.startswith("-") and _DIGITS.fullmatch(field, 1):
        raise ValueError(f"{_shown(field)} is outside 1..{MAX_EXTENT}")
    if not _DIGITS.fullmatch(field):
        raise ValueError(f"{_shown(field)} is not a whole number; use the digits 0 to 9 only")
    digits = field.lstrip("0")
    # Compared by length first: converting digits costs time quadratic in their number.
    if len(digits) > len(str(MAX_EXTENT)) or not 1 <= int(digits or "0") <= MAX_EXTENT:
        raise ValueError(f"{_shown(field)} is outside 1..{MAX_EXTENT}")
    return int(digits)


def _shown(field: str) -> str:
    """A field as a message repeats it: quoted, escaped and cut to a readable length."""
    if len(field) > _SHOWN:
        return f"{field[:_SHOWN]!a}... ({len(field)} characters)"
    return ascii(field)


def _printable(path: Path) -> str:
    """A path as messages show it: one line, whatever bytes the name is made of."""
    name = str(path)
    return name if name.isprintable() else ascii(name)


def _lines(count: int) -> str:
    return f"{count} line" if count == 1 else f"{count} lines"


def _shapes(count: int) -> str:
    return f"{count} shape" if count == 1 else f"{count} shapes"
