"""The kernel on a real Hopper GPU: every kind of variant, every kind of edge, exact results.

`verify` compares the whole output bit for bit with a trusted config on random data, and with an
exact product on small integers; the trusted config is held against fp64 when a problem is prepared.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.faulty_kernels import FAULTS, broken
from tuner.compiler.pool import CompilePool
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.device.cuda import open_cuda
from tuner.device.deadlines import Deadlines
from tuner.device.process import DeviceProcess
from tuner.device.protocol import Entrant
from tuner.errors import DeviceCrashed, DeviceTimeout
from tuner.legality import faults
from tuner.search.launches import knob_menu
from tuner.search.space import trusted_config
from tuner.shape import GemmShape, Problem
from tuner.trial import PROTOCOL_HOT, Contender, Cubin, TrialState, paired_ratio

pytestmark = pytest.mark.gpu

SMS = 132
V = KernelVariant
BUSY: Any = {"producer_registers": 40, "consumer_registers": 232}
KINDS: Mapping[str, KernelVariant] = {
    "cooperative": V(128, 256, 4),
    "article": V(128, 256, 3, cluster_m=2),
    "split n": V(192, 192, 4, split="n"),
    "five row blocks": V(320, 128, 3, split="n"),
    "three consumers": V(192, 176, 4, 1, 3, "m", "cooperative", 32, 160),
    "exchanged": V(192, 176, 4, 1, 3, "m", "cooperative", 32, 160, transposed_store=True),
    "ping-pong": V(128, 128, 6, schedule="pingpong"),
    "ping-pong exchanged": V(128, 192, 4, schedule="pingpong", transposed_store=True),
    "ping-pong in a cluster": V(64, 128, 6, schedule="pingpong", cluster_n=2),
    "one consumer, four slabs": V(64, 32, 4, 4, 1, "m", "cooperative", 0, 0),
    "one consumer, narrow": V(64, 8, 8, 2, 1, "m", "cooperative", 0, 0, transposed_store=True),
    "n of 24": V(64, 24, 8, 1, 1, "m", "cooperative", 0, 0),
    "n of 200": V(128, 200, 4, transposed_store=True),
    "cluster 4x1": V(128, 64, 6, cluster_m=4),
    "cluster 1x4": V(128, 72, 6, cluster_n=4, transposed_store=True),
    "cluster 2x2": V(128, 128, 5, cluster_m=2, cluster_n=2),
    "cluster 4x2": V(128, 64, 6, cluster_m=4, cluster_n=2),
    "direct": V(128, 160, 4, store="direct"),
    "direct exchanged": V(128, 136, 4, store="direct", transposed_store=True),
    "direct ping-pong": V(64, 64, 8, schedule="pingpong", store="direct", cluster_m=2),
    "cluster 8x1, uneven": V(128, 72, 6, cluster_m=8, **BUSY),
    "cluster 1x7, uneven, exchanged": V(
        64, 200, 5, 1, 1, "m", "cooperative", 0, 0, cluster_n=7, transposed_store=True
    ),
    "cluster 3x1, uneven": V(192, 128, 4, 1, 2, "n", "cooperative", **BUSY, cluster_m=3),
    "split k": V(128, 128, 5, reduction="workspace", **BUSY),
    "split k, exchanged": V(128, 88, 5, reduction="workspace", transposed_store=True, **BUSY),
    "split k, ping-pong, pairs": V(
        64, 128, 6, schedule="pingpong", cluster_n=2, reduction="workspace", **BUSY
    ),
    "split k, ping-pong, exchanged": V(
        128, 64, 6, schedule="pingpong", transposed_store=True, reduction="workspace", **BUSY
    ),
    "split k, split n": V(192, 128, 4, split="n", reduction="workspace", **BUSY),
    "split k, one consumer": V(
        64, 32, 9, 2, 1, "m", "cooperative", 0, 0, cluster_m=2, reduction="workspace"
    ),
    "split k, direct": V(128, 160, 4, store="direct", reduction="workspace", **BUSY),
    "split k, direct, exchanged": V(
        64, 72, 8, 1, 1, "m", "cooperative", 0, 0,
        transposed_store=True, store="direct", reduction="workspace",
    ),
}  # fmt: skip
SHAPES = [
    (128, 128, 64),
    (1, 8, 8),
    (8, 1, 4096),
    (1, 128, 8),
    (200, 136, 72),
    (257, 264, 520),
    (1000, 777, 1032),
    (264, 65, 136),
    (8, 4104, 24),
    (2560, 4096, 1024),
    (136, 264, 4104),
    (65, 1001, 7168),
    (1800, 2080, 2056),
]
DEADLINES = Deadlines(verify=30.0, prepare=120.0, start=120.0)


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Mapping[KernelVariant, Cubin]:
    trusted = [V(128, 128, 4), V(128, 128, 4, store="direct")]
    with CompilePool(tmp_path_factory.mktemp("cubins")) as pool:
        compiled = pool.compile([*KINDS.values(), *trusted])
    return {v: c for v, c in compiled.items() if isinstance(c, Cubin)}


@pytest.fixture(scope="module")
def device() -> Iterator[DeviceProcess]:
    with DeviceProcess(partial(open_cuda, 0), DEADLINES) as device:
        yield device


def entrant(config: KernelConfig, cubins: Mapping[KernelVariant, Cubin]) -> Entrant:
    return Entrant(Contender("kernel", config), cubins[config.variant])


def candidates(problem: Problem, seed: int) -> Iterator[tuple[str, KernelConfig]]:
    random = Random(seed)
    for name, variant in KINDS.items():
        launches = knob_menu(problem, variant)
        configs = (KernelConfig(variant, knobs) for knobs in random.sample(launches, len(launches)))
        if config := next((c for c in configs if not faults(c, problem)), None):
            yield name, config


@pytest.mark.parametrize("d", ["row", "col"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_of_variant_gives_the_trusted_bits(
    device: DeviceProcess,
    cubins: Mapping[KernelVariant, Cubin],
    shape: tuple[int, int, int],
    d: str,
) -> None:
    problem = Problem(GemmShape(*shape), SMS, d=d)  # type: ignore[arg-type]
    prepared = device.prepare(problem, entrant(trusted_config(problem), cubins))
    assert prepared.reference_error <= 1
    tried = list(candidates(problem, seed=sum(shape)))
    assert len(tried) >= 3
    for name, config in tried:
        verified = device.verify(entrant(config, cubins))
        assert (name, verified.detail) == (name, "")
        assert verified.state is TrialState.OK


@pytest.mark.parametrize(
    "shape", [(256, 256, 2048), (192, 1032, 520), (1024, 1024, 1024), (136, 264, 4104)], ids=str
)
def test_dependent_launches_that_read_each_other_s_output_give_the_bits_of_launches_alone(
    device: DeviceProcess, cubins: Mapping[KernelVariant, Cubin], shape: tuple[int, int, int]
) -> None:
    problem = Problem(GemmShape(*shape), SMS)
    device.prepare(problem, entrant(trusted_config(problem), cubins))
    tried = list(candidates(problem, seed=sum(shape)))
    assert len(tried) >= 20
    for name, config in tried:
        dependent = replace(config, knobs=replace(config.knobs, dependent_launch=True))
        assert (name, device.verify(entrant(dependent, cubins)).detail) == (name, "")


def test_a_dependent_launch_that_does_not_wait_is_found(
    tmp_path: Path, device: DeviceProcess, cubins: Mapping[KernelVariant, Cubin]
) -> None:
    variant = V(64, 64, 8, 1, 1, "m", "cooperative", 0, 0)
    careless = partial(
        broken, file="gemm_sm90.cu", sound="ptx::wait_for_prerequisites();", fault=";"
    )
    with CompilePool(tmp_path / "faulty", render_source=careless) as pool:
        cubin = pool.submit(variant).result()
    assert isinstance(cubin, Cubin)
    problem = Problem(GemmShape(256, 256, 2048), SMS)
    device.prepare(problem, entrant(trusted_config(problem), cubins))
    knobs = LaunchKnobs(num_sms=SMS, dependent_launch=True)
    config = KernelConfig(variant, knobs)
    assert "chain" in device.verify(Entrant(Contender("kernel", config), cubin)).detail


def test_clusters_that_would_wait_for_one_that_never_starts_are_refused_unlaunched(
    tmp_path: Path, device: DeviceProcess, cubins: Mapping[KernelVariant, Cubin]
) -> None:
    variant = V(128, 64, 6, cluster_n=4, reduction="workspace", **BUSY)
    with CompilePool(tmp_path / "cubins") as pool:
        cubin = pool.submit(variant).result()
    assert isinstance(cubin, Cubin)
    problem = Problem(GemmShape(512, 256, 16384), SMS)
    device.prepare(problem, entrant(trusted_config(problem), cubins))
    states = {}
    for sms in (120, SMS):  # 30 clusters of four fit an H200, 33 do not
        config = KernelConfig(variant, LaunchKnobs(num_sms=sms, split_k=9))
        assert faults(config, problem) == []
        states[sms] = device.verify(Entrant(Contender("kernel", config), cubin))
    assert states[120].state is TrialState.OK, states[120].detail
    assert states[SMS].state is TrialState.UNSTABLE
    assert "starts 33 clusters of 4 thread blocks that wait for each other" in states[SMS].detail


def test_any_number_of_sms_gives_the_same_bits(
    device: DeviceProcess, cubins: Mapping[KernelVariant, Cubin]
) -> None:
    problem = Problem(GemmShape(1032, 1288, 328), SMS)
    device.prepare(problem, entrant(trusted_config(problem), cubins))
    for variant in (KINDS["ping-pong"], KINDS["article"], KINDS["cluster 2x2"]):
        for sms in (4, 8, 12, 60, 132):
            config = KernelConfig(variant, LaunchKnobs(num_sms=sms, raster="hilbert"))
            assert device.verify(entrant(config, cubins)).detail == ""


@pytest.mark.parametrize(
    ("shape", "kinds"),
    [
        ((65_544, 32_776, 64), ("cooperative", "ping-pong exchanged", "cluster 2x2")),
        ((65_537, 32_771, 64), ("direct", "direct exchanged")),
    ],
    ids=["tma store", "direct store"],
)
def test_outputs_beyond_two_billion_elements_are_right_to_the_last(
    device: DeviceProcess,
    cubins: Mapping[KernelVariant, Cubin],
    shape: tuple[int, int, int],
    kinds: tuple[str, ...],
) -> None:
    problem = Problem(GemmShape(*shape), SMS)
    assert problem.shape.m * problem.shape.n > 2**31
    device.prepare(problem, entrant(trusted_config(problem), cubins))
    for kind in kinds:
        config = KernelConfig(KINDS[kind], LaunchKnobs(num_sms=SMS))
        assert device.verify(entrant(config, cubins)).detail == ""


def test_a_race_pairs_the_rounds_of_kernel_and_libraries(
    device: DeviceProcess, cubins: Mapping[KernelVariant, Cubin]
) -> None:
    problem = Problem(GemmShape(2048, 2048, 2048), SMS)
    device.prepare(problem, entrant(trusted_config(problem), cubins))
    config = KernelConfig(KINDS["ping-pong"], LaunchKnobs(num_sms=SMS))
    entrants = [Entrant(Contender("cublas")), Entrant(Contender("cublaslt"))]
    cublas, best, ours = device.race([*entrants, entrant(config, cubins)], PROTOCOL_HOT, 7)
    assert len(cublas.samples_us) == len(best.samples_us) == len(ours.samples_us) == 7
    assert best.contender.algorithm is not None
    assert '"tile"' in best.contender.algorithm
    # Not a claim about speed: three products of one size on one card are within a factor of two.
    assert 0.5 < paired_ratio(cublas.samples_us, ours.samples_us) < 2


def test_a_cublaslt_algorithm_is_restored_from_its_attributes_in_a_fresh_process(
    cubins: Mapping[KernelVariant, Cubin],
) -> None:
    problem = Problem(GemmShape(1024, 1024, 1024), SMS)
    trusted = entrant(trusted_config(problem), cubins)
    contender = Contender("cublaslt")
    for _ in range(2):  # found in one process, then asked for by its attributes in another
        with DeviceProcess(partial(open_cuda, 0), DEADLINES) as fresh:
            fresh.prepare(problem, trusted)
            entrants = [Entrant(Contender("cublas")), Entrant(contender)]
            _, raced = fresh.race(entrants, PROTOCOL_HOT, 5)
        assert raced.state is TrialState.OK, raced.detail
        assert raced.conditions.cublas_version is not None
        assert contender.algorithm in (None, raced.contender.algorithm)
        contender = raced.contender


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_a_faulty_kernel_never_counts_and_the_next_one_is_measured(
    tmp_path: Path, cubins: Mapping[KernelVariant, Cubin], fault: str
) -> None:
    variant = replace(KINDS["ping-pong"], producer_registers=40, consumer_registers=232)
    file, sound, replaced = FAULTS[fault]
    faulty = partial(broken, file=file, sound=sound, fault=replaced)
    with CompilePool(tmp_path / "faulty", render_source=faulty) as pool:
        cubin = pool.submit(variant).result()
    with CompilePool(tmp_path / "sound") as pool:
        sound_cubin = pool.submit(variant).result()
    assert isinstance(cubin, Cubin)
    assert isinstance(sound_cubin, Cubin)
    problem = Problem(GemmShape(512, 512, 512), SMS)
    config = KernelConfig(variant, LaunchKnobs(num_sms=SMS))
    bad = Entrant(Contender("kernel", config), cubin)
    with DeviceProcess(partial(open_cuda, 0), Deadlines(verify=3.0)) as device:
        device.prepare(problem, entrant(trusted_config(problem), cubins))
        if fault == "never ends":
            with pytest.raises(DeviceTimeout, match="no answer within 3 s"):
                device.verify(bad)
        elif fault in ("traps", "writes out of bounds"):
            with pytest.raises(DeviceCrashed, match="CUDA"):
                device.verify(bad)
        else:
            verified = device.verify(bad)
            assert verified.state is TrialState.WRONG_RESULT
            assert "elements differ from the trusted config" in verified.detail
        device.prepare(problem, entrant(trusted_config(problem), cubins))
        good = Entrant(Contender("kernel", config), sound_cubin)
        assert device.verify(good).state is TrialState.OK
