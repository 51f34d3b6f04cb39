"""Proof that a config computes the product: every element, on fresh data, bit for bit."""

from dataclasses import dataclass
from typing import Any

import cupy

from tuner.config import KernelConfig
from tuner.device.cuda import operands as data
from tuner.device.cuda import reference
from tuner.device.cuda.chain import chain_faults
from tuner.device.cuda.launch import Launch
from tuner.device.cuda.workspace import Workspace
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
    is held against a product in fp64, and so is every config that splits K, whose bits are its own.
    Everyone is held against an exact product of small integers.
    """

    def __init__(self, problem: Problem, stream: Any, workspace: Workspace, seed: int) -> None:
        self._problem, self._stream, self._workspace = problem, stream, workspace
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
        self._workspace.reset()
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
        self._workspace.reset()
        data.fill_normal(self._random, self._generator)
        own = candidate.config.knobs.split_k > 1
        found = self._error_faults(candidate) if own else []
        reference_of = candidate if own else self._trusted
        self._run(reference_of, self._random)
        expected = data.output(self._random).copy()
        self._run(candidate, self._random)
        produced = data.output(self._random)
        differing = int(cupy.count_nonzero(produced != expected))
        if differing:
            first = int(cupy.argmax(produced != expected))
            outer, inner = divmod(first, self._random.d.inner)
            unwritten = int(cupy.count_nonzero(produced == data.NAN_BF16))
            standard = "its own run before" if own else "the trusted config"
            found.append(
                f"{differing} of {expected.size} elements differ from {standard}, the first at row "
                f"{outer}, column {inner} of the output; {unwritten} are unwritten"
            )
        if not data.guards_intact(self._random):
            found.append("memory outside the output was written")
        found += self._integer_faults(candidate)
        if candidate.config.knobs.dependent_launch and not found:
            found += chain_faults(
                self._problem,
                candidate.function,
                candidate.config,
                self._workspace,
                self._stream,
            )
        return found

    def residency_fault(self, candidate: Candidate) -> str | None:
        """Why a candidate cannot be launched on this device without waiting for ever."""
        return self._launch(candidate, self._random).residency_fault()

    def expected_output(self, candidate: Candidate, operands: data.OperandSet) -> Any:
        """The bits that `candidate` must give for other operands, by a run alone; D is overwritten.

        For a config that does not split K they are the trusted config's.
        """
        own = candidate.config.knobs.split_k > 1
        self._run(candidate if own else self._trusted, operands)
        return data.output(operands).copy()

    def _error_faults(self, candidate: Candidate) -> list[str]:
        self._run(candidate, self._random)
        share = reference.error_share(self._problem, self._random, data.output(self._random))
        return [f"its error is {share:.3g} times what is allowed"] if share > 1 else []

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
        if candidate.config.knobs.split_k > 1:
            self._workspace.poison()
        launch = self._launch(candidate, operands)
        cupy.cuda.get_current_stream().synchronize()
        launch.enqueue(self._stream.ptr)
        self._stream.synchronize()

    def _launch(self, candidate: Candidate, operands: data.OperandSet) -> Launch:
        return Launch(
            candidate.function, candidate.config, self._problem, operands, self._workspace
        )
