"""Host and kernel agree on the arguments of a launch: C++ compiles only where they do."""

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.device.cuda.arguments import RASTERS, LaunchArguments, TileGrid

KERNELS = Path(__file__).parents[2] / "kernels"


def members(structure: type[ctypes.Structure]) -> list[str]:
    return [field[0] for field in structure._fields_]


def layout(structure: type[ctypes.Structure], name: str) -> Iterator[str]:
    """Assertions of the size of `name`, and of each member's place, size and presence."""
    yield f'static_assert(sizeof({name}) == {ctypes.sizeof(structure)}, "size of {name}");'
    for member in members(structure):
        place = getattr(structure, member)
        yield f'static_assert(__builtin_offsetof({name}, {member}) == {place.offset}, "{member}");'
        yield f'static_assert(sizeof({name}::{member}) == {place.size}, "size of {member}");'
    # A structured binding needs a name for every member: one that Python lacks is an error.
    yield f"void all_of({name} value) {{"
    yield f"    [[maybe_unused]] auto [{', '.join(members(structure))}] = value;"
    yield "}"


def rasters() -> Iterator[str]:
    """Assertions of every order's number; one that Python lacks is a case that is not handled."""
    for name, number in RASTERS.items():
        yield f'static_assert(static_cast<int>(Raster::{name}) == {number}, "{name}");'
    cases = " ".join(f"case Raster::{name}: return {number};" for name, number in RASTERS.items())
    yield f"int number_of(Raster raster) {{ switch (raster) {{ {cases} }} return -1; }}"


def complaints(lines: list[str]) -> str:
    """What the compiler says against `lines`; nothing if it accepts them."""
    source = "\n".join(['#include "launch_arguments.cuh"', *lines, ""])
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"]
    command += [f"-I{KERNELS}", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True).stderr


def test_the_arguments_lie_where_the_kernel_reads_them() -> None:
    assert members(LaunchArguments)[0] == "d"
    assert complaints(list(layout(TileGrid, "TileGrid"))) == ""
    assert complaints(list(layout(LaunchArguments, "LaunchArguments"))) == ""


def test_every_order_of_tiles_has_the_kernels_number() -> None:
    assert complaints(list(rasters())) == ""


class Shifted(ctypes.Structure):
    """`LaunchArguments` with one extent too wide."""

    _fields_ = tuple(
        (name, ctypes.c_int64 if name == "k_steps" else kind)
        for name, kind in LaunchArguments._fields_
    )


class Lacking(ctypes.Structure):
    """`TileGrid` without its last member."""

    _fields_ = TileGrid._fields_[:-1]


@pytest.mark.parametrize(
    ("wrong", "name", "complaint"),
    [
        (Shifted, "LaunchArguments", "size of k_steps"),
        (Shifted, "LaunchArguments", "tiles"),
        (Lacking, "TileGrid", "size of TileGrid"),
        (Lacking, "TileGrid", "only 5 names provided"),
    ],
)
def test_a_layout_that_differs_is_found(
    wrong: type[ctypes.Structure], name: str, complaint: str
) -> None:
    assert complaint in complaints(list(layout(wrong, name)))


def test_an_order_with_another_number_or_none_is_found() -> None:
    assert "hilbert" in complaints(['static_assert(int(Raster::hilbert) == 1, "hilbert");'])
    lacking = [line.replace("case Raster::hilbert: return 2;", "") for line in rasters()]
    assert "enumeration value" in complaints(lacking)
