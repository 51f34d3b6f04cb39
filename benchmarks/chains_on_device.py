"""Chains of products in one graph, timed and compared in the process that has the context."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import log2
from typing import TYPE_CHECKING, Any

from tuner.device.protocol import Entrant
from tuner.shape import Problem
from tuner.trial import PROTOCOL_HOT

if TYPE_CHECKING:
    from tuner.device.cuda.blas import Enqueue
    from tuner.device.cuda.chain import Chain
    from tuner.device.cuda.workbench import Tools

KINDS = ("bare", "normalised")
"""Products one after the other, or each but the first after a normalisation of what it reads."""
OURS = ("dependent", "plain")
REPEATS = 5
"""How often each chain of ours is compared, after it was timed."""
SEED = 3


@dataclass(frozen=True, slots=True)
class ChainResult:
    """rounds: µs per step by kind and contender. wrong: elements that differ, over all repeats."""

    rounds: dict[str, dict[str, list[float]]]
    wrong: dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class Foreign:
    """The normalisation before the product of one turn, as something to enqueue."""

    chain: "Chain"
    turn: int
    stream: Any

    def enqueue(self, stream: int) -> None:  # noqa: ARG002
        self.chain.normalise(self.turn, self.stream)


def weight_exponent(k: int) -> int:
    """Weights are divided by 2 to this, which keeps the sums of K products near what they read."""
    return round(log2(k) / 2)


def steps(
    products: Sequence["Enqueue"], launches: int, kind: str, chain: "Chain", stream: Any
) -> list["Enqueue"]:
    """`launches` products in turn, those of an even and an odd turn, and what stands between."""
    found: list[Enqueue] = []
    for turn in range(launches):
        if turn and kind == "normalised":
            found.append(Foreign(chain, turn, stream))
        found.append(products[turn % 2])
    return found


@dataclass(frozen=True)
class RunChains:
    """All chains of one problem; `entrant` holds the config that is launched dependently."""

    problem: Problem
    entrant: Entrant
    launches: int
    rounds: int

    def __call__(self, tools: "Tools") -> ChainResult:
        import cupy

        from tuner.device.cuda import timing
        from tuner.device.cuda.chain import Chain

        start = Chain.random(self.problem, SEED)
        scale_weights(start, weight_exponent(self.problem.shape.k))
        chain = start.copy()
        cupy.cuda.get_current_stream().synchronize()
        products = self._products(tools, chain)

        def restore() -> None:
            for mine, initial in zip(chain.buffers, start.buffers, strict=True):
                mine.data.copy_from_device_async(initial.data, initial.nbytes, tools.stream)

        graphs, expected = {}, {}
        for kind in KINDS:
            alone = steps(products["plain"], self.launches, kind, chain, tools.stream)
            expected[kind] = self._one_at_a_time(alone, tools.stream, chain, restore)
            for who, of_one in products.items():
                enqueued = steps(of_one, self.launches, kind, chain, tools.stream)
                graph = timing.capture(tools.stream, enqueued, len(enqueued))
                graphs[kind, who] = timing.Graph(graph.graph, self.launches)
        track = timing.Track(tools.stream, tools.order, restore)
        samples = timing.race_graphs(
            track, list(graphs.values()), PROTOCOL_HOT, self.rounds, timing.WARM_SECONDS
        )
        rounds: dict[str, dict[str, list[float]]] = {kind: {} for kind in KINDS}
        for (kind, who), us in zip(graphs, samples, strict=True):
            rounds[kind][who] = us
        wrong = {kind: dict.fromkeys(OURS, 0) for kind in KINDS}
        for kind in KINDS:
            for who in OURS * REPEATS:
                restore()
                graphs[kind, who].graph.launch(tools.stream)
                tools.stream.synchronize()
                wrong[kind][who] += sum(
                    int(cupy.count_nonzero(mine != right))
                    for mine, right in zip(chain.buffers, expected[kind], strict=True)
                )
                cupy.cuda.get_current_stream().synchronize()
        return ChainResult(rounds, wrong)

    def _products(self, tools: "Tools", chain: "Chain") -> dict[str, list["Enqueue"]]:
        """The launches of an even and an odd turn, by contender."""
        from tuner.device.cuda.blas import CublasLaunch
        from tuner.device.cuda.launch import Launch

        config, cubin = self.entrant.contender.config, self.entrant.cubin
        assert config is not None
        assert cubin is not None
        function = tools.functions.load(cubin)
        tools.workspace.reset()
        turns = [chain.operands(turn) for turn in (0, 1)]
        of_ours = {
            who: replace(config, knobs=replace(config.knobs, dependent_launch=who == "dependent"))
            for who in OURS
        }
        found: dict[str, list[Enqueue]] = {
            who: [Launch(function, c, self.problem, o, tools.workspace) for o in turns]
            for who, c in of_ours.items()
        }
        found["cublas"] = [CublasLaunch(tools.libraries, self.problem, o) for o in turns]
        return found

    def _one_at_a_time(
        self,
        enqueued: Sequence["Enqueue"],
        stream: Any,
        chain: "Chain",
        restore: Callable[[], None],
    ) -> tuple[Any, ...]:
        """Both buffers after the chain, each step of which was waited for."""
        import cupy

        restore()
        for step in enqueued:
            step.enqueue(stream.ptr)
            stream.synchronize()
        ended = tuple(buffer.copy() for buffer in chain.buffers)
        cupy.cuda.get_current_stream().synchronize()
        return ended


def scale_weights(chain: "Chain", exponent: int) -> None:
    """Divide the weights by a power of two; what would become subnormal becomes zero."""
    import cupy

    bits = chain.weights
    powers = bits >> 7 & 0xFF
    scaled = (bits - (exponent << 7)).astype(cupy.uint16)
    bits[...] = cupy.where(powers > exponent, scaled, bits & 0x8000)
