"""One path of a soak, in the process that has the context."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from tuner.config import KernelConfig, KernelVariant
from tuner.errors import DeviceError
from tuner.search.space import trusted_config
from tuner.shape import Problem
from tuner.trial import Cubin

if TYPE_CHECKING:
    from tuner.device.cuda.operands import OperandSet
    from tuner.device.cuda.workbench import Tools

TURNS = 4
"""Ways in which each shape is launched, one a batch in turn."""
EXAMPLES = 5
SETTLE_BLOCKS, SETTLE_THREADS = 32, 256

SETTLE_SOURCE = """
extern "C" __global__ void settle(const long long* table, unsigned int* wrong, long long guard,
                                  int pattern, int poison) {
    const long long* entry = table + 3 * blockIdx.y;
    unsigned short* got = (unsigned short*)entry[0];
    const unsigned short* want = (const unsigned short*)entry[1];
    const long long count = entry[2];
    unsigned int mine = 0;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count;
         i += (long long)gridDim.x * blockDim.x) {
        mine += got[i] != want[i];
        got[i] = i < guard || i >= count - guard ? pattern : poison;
    }
    if (mine) atomicAdd(wrong + blockIdx.y, mine);
}
"""
"""Compares the outputs of a batch, guards and all, counts what differs, and poisons them again."""


@dataclass(frozen=True, slots=True)
class Link:
    """One product, launched by one of `configs` after the other, batch by batch.

    reads_previous: its A is what the link before it in the group wrote.
    """

    problem: Problem
    configs: tuple[KernelConfig, ...]
    reads_previous: bool


@dataclass(frozen=True, slots=True)
class Soaked:
    """examples: (link, turn, batch, elements) of the first wrong launches."""

    launches: int
    wrong_launches: int
    wrong_elements: int
    seconds: float
    examples: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True)
class Soak:
    """Launch all links of all groups, batch after batch, until there were `launches`.

    The groups of a batch are shuffled anew; nothing waits between its launches.
    """

    groups: tuple[tuple[Link, ...], ...]
    cubins: Mapping[KernelVariant, Cubin]
    launches: int
    seed: int

    def __call__(self, tools: "Tools") -> Soaked:
        import cupy

        from tuner.device.cuda import operands as data
        from tuner.device.cuda.launch import Launch

        tools.workspace.reset()
        flat = [link for group in self.groups for link in group]
        sets = self._operands()

        def launch(slot: int, config: KernelConfig) -> Any:
            function = tools.functions.load(self.cubins[config.variant])
            problem = flat[slot].problem
            made = Launch(function, config, problem, sets[slot], tools.workspace)
            if fault := made.residency_fault():
                raise DeviceError(f"{problem.shape}: {config}: {fault}.")
            return made

        turns = [[launch(i, link.configs[t]) for i, link in enumerate(flat)] for t in range(TURNS)]
        expected = [
            [
                self._expected(
                    tools,
                    flat[i],
                    link.configs[t],
                    sets[i],
                    launch(
                        i,
                        link.configs[t]
                        if splits(link.configs[t])
                        else trusted_config(link.problem),
                    ),
                )
                for i, link in enumerate(flat)
            ]
            for t in range(TURNS)
        ]
        tables = [
            cupy.asarray([_entry(o, e) for o, e in zip(sets, of, strict=True)], cupy.int64)
            for of in expected
        ]
        batches = -(-self.launches // len(flat))
        wrong = cupy.zeros((batches, len(flat)), cupy.uint32)
        settle = cupy.RawKernel(SETTLE_SOURCE, "settle")
        for operands in sets:
            data.poison(operands)
        cupy.cuda.get_current_stream().synchronize()
        started = time.monotonic()
        for batch, order in enumerate(self._orders(batches)):
            for slot in order:
                turns[batch % TURNS][slot].enqueue(tools.stream.ptr)
            arguments = (
                tables[batch % TURNS],
                wrong[batch],
                data.GUARD_BYTES // 2,
                data.GUARD_PATTERN * 0x101,
                data.NAN_BF16,
            )
            grid = (SETTLE_BLOCKS, len(flat))
            settle(grid, (SETTLE_THREADS,), arguments, stream=tools.stream)
        tools.stream.synchronize()
        seconds = time.monotonic() - started
        return counted(wrong.get().tolist(), seconds)

    def _orders(self, batches: int) -> "list[list[int]]":
        return orders([len(group) for group in self.groups], batches, self.seed)

    def _operands(self) -> "list[OperandSet]":
        """One set for each link, its A random or the output of the link before."""
        import cupy

        from tuner.device.cuda import operands as data
        from tuner.device.cuda.tensor_map import Matrix

        generator = cupy.random.default_rng(self.seed)
        sets: list[OperandSet] = []
        for link in (link for group in self.groups for link in group):
            operands, s = data.allocate(link.problem), link.problem.shape
            data.fill_normal(operands, generator)
            if link.reads_previous:
                previous = sets[-1]
                a = Matrix(previous.d.address, s.m, s.k, s.k)
                operands = data.OperandSet(a, operands.b, operands.d, operands.buffers)
            sets.append(operands)
        return sets

    def _expected(
        self, tools: "Tools", link: Link, config: KernelConfig, operands: "OperandSet", launch: Any
    ) -> Any:
        """The output with its guards, by a launch that is waited for.

        What another link reads was computed just before, in the same turn.
        Raises: DeviceError if it is not the product, or something beside it was written.
        """
        import cupy

        from tuner.device.cuda import operands as data
        from tuner.device.cuda import reference

        data.poison(operands)
        cupy.cuda.get_current_stream().synchronize()
        launch.enqueue(tools.stream.ptr)
        tools.stream.synchronize()
        if not data.guards_intact(operands):
            raise DeviceError(f"{link.problem.shape}: {config} wrote outside its output.")
        if not link.reads_previous:  # whose A is not of the spread that the tolerance is for
            share = reference.error_share(link.problem, operands, data.output(operands))
            if not share <= 1:
                raise DeviceError(f"{link.problem.shape}: {config} is wrong by {share:.3g}.")
        kept = operands.buffers[2].copy()
        cupy.cuda.get_current_stream().synchronize()
        return kept


def splits(config: KernelConfig) -> bool:
    return config.knobs.split_k > 1


def orders(sizes: Sequence[int], batches: int, seed: int) -> list[list[int]]:
    """For each batch the places of all links: groups in an order of its own, each kept together."""
    random = Random(seed)
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        [
            start + i
            for start, size in random.sample(list(zip(starts, sizes, strict=True)), len(sizes))
            for i in range(size)
        ]
        for _ in range(batches)
    ]


def counted(wrong: Sequence[Sequence[int]], seconds: float) -> Soaked:
    """The counts of a table of wrong elements, by batch and link."""
    found = [
        (slot, batch % TURNS, batch, elements)
        for batch, of_batch in enumerate(wrong)
        for slot, elements in enumerate(of_batch)
        if elements
    ]
    return Soaked(
        launches=sum(map(len, wrong)),
        wrong_launches=len(found),
        wrong_elements=sum(elements for *_, elements in found),
        seconds=seconds,
        examples=tuple(found[:EXAMPLES]),
    )


def _entry(operands: "OperandSet", expected: Any) -> tuple[int, int, int]:
    """Where an output lies, where what it must be, and how many 16-bit elements that are."""
    guarded = operands.buffers[2]
    return int(guarded.data.ptr), int(expected.data.ptr), int(guarded.size) // 2
