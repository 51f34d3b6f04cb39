"""What is computed: D[M,N] = A[M,K] x B[K,N], bf16 in, fp32 accumulate, bf16 out."""

from dataclasses import dataclass
from typing import Literal

from tuner.errors import InvalidShape

MAX_EXTENT = 2**31 - 1
ELEMENT_BYTES = 2
TMA_ROW_MULTIPLE = 8
"""TMA moves rows whose pitch is a multiple of 16 bytes, which is 8 bf16 elements."""

OutputLayout = Literal["row", "col"]


@dataclass(frozen=True, slots=True, order=True)
class GemmShape:
    """Extents of one product; A is [M,K] and B is stored [N,K], both K-contiguous.

    Raises: InvalidShape for an extent outside 1..2^31-1.
    """

    m: int
    n: int
    k: int

    def __post_init__(self) -> None:
        for name in ("m", "n", "k"):
            extent = getattr(self, name)
            if not 1 <= extent <= MAX_EXTENT:
                shown = str(extent) if abs(extent) < 10**20 else "that value"
                raise InvalidShape(
                    f"{name} must be between 1 and {MAX_EXTENT}; {shown} is not. Correct the shape."
                )

    @property
    def flops(self) -> int:
        """Floating-point operations of one product."""
        return 2 * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> int:
        """Bytes of A, B and D together."""
        return ELEMENT_BYTES * (self.m * self.k + self.n * self.k + self.m * self.n)

    def unsupported_reason(self) -> str | None:
        """Why the kernel cannot run this shape, or None if it can."""
        if self.k % TMA_ROW_MULTIPLE:
            return (
                f"{self} is unsupported: the kernel loads rows of K elements with TMA, which needs "
                f"K to be a multiple of {TMA_ROW_MULTIPLE} (rows of 16-byte multiples), and K is "
                f"{self.k}. Pad K with zeros to {self.k + -self.k % TMA_ROW_MULTIPLE}."
            )
        return None

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One tuning question: a shape and everything about the operation that changes the answer.

    `d`: memory order of the output, row-major as in PyTorch or column-major as in BLAS.
    `sms`: how many multiprocessors the kernel may use.
    """

    shape: GemmShape
    sms: int
    dtype: str = "bf16"
    layout: str = "tn"
    d: OutputLayout = "row"
    epilogue: str = "none"
