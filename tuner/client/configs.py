"""Look-ups in what was loaded, remembered, and told of once."""

from __future__ import annotations

import os

from tuner.client.best import NONE, TUNED, BestConfig
from tuner.entry import label_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal, Protocol, TypedDict, Unpack

    from tuner.client.best import Shape, Source
    from tuner.client.rules import Question, Rules
    from tuner.client.sources import Loaded

    class Terms(TypedDict, total=False):
        """What may be asked beside a shape, as `GET /best-config` describes it."""

        d: Literal["row", "col"]
        sms: int | None
        protocol: str | None
        numerics: Literal["deterministic", "invariant"] | None
        launch: Literal["any", "plain"]
        match: Literal["any", "exact"]
        default: Mapping[str, Any] | None

    class Extents(Protocol):
        """A shape of another kind, such as `tuner.shape.GemmShape`."""

        @property
        def m(self) -> int: ...
        @property
        def n(self) -> int: ...
        @property
        def k(self) -> int: ...


CHOICES = {
    "d": ("row", "col"),
    "numerics": (None, "deterministic", "invariant"),
    "launch": ("any", "plain"),
    "match": ("any", "exact"),
}
MOST_REMEMBERED = 20_000
"""Questions that are remembered before all are forgotten."""


class TunedConfigs:
    """The configs of one device from one source. Any thread may ask, and a forked process too.

    source: where they come from. problems: why better sources were passed over, as sentences.
    """

    def __init__(
        self,
        loaded: Loaded,
        device: str | None = None,
        *,
        strict: bool = False,
        kernel_hash: str | None = None,
    ) -> None:
        """kernel_hash: the kernel that is in use; answers for another are marked stale."""
        self._loaded, self._strict, self._kernel_hash = loaded, strict, kernel_hash
        told = loaded.told
        self._device = told.device_key if told else device
        self._sms = told.sms if told else _multiprocessors(device)
        self._rules: Rules | None = None
        self._answers: dict[Question, BestConfig] = {}
        self._untunable: set[Shape] = set()
        self._said = False
        self._owner = os.getpid()

    @property
    def source(self) -> Source:
        return self._loaded.source if self._loaded.told else "default"

    @property
    def problems(self) -> Sequence[str]:
        return self._loaded.problems

    @property
    def generation(self) -> str | None:
        """The id of the snapshot, by which it can be pinned; None if there is no snapshot."""
        return self._loaded.id

    @property
    def device(self) -> str | None:
        """The key of the device."""
        return self._device

    @property
    def shapes(self) -> list[Shape]:
        """M, N and K that were tuned, row-major on all multiprocessors."""
        told = self._loaded.told
        keys = told.keys if told else []
        return [key[:3] for key in keys if key[3] == self._sms and key[6] == "row"]

    def __len__(self) -> int:
        told = self._loaded.told
        return len(told.keys) if told else 0

    def __bool__(self) -> bool:
        return True  # one without configs of its own may still answer

    def best_config(
        self,
        m: int,
        n: int,
        k: int,
        *,
        d: Literal["row", "col"] = "row",
        sms: int | None = None,
        protocol: str | None = None,
        numerics: Literal["deterministic", "invariant"] | None = None,
        launch: Literal["any", "plain"] = "any",
        match: Literal["any", "exact"] = "any",
        default: Mapping[str, Any] | None = None,
    ) -> BestConfig:
        """The config for D[M,N] = A[M,K] x B[N,K], as `GET /best-config` with these parameters.

        default: the config where there is no answer. Raises: NoTunedConfig there, in strict mode.
        """
        question: Question = (m, n, k, d, sms, protocol, numerics, launch, match)
        try:
            found = self._answers.get(question)
        except TypeError:
            found = None
            # What cannot be remembered is no number either.
            question = tuple(v if isinstance(v, int | str | None) else str(v) for v in question)
            found = self._answers.get(question)
        if found is None:
            found = self._work_out(question)
            if len(self._answers) >= MOST_REMEMBERED:
                self._answers = {}
            self._answers[question] = found
        if found.tier == NONE:
            if self._strict:
                from tuner.errors import NoTunedConfig

                raise NoTunedConfig(found.reason)
            if default is not None:
                rest = (found.tier, found.source, found.generation, found.reason)
                return BestConfig(found.shape, default, "kernel", *rest)
        return found

    def best_configs(
        self, shapes: Iterable[Shape | Extents], **asked: Unpack[Terms]
    ) -> Iterator[BestConfig]:
        """An answer for each shape in turn, then one warning about all that was not tuned.

        asked: as for `best_config`.
        """
        for shape in shapes:
            yield self.best_config(*_extents(shape), **asked)
        self.report()

    def summary(self) -> str:
        """What was asked so far, what was not tuned, and the command that tunes it; or nothing."""
        from tuner.client.summary import summary

        # Copies: other threads go on asking.
        asked, untunable = [*self._answers.values()], set(self._untunable)
        return summary(self._loaded, self._device, asked, untunable)

    def report(self) -> None:
        """Log the summary as one warning, if something is amiss and it was not said before."""
        if self._said or os.getpid() != self._owner:
            return
        if self.problems or any(best.tier not in TUNED for best in [*self._answers.values()]):
            from tuner.client.summary import warn

            self._said = warn(self.summary())

    def report_at_exit(self) -> None:
        from atexit import register

        register(self.report)

    def _work_out(self, question: Question) -> BestConfig:
        shape: Shape = question[:3]
        refused, tunable = "", True
        try:
            asked = _understood(question, self._sms)
            answer = self._exact(asked)
            if answer is None:
                answer = self._by_rule(asked)
        except _Refused as error:
            answer, refused, tunable = None, str(error), error.tunable
        if answer is None:
            if not tunable:
                self._untunable.add(shape)
            return BestConfig(shape, None, "cublas", "none", "default", None, refused)
        return BestConfig(
            shape,
            answer["config"],
            answer["use"],
            answer["match"]["tier"],
            self._loaded.source,
            self._loaded.id,
            "",
            answer,
        )

    def _exact(self, question: Question) -> dict[str, Any] | None:
        """Without the full rules, which take long to set up."""
        told = self._loaded.told
        if told is None:
            return None
        m, n, k, d, sms, protocol, numerics, launch, _ = question
        label = label_of(protocol, launch == "plain", numerics == "invariant")
        key = (m, n, k, sms, "bf16", "tn", d, "none")
        if not told.checked:
            from tuner.client.rules import can_be_used

            if not can_be_used(told, key, label):
                return None
        return told.exact(key, label, self._kernel_hash)

    def _by_rule(self, question: Question) -> dict[str, Any]:
        from tuner.client.rules import Refusal, Rules
        from tuner.errors import TunerError

        if self._device is None:
            raise _Refused(" ".join(self.problems), tunable=False)
        try:
            if self._rules is None:
                told = [self._loaded.told] if self._loaded.told else self._loaded.lenders
                self._rules = Rules(self._device, told, self._kernel_hash)
            return self._rules.answer(question)
        except Refusal as error:
            raise _Refused(str(error), error.tunable) from None
        except (TunerError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            # A snapshot that nobody foresaw must not end a program.
            said = f"{type(error).__name__}: {error}"
            raise _Refused(f"it could not be worked out ({said}).", tunable=False) from None


class _Refused(Exception):
    def __init__(self, reason: str, tunable: bool) -> None:
        super().__init__(reason)
        self.tunable = tunable


def _extents(shape: Shape | Extents) -> Shape:
    told: Any = shape
    try:
        m, n, k = told if isinstance(told, tuple | list) else (told.m, told.n, told.k)
    except (AttributeError, ValueError):
        m, n, k = told, None, None  # the look-up says that this is no extent
    return m, n, k


def _understood(question: Question, all_sms: int) -> Question:
    """Extents as whole numbers, and every choice one that there is. Raises: _Refused."""
    m, n, k, d, sms, protocol, numerics, launch, match = question
    asked = {"d": d, "numerics": numerics, "launch": launch, "match": match}
    for name, value in asked.items():
        if value not in CHOICES[name]:
            allowed = ", ".join(map(str, CHOICES[name]))
            said = f"{name} must be one of {allowed}, not {str(value)[:80]!a}."
            raise _Refused(said, tunable=False)
    extents = map(_whole, (m, n, k))
    return *extents, d, _whole(all_sms if sms is None else sms), protocol, numerics, launch, match


def _whole(value: Any) -> int:
    """Of any type of whole number. Raises: _Refused."""
    try:
        return int(value.__index__())
    except (AttributeError, TypeError):
        raise _Refused(f"{str(value)[:40]!a} is not a whole number.", tunable=False) from None


def _multiprocessors(device: str | None) -> int:
    from tuner.device_key import key_parts

    parts = key_parts(device) if device else None
    return parts[1] if parts else 0
