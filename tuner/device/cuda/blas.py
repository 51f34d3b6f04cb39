"""The library contenders: cuBLAS as it comes, and every algorithm cuBLASLt's heuristic offers.

Row-major D = A x B^T is, to a column-major library, D^T = B x A^T with both operands transposed
back: the first operand is the one along the output's contiguous side.
"""

import json
from typing import Any, Protocol

import cupy
import numpy
from nvmath.bindings import cublas
from nvmath.bindings import cublasLt as lt

from tuner.device.cuda.operands import OperandSet
from tuner.shape import Problem

WORKSPACE_BYTES = 64 * 2**20
"""For both libraries; cuBLAS without it cannot use several of its algorithms."""
HEURISTICS_ASKED = 64
_BF16 = 14  # CUDA_R_16BF
_FP32 = 0  # CUDA_R_32F
_COMPUTE_FP32 = 68  # CUBLAS_COMPUTE_32F
_DEFAULT_ALGORITHM = -1  # CUBLAS_GEMM_DEFAULT
_NONTRANSPOSED, _TRANSPOSED = 0, 1

_ATTRIBUTES = {
    "id": lt.MatmulAlgoConfigAttribute.ID,
    "tile": lt.MatmulAlgoConfigAttribute.TILE_ID,
    "stages": lt.MatmulAlgoConfigAttribute.STAGES_ID,
    "split_k": lt.MatmulAlgoConfigAttribute.SPLITK_NUM,
    "reduction": lt.MatmulAlgoConfigAttribute.REDUCTION_SCHEME,
    "swizzle": lt.MatmulAlgoConfigAttribute.CTA_SWIZZLING,
    "custom": lt.MatmulAlgoConfigAttribute.CUSTOM_OPTION,
    "inner_shape": lt.MatmulAlgoConfigAttribute.INNER_SHAPE_ID,
    "cluster": lt.MatmulAlgoConfigAttribute.CLUSTER_SHAPE_ID,
}


class Enqueue(Protocol):
    """Puts one product on a stream."""

    def enqueue(self, stream: int) -> None: ...


