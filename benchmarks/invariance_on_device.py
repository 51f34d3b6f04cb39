"""Rows of outputs compared across batches, in the process that has the context."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from tuner.config import KernelConfig
from tuner.device.protocol import Entrant
from tuner.shape import GemmShape, Problem

if TYPE_CHECKING:
    from tuner.device.cuda.operands import OperandSet
    from tuner.device.cuda.workbench import Tools

SEED = 11


@dataclass(frozen=True, slots=True)
class Bits:
    """What one product at one M gave.

    who: a config of ours that does not split K (`whole`) or one that does, or cuBLAS.
    first_row: a hash of the bits of the first row. differing: rows that are not, bit for bit, those
    of the standard at the largest M: the trusted config, or cuBLAS itself.
    """

    m: int
    who: Literal["whole", "split", "cublas"]
    config: KernelConfig | None
    first_row: str
    differing: int

    def to_json(self) -> dict[str, Any]:
        return {
            "m": self.m,
            "who": self.who,
            "first_row": self.first_row,
            "rows_differing": self.differing,
            "config": self.config.to_stored() if self.config else None,
        }


@dataclass(frozen=True)
class CompareRows:
    """One (N, K): the entrants of each M, and cuBLAS, on leading rows of one A."""

    n: int
    k: int
    sms: int
    entrants: Mapping[int, tuple[Entrant, ...]]
    trusted: Entrant

    def __call__(self, tools: "Tools") -> list[Bits]:
        import cupy

        from tuner.device.cuda import operands as data
        from tuner.device.cuda.blas import CublasLaunch
        from tuner.device.cuda.launch import Launch

        largest = max(self.entrants)
        full = data.allocate(self._problem(largest))
        data.fill_normal(full, cupy.random.default_rng(SEED))
        cupy.cuda.get_current_stream().synchronize()
        tools.workspace.reset()

        def ours(m: int, entrant: Entrant) -> Any:
            config, cubin = entrant.contender.config, entrant.cubin
            assert config is not None
            assert cubin is not None
            problem, operands = self._problem(m), leading(full, m)
            function = tools.functions.load(cubin)
            return run(Launch(function, config, problem, operands, tools.workspace), m)

        def cublas(m: int) -> Any:
            return run(CublasLaunch(tools.libraries, self._problem(m), leading(full, m)), m)

        def run(launch: Any, m: int) -> Any:
            data.poison(full)
            cupy.cuda.get_current_stream().synchronize()
            launch.enqueue(tools.stream.ptr)
            tools.stream.synchronize()
            return data.output(full).reshape(largest, self.n)[:m]

        found = []
        standard = ours(largest, self.trusted).copy()
        for m, entrants in self.entrants.items():
            for entrant in entrants:
                config = entrant.contender.config
                assert config is not None
                who: Literal["whole", "split"] = "split" if config.knobs.split_k > 1 else "whole"
                found.append(compared(m, who, config, ours(m, entrant), standard))
        standard = cublas(largest).copy()
        for m in self.entrants:
            found.append(compared(m, "cublas", None, cublas(m), standard))
        return found

    def _problem(self, m: int) -> Problem:
        return Problem(GemmShape(m, self.n, self.k), self.sms)


def leading(full: "OperandSet", m: int) -> "OperandSet":
    """The same memory, with the first `m` rows of A and of the output."""
    from tuner.device.cuda.operands import OperandSet
    from tuner.device.cuda.tensor_map import Matrix

    a, d = full.a, full.d
    return OperandSet(
        Matrix(a.address, m, a.inner, a.pitch),
        full.b,
        Matrix(d.address, m, d.inner, d.pitch),
        full.buffers,
    )


def compared(
    m: int,
    who: Literal["whole", "split", "cublas"],
    config: KernelConfig | None,
    produced: Any,
    standard: Any,
) -> Bits:
    """The rows of `produced` beside the same rows of `standard`."""
    differing = int((produced != standard[:m]).any(axis=1).sum())
    first_row = sha256(produced[0].get().tobytes()).hexdigest()[:16]
    return Bits(m, who, config, first_row, differing)
