"""`tuner doctor`: what is right and wrong with this machine, and what to do about it."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal

import typer

from tuner import __version__
from tuner.cli import console, exits
from tuner.cli.devices import WAYS_ON, cuda_count, why_no_gpu
from tuner.cli.formats import plural
from tuner.cli.options import DatabaseOption, JsonOption, settings
from tuner.errors import TunerError
from tuner.settings import Settings
from tuner.shape import GemmShape, Problem

Verdict = Literal["ok", "note", "problem"]

EXTRAS = {
    "tune": ("optuna", "sqlalchemy", "alembic"),
    "compile": ("cuda.bindings", "nvidia"),
    "worker": ("cupy", "pynvml", "nvmath"),
    "api": ("fastapi", "uvicorn"),
    "postgres": ("psycopg",),
}
LEAST_FREE_BYTES = 2**30
"""A whole search space of cubins and a large database fit into half of this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: a `problem` says what to do; `exit_code` is what it ends the command with."""

    subject: str
    verdict: Verdict
    told: str
    exit_code: int = exits.NO_DEVICE


def doctor(db: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """Check GPU, driver, compiler, cache and database, and say what to do about each problem.

    Exit code 0: all is well; 5: the database cannot be used; 4: anything else is wrong.
    """
    chosen = settings(db)
    findings = []
    for check in (packages, gpu, compiler, cache, database):
        for finding in check(chosen):
            findings.append(finding)
            if not as_json:
                line = f"{finding.verdict:<8} {finding.subject:<9} {finding.told}"
                console.stdout().print(
                    line, markup=False, soft_wrap=True, style=STYLES[finding.verdict]
                )
    if as_json:
        console.print_json(
            [{"subject": f.subject, "verdict": f.verdict, "told": f.told} for f in findings]
        )
    codes = [f.exit_code for f in findings if f.verdict == "problem"]
    raise typer.Exit(max(codes, default=exits.DONE))


STYLES = {"ok": "", "note": "dim", "problem": "bold red"}


def packages(chosen: Settings) -> Iterator[Finding]:
    """Which extras are installed."""
    del chosen
    present = [name for name, modules in EXTRAS.items() if all(map(_importable, modules))]
    told = f"gemm-tuner {__version__}, Python {platform.python_version()}; "
    yield Finding("packages", "ok", told + f"extras: {', '.join(present) or 'none'}")


def gpu(chosen: Settings) -> Iterator[Finding]:
    """Do the GPUs that CUDA shows open? At least one must be there."""
    del chosen
    if reason := why_no_gpu():
        yield Finding("gpu", "problem", f"no usable GPU: {reason} {WAYS_ON}")
        return
    from functools import partial

    from tuner.device.cuda import cuda_devices, open_cuda
    from tuner.device.process import DeviceProcess

    try:
        listed, count = len(cuda_devices()), cuda_count()
    except TunerError as error:
        yield Finding("gpu", "problem", f"no usable GPU: {error} {WAYS_ON}")
        return
    if count < listed:
        told = f"CUDA shows {count} of {plural(listed, 'GPU')}; CUDA_VISIBLE_DEVICES says which"
        yield Finding("gpu", "note" if count else "problem", told)
    for index in range(count):
        try:
            with DeviceProcess(partial(open_cuda, index)) as device:
                found = device.identify()
        except TunerError as error:
            yield Finding("gpu", "problem", f"cuda:{index}: {error}")
        else:
            yield Finding(
                "gpu",
                "ok",
                f"cuda:{index} {found.name} ({found.key}), driver {found.driver}, "
                f"cuBLAS {found.cublas_version}",
            )


def compiler(chosen: Settings) -> Iterator[Finding]:
    """Does one variant compile?"""
    from tuner.compiler.pool import CompilePool
    from tuner.search.space import trusted_config
    from tuner.trial import CompileFailure

    variant = trusted_config(Problem(GemmShape(4096, 4096, 4096), sms=132)).variant
    try:
        with CompilePool(chosen.cache_dir, jobs=1) as pool:
            made_with = pool.toolchain()
            compiled = pool.submit(variant).result()
    except TunerError as error:
        yield Finding("compiler", "problem", str(error))
        return
    name = f"NVRTC {made_with.nvrtc_version}, kernel {made_with.kernel_hash}"
    if isinstance(compiled, CompileFailure):
        told = f"{name}: a plain variant ends {compiled.state}: {compiled.detail}"
        yield Finding("compiler", "problem", told)
    else:
        took = "from the cache" if compiled.cached else f"in {compiled.seconds:.1f} s"
        yield Finding("compiler", "ok", f"{name}: a variant compiled {took}")


def cache(chosen: Settings) -> Iterator[Finding]:
    """Can the cache be written, and is there room?"""
    folder = chosen.cache_dir
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        told = f"{existing} cannot be written. Set TUNER_CACHE_DIR to a folder that can."
        yield Finding("cache", "problem", told)
        return
    free = shutil.disk_usage(existing).free
    cubins = sum(1 for _ in folder.rglob("*.cubin"))
    told = f"{folder}: {plural(cubins, 'cubin')}, {free / 2**30:.1f} GiB free"
    if free < LEAST_FREE_BYTES:
        yield Finding("cache", "problem", f"{told}; free some, or set TUNER_CACHE_DIR elsewhere.")
    else:
        yield Finding("cache", "ok", told)


def database(chosen: Settings) -> Iterator[Finding]:
    """Is the database sound and up to date?"""
    from tuner.store.engine import locate
    from tuner.store.health import check_store

    try:
        location = locate(chosen.database_url)
        if location.path and not location.path.exists():
            told = f"none yet at {location}; the first `tuner run` makes it"
            yield Finding("database", "note", told)
            return
        health = check_store(chosen.database_url)
    except TunerError as error:
        yield Finding("database", "problem", str(error), exits.NO_DATABASE)
        return
    for problem in health.problems:
        yield Finding("database", "problem", problem, exits.NO_DATABASE)
    if health.ok:
        rows = sum(health.rows.values())
        told = f"{health.location}: sound, schema {health.revision}, {plural(rows, 'row')}"
        yield Finding("database", "ok", told)


def _importable(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