class Libraries:
    """Handles and workspace of one device; lives as long as its context."""

    def __init__(self) -> None:
        self.workspace = cupy.empty(WORKSPACE_BYTES, cupy.uint8)
        self.handle = cublas.create()
        cublas.set_workspace(self.handle, self.workspace.data.ptr, WORKSPACE_BYTES)
        self.lt_handle = lt.create()
        self.one = numpy.ones(1, numpy.float32)
        self.zero = numpy.zeros(1, numpy.float32)

    def version(self) -> str:
        """cuBLAS's own version, such as `13.1.0.3` without its last part."""
        number = int(lt.get_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"


class CublasLaunch:
    """`cublasGemmEx` with the default algorithm."""

    def __init__(self, libraries: Libraries, problem: Problem, operands: OperandSet) -> None:
        self._libraries, self._problem, self._operands = libraries, problem, operands

    def enqueue(self, stream: int) -> None:
        lib, k = self._libraries, self._problem.shape.k
        first, second = _ordered(self._problem, self._operands)
        cublas.set_stream(lib.handle, stream)
        # Setting a stream drops a workspace that was set before it.
        cublas.set_workspace(lib.handle, lib.workspace.data.ptr, WORKSPACE_BYTES)
        cublas.gemm_ex(
            lib.handle,
            _TRANSPOSED,
            _NONTRANSPOSED,
            first.outer,
            second.outer,
            k,
            lib.one.ctypes.data,
            first.address,
            _BF16,
            k,
            second.address,
            _BF16,
            k,
            lib.zero.ctypes.data,
            self._operands.d.address,
            _BF16,
            first.outer,
            _COMPUTE_FP32,
            _DEFAULT_ALGORITHM,
        )


class LtProblem:
    """Descriptors of one problem; they hold no addresses, so all operand sets share them."""

    def __init__(self, libraries: Libraries, problem: Problem) -> None:
        s = problem.shape
        first, second = (s.n, s.m) if problem.d == "row" else (s.m, s.n)
        self.libraries = libraries
        self.description = lt.matmul_desc_create(_COMPUTE_FP32, _FP32)
        self._set(lt.MatmulDescAttribute.TRANSA, _TRANSPOSED)
        self._set(lt.MatmulDescAttribute.TRANSB, _NONTRANSPOSED)
        self.first = lt.matrix_layout_create(_BF16, s.k, first, s.k)
        self.second = lt.matrix_layout_create(_BF16, s.k, second, s.k)
        self.output = lt.matrix_layout_create(_BF16, first, second, first)

    def algorithms(self) -> list["LtAlgorithm"]:
        """What the heuristic offers, best first by its own estimate."""
        preference = lt.matmul_preference_create()
        limit = numpy.array([WORKSPACE_BYTES], numpy.uint64)
        lt.matmul_preference_set_attribute(
            preference,
            lt.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES,
            limit.ctypes.data,
            limit.nbytes,
        )
        results = lt.MatmulHeuristicResult(HEURISTICS_ASKED)
        found = numpy.zeros(1, numpy.int32)
        lt.matmul_algo_get_heuristic(
            self.libraries.lt_handle,
            self.description,
            self.first,
            self.second,
            self.output,
            self.output,
            preference,
            HEURISTICS_ASKED,
            results.ptr,
            found.ctypes.data,
        )
        lt.matmul_preference_destroy(preference)
        size = lt.matmul_heuristic_result_dtype.itemsize
        return [LtAlgorithm(results, results.ptr + i * size) for i in range(int(found[0]))]

    def _set(self, attribute: Any, value: int) -> None:
        buffer = numpy.array([value], numpy.int32)
        lt.matmul_desc_set_attribute(self.description, attribute, buffer.ctypes.data, buffer.nbytes)


class LtAlgorithm:
    """One algorithm: its opaque bytes, which begin a heuristic result, and its attributes."""

    def __init__(self, owner: Any, address: int) -> None:
        self._owner, self.address = owner, address  # the owner keeps the memory

    def attributes(self) -> str:
        """Canonical JSON of what names the algorithm to another process with the same cuBLAS."""
        values: dict[str, int] = {}
        for name, attribute in _ATTRIBUTES.items():
            buffer = numpy.zeros(1, lt.get_matmul_algo_config_attribute_dtype(attribute))
            written = numpy.zeros(1, numpy.uint64)
            lt.matmul_algo_config_get_attribute(
                self.address, attribute, buffer.ctypes.data, buffer.nbytes, written.ctypes.data
            )
            values[name] = int(buffer[0])
        return json.dumps(values, sort_keys=True)


class LtLaunch:
    """`cublasLtMatmul` with one algorithm."""

    def __init__(
        self, lt_problem: LtProblem, algorithm: LtAlgorithm, problem: Problem, operands: OperandSet
    ) -> None:
        self._lt, self._algorithm = lt_problem, algorithm
        self._first, self._second = _ordered(problem, operands)
        self._operands = operands

    def enqueue(self, stream: int) -> None:
        lib, d = self._lt.libraries, self._operands.d.address
        lt.matmul(
            lib.lt_handle,
            self._lt.description,
            lib.one.ctypes.data,
            self._first.address,
            self._lt.first,
            self._second.address,
            self._lt.second,
            lib.zero.ctypes.data,
            d,
            self._lt.output,
            d,
            self._lt.output,
            self._algorithm.address,
            lib.workspace.data.ptr,
            WORKSPACE_BYTES,
            stream,
        )


def _ordered(problem: Problem, operands: OperandSet) -> tuple[Any, Any]:
    if problem.d == "row":
        return operands.b, operands.a
    return operands.a, operands.b
