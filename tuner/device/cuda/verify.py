"""Proof that a config computes the product: every element, on fresh data, bit for bit."""

from dataclasses import dataclass
from typing import Any

import cupy

from tuner.config import KernelConfig
from tuner.device.cuda import operands as data
from tuner.device.cuda import reference
from tuner.device.cuda.launch import Launch
from tuner.errors import DeviceError
from tuner.shape import Problem


@dataclass(frozen=True, slots=True)
class Candidate:
    """A loaded kernel and how it is to be launched."""

    function: Any
    config: KernelConfig


class Verifier:
    """Checks candidates of one problem against a trusted config.

    All configs that do not split K add in the same order and so give the same bits; the trusted one
    is held against a product in fp64, and everyone against an exact product of small integers.
    """

    def __init__(self, problem: Problem, stream: Any, seed: int) -> None:
        self._problem, self._stream = problem, stream
        self._generator = cupy.random.default_rng(seed)
        self._random = data.allocate(problem)
        self._integers = data.allocate(problem)
        magnitude = 4 if 16 * problem.shape.k < 2**24 else 1
        data.fill_integers(self._integers, self._generator, magnitude)
        self._exact = reference.exact_output(problem, self._integers)

    def trust(self, candidate: Candidate) -> float:
        """Check the trusted config itself. Returns its error as a share of what is allowed.

        Raises: DeviceError if it disagrees with the reference.
        """
        self._trusted = candidate
        data.fill_normal(self._random, self._generator)
        self._run(candidate, self._random)
        share = reference.error_share(self._problem, self._random, data.output(self._random))
        faults = [f"its error is {share:.3g} times what is allowed"] if share > 1 else []
        faults += self._integer_faults(candidate)
        if faults:
            raise DeviceError(
                f"the trusted config and the fp64 reference disagree on {self._problem.shape}: "
                f"{'; '.join(faults)}. Nothing can be verified here; report this."
            )
        return share

    def faults(self, candidate: Candidate) -> list[str]:
        """What is wrong with a candidate's output, on data drawn for this call."""
        data.fill_normal(self._random, self._generator)
        self._run(self._trusted, self._random)
        expected = data.output(self._random).copy()
        self._run(candidate, self._random)
        produced = data.output(self._random)
        found = []
        differing = int(cupy.count_nonzero(produced != expected))
        if differing:
            first = int(cupy.argmax(produced != expected))
            outer, inner = divmod(first, self._random.d.inner)
            unwritten = int(cupy.count_nonzero(produced == data.NAN_BF16))
            found.append(
                f"{differing} of {expected.size} elements differ from the trusted config, the "
                f"first at row {outer}, column {inner} of the output; {unwritten} are unwritten"
            )
        if not data.guards_intact(self._random):
            found.append("memory outside the output was written")
        return found + self._integer_faults(candidate)

    def trusted_output(self, operands: data.OperandSet) -> Any:
        """The trusted config's bits for other operands; D is overwritten."""
        self._run(self._trusted, operands)
        return data.output(operands).copy()

    def _integer_faults(self, candidate: Candidate) -> list[str]:
        self._run(candidate, self._integers)
        found = []
        differing = int(cupy.count_nonzero(data.output(self._integers) != self._exact))
        if differing:
            found.append(
                f"{differing} of {self._exact.size} elements of an exact product are wrong"
            )
        if not data.guards_intact(self._integers):
            found.append("memory outside the output was written, on integers")
        return found

    def _run(self, candidate: Candidate, operands: data.OperandSet) -> None:
        data.poison(operands)
        launch = Launch(candidate.function, candidate.config, self._problem, operands)
        cupy.cuda.get_current_stream().synchronize()
        launch.enqueue(self._stream.ptr)
        self._stream.synchronize()
