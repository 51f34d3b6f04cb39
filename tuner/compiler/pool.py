"""Variants in, cubins out: from the cache, or from compilers running side by side."""

import os
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tuner.compiler.cache import CubinCache, Entry, cache_key
from tuner.compiler.nvrtc import nvrtc_version
from tuner.compiler.process import (
    CompilerDied,
    CompilerFailed,
    CompilerProcess,
    CompilerTooSlow,
)
from tuner.compiler.report import read_log, source_error
from tuner.compiler.source import TranslationUnit, kernel_hash, render
from tuner.config import KernelVariant
from tuner.errors import CompileError, InvalidConfig
from tuner.trial import CompileFailure, Cubin, Toolchain, TrialState

DEFAULT_TIMEOUT_S = 60.0
"""A variant takes half a second to two; what takes this long never pays back."""
LOCK_MARGIN_S = 30.0
"""Beyond the deadline of a compile, how long its result may take to appear."""

Outcome = Cubin | CompileFailure


class CompilePool:
    """Compiles in up to `jobs` processes, each started when there is work for it.

    Use it as a context manager: leaving it ends every process at once, with work in them or not.
    A compile that overruns `timeout_s` is killed and remembered as too slow for that deadline, and
    one whose compiler crashes is a CompileFailure of that variant alone. Crashes are not
    remembered: lack of memory ends a compiler in the same way.
    `render_source` is there for other kernels and for tests.
    """

    def __init__(
        self,
        cache_dir: Path,
        jobs: int | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        render_source: Callable[[KernelVariant], TranslationUnit] = render,
    ) -> None:
        self._cache = CubinCache(cache_dir.absolute() / "cubins")
        self._timeout_s = timeout_s
        self._render = render_source
        # Each thread owns one compiler process for as long as both live.
        self._threads = ThreadPoolExecutor(jobs or os.cpu_count() or 1, "compile")
        self._owned = threading.local()
        self._guard = threading.Lock()
        self._processes: list[CompilerProcess] = []
        self._pending: dict[KernelVariant, Future[Outcome]] = {}
        self._closed = threading.Event()

    def toolchain(self) -> Toolchain:
        """What every cubin of this pool is made from.

        Raises: CompileError if there is no compiler.
        """
        return Toolchain(kernel_hash(), nvrtc_version())

    def submit(self, variant: KernelVariant) -> Future[Outcome]:
        """Start on `variant`, or share the work if it is under way.

        The future raises CompileError if nothing can be compiled here: no compiler, or a cache
        folder that cannot be written.
        """
        with self._guard:
            self._require_open()
            if pending := self._pending.get(variant):
                return pending
            future = self._threads.submit(self._obtain, variant)
            self._pending[variant] = future
        future.add_done_callback(lambda _: self._forget(variant))
        return future

    def compile(self, variants: Iterable[KernelVariant]) -> dict[KernelVariant, Outcome]:
        """Every variant's outcome, in the order given.

        Raises: CompileError if nothing can be compiled here.
        """
        futures = {variant: self.submit(variant) for variant in variants}
        return {variant: future.result() for variant, future in futures.items()}

    def close(self) -> None:
        """End every process; what has not begun is cancelled."""
        with self._guard:
            self._closed.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.interrupt()
        self._threads.shutdown(wait=True)
        for process in self._processes:
            process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _forget(self, variant: KernelVariant) -> None:
        with self._guard:
            self._pending.pop(variant, None)

    def _obtain(self, variant: KernelVariant) -> Outcome:
        try:
            unit = self._render(variant)
        except InvalidConfig as error:
            return CompileFailure(variant, TrialState.COMPILE_REFUSED, str(error))
        except Exception as error:  # a fault of this variant's rendering must not end the run
            detail = f"its source could not be rendered: {type(error).__name__}: {error}."
            return CompileFailure(variant, TrialState.CRASHED, detail)
        key = cache_key(unit, nvrtc_version())
        if entry := self._cache.find(key, self._timeout_s):
            return _outcome(variant, entry, cached=True)
        with self._cache.locked(key, self._timeout_s + LOCK_MARGIN_S, self._closed):
            if entry := self._cache.find(key, self._timeout_s):
                return _outcome(variant, entry, cached=True)
            try:
                entry = self._compile(key, unit)
            except (CompilerDied, CompilerFailed) as error:
                self._require_open()
                detail = f"the compiler failed on this variant: {error}."
                return CompileFailure(variant, TrialState.CRASHED, detail)
            return _outcome(variant, entry, cached=False)

    def _compile(self, key: str, unit: TranslationUnit) -> Entry:
        process = self._own_process()
        process.start()
        started = time.monotonic()
        try:
            compilation = process.compile(unit, self._timeout_s)
        except CompilerTooSlow:
            return self._cache.keep_timeout(key, self._timeout_s)
        return self._cache.keep(key, compilation, time.monotonic() - started)

    def _own_process(self) -> CompilerProcess:
        if not hasattr(self._owned, "process"):
            with self._guard:
                self._require_open()
                self._owned.process = CompilerProcess()
                self._processes.append(self._owned.process)
        process: CompilerProcess = self._owned.process
        return process

    def _require_open(self) -> None:
        if self._closed.is_set():
            raise CompileError("the compile pool was closed; make another.")


def _outcome(variant: KernelVariant, entry: Entry, cached: bool) -> Outcome:
    """The verdict on what a compile left; a refusal says why in a sentence."""
    if entry.timeout_s is not None:
        detail = f"too slow to compile: not done within {entry.timeout_s:g} s."
        return CompileFailure(variant, TrialState.COMPILE_TIMEOUT, detail)
    if entry.cubin is None:
        return CompileFailure(variant, TrialState.COMPILE_REFUSED, source_error(entry.log))
    report = read_log(entry.log)
    if reason := report.refusal():
        return CompileFailure(variant, TrialState.COMPILE_REFUSED, reason)
    assert report.registers is not None
    return Cubin(
        variant, str(entry.cubin), report.registers, report.spill_bytes, entry.seconds, cached
    )
