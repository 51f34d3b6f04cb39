"""Compile ahead of the device: while one candidate is measured, the next ones are compiled."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from tuner.config import KernelConfig, KernelVariant
from tuner.errors import TunerError
from tuner.trial import CompileFailure, Cubin, TrialState

Compiled = Cubin | CompileFailure


def compiled_ahead(
    ask: Callable[[int], list[KernelConfig]],
    submit: Callable[[KernelVariant], Future[Compiled]],
    batch: int,
    wanted: Callable[[], int],
) -> Iterator[tuple[KernelConfig, Compiled]]:
    """Configs with their cubins, in the order in which these are ready.

    ask: proposes up to so many configs. wanted: how many more are to be yielded, looked at before
    each; at 0, or when nothing more is proposed, the work under way is dropped.
    """
    pending: dict[KernelConfig, Future[Compiled]] = {}
    try:
        while (left := wanted()) > 0:
            # Half a batch stays in the making while the device works through the other half.
            if len(pending) <= batch // 2:
                proposed = ask(min(batch, max(left - len(pending), 0)))
                pending |= {config: submit(config.variant) for config in proposed}
            if not pending:
                return
            wait(pending.values(), return_when=FIRST_COMPLETED)
            config = next(c for c, future in pending.items() if future.done())
            yield config, _outcome(config.variant, pending.pop(config))
    finally:
        for future in pending.values():
            future.cancel()


def _outcome(variant: KernelVariant, future: Future[Compiled]) -> Compiled:
    """What the compiler said; an error nobody foresaw is this variant's, and names its class.

    Raises: TunerError, by which a compiler says that nothing can be compiled here.
    """
    try:
        return future.result()
    except TunerError:
        raise
    except Exception as error:
        detail = f"the compiler raised {type(error).__name__}: {error}"
        return CompileFailure(variant, TrialState.CRASHED, detail)
