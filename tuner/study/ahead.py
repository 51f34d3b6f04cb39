"""Compile ahead of the device: while one candidate is measured, the next ones are compiled."""

from collections.abc import Callable, Generator
from concurrent.futures import FIRST_COMPLETED, Future, wait

from tuner.config import KernelConfig, KernelVariant
from tuner.errors import TunerError
from tuner.trial import CompileFailure, Cubin, TrialState

Compiled = Cubin | CompileFailure
LOOK_UP_S = 0.5
"""How long to wait for a compile before looking again whether more is wanted at all."""


def compiled_ahead(
    ask: Callable[[int], list[KernelConfig]],
    submit: Callable[[KernelVariant], Future[Compiled]],
    batch: int,
    wanted: Callable[[], int],
) -> Generator[tuple[KernelConfig, Compiled], None, None]:
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
            wait(pending.values(), LOOK_UP_S, return_when=FIRST_COMPLETED)
            ready = next((c for c, future in pending.items() if future.done()), None)
            if ready is not None:
                yield ready, _outcome(ready.variant, pending.pop(ready))
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
