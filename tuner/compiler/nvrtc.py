"""CUDA source to sm_90a machine code through NVRTC; needs no GPU and no CUDA headers."""

from functools import cache
from importlib import metadata
from typing import Any, NamedTuple

from tuner.compiler.options import OPTIONS
from tuner.compiler.source import MAIN, TranslationUnit
from tuner.errors import CompileError

_DISTRIBUTIONS = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu13", "nvidia-cuda-nvrtc-cu12")


class Compilation(NamedTuple):
    """What NVRTC made of a source: the cubin, None if it refused the source, and its log."""

    cubin: bytes | None
    log: str


def compile_unit(unit: TranslationUnit) -> Compilation:
    """Compile a rendered kernel in this process, which cannot be interrupted.

    Raises: CompileError if NVRTC is missing or fails for another reason than the source.
    """
    nvrtc = _load()
    program = _value(
        nvrtc.nvrtcCreateProgram(
            unit.main.encode(),
            MAIN.encode(),
            len(unit.headers),
            [text.encode() for text in unit.headers.values()],
            [name.encode() for name in unit.headers],
        )
    )
    try:
        options = [option.encode() for option in OPTIONS]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        refused = status == nvrtc.nvrtcResult.NVRTC_ERROR_COMPILATION
        if not refused:
            _value((status,))
        log = b" " * _value(nvrtc.nvrtcGetProgramLogSize(program))
        _value(nvrtc.nvrtcGetProgramLog(program, log))
        text = log.rstrip(b"\0").decode(errors="replace")
        if refused:
            return Compilation(None, text)
        cubin = b" " * _value(nvrtc.nvrtcGetCUBINSize(program))
        _value(nvrtc.nvrtcGetCUBIN(program, cubin))
        return Compilation(cubin, text)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


@cache
def nvrtc_version() -> str:
    """The compiler's version, such as `13.0.88`; `13.0` if it was not installed from a wheel.

    SASS differs between versions, so this is part of every cache key and stored row.
    Raises: CompileError if there is no NVRTC.
    """
    nvrtc = _load()
    status, major, minor = nvrtc.nvrtcVersion()
    _value((status,))
    release = f"{major}.{minor}"
    for name in _DISTRIBUTIONS:
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
        # The library itself knows only major and minor: a wheel of another release is not it.
        if installed.startswith(f"{release}."):
            return installed
    return release


def _load() -> Any:
    """The NVRTC bindings, with the library itself found and loaded.

    Raises: CompileError saying what to install.
    """
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, OSError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        raise CompileError(
            f"the CUDA run-time compiler (NVRTC) cannot be loaded: {reason}. "
            "Install it with: pip install 'gemm-tuner[compile]'."
        ) from error
    return nvrtc


def _value(answer: tuple[Any, ...]) -> Any:
    """The value of an NVRTC call, whose first item is a status.

    Raises: CompileError naming the status.
    """
    status, *values = answer
    if int(status) != 0:
        raise CompileError(f"NVRTC failed with {status.name}, which is not the source's fault.")
    return values[0] if values else None
