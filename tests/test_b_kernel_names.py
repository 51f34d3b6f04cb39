"""What a library's kernel is called says how it works; names are those that profilers showed."""

import json

import pytest

from benchmarks.kernel_names import KernelName, parse
from benchmarks.library_kernels import (
    MARKER,
    Seen,
    from_ncu,
    from_trace,
    label,
    launches,
    rows_of,
    table_line,
)
from tuner.shape import GemmShape

NVJET, XMMA = "nvjet", "xmma"


@pytest.mark.parametrize(
    ("name", "tile", "tile_k", "stages", "cluster", "schedule", "splits"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT", (128, 256), 64, 4, (1, 2), "coopA", False),
        ("nvjet_tst_320x128_64x3_1x2_h_bz_coopB_TNT", (320, 128), 64, 3, (1, 2), "coopB", False),
        ("nvjet_hsh_192x192_64x3_2x1_v_bz_coopB_NTN", (192, 192), 64, 3, (2, 1), "coopB", False),
        (
            "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_bias_TNT",
            *((256, 128), 64, 4, (1, 2), "coopA", False),
        ),
        ("nvjet_sm90_tst_192x8_64x8_2x1_v_bz_TNT", (192, 8), 64, 8, (2, 1), None, False),
        ("nvjet_tst_64x32_64x16_4x2_h_bz_TNT", (64, 32), 64, 16, (4, 2), None, False),
        ("nvjet_tst_128x8_64x12_2x1_v_bz_splitK_TNT", (128, 8), 64, 12, (2, 1), None, True),
        ("nvjet_tst_64x8_64x16_1x4_h_bz_splitK_bias_TNT", (64, 8), 64, 16, (1, 4), None, True),
        ("nvjet_tst_128x256_64x6_2x1_2cta_v_bz_TNT", (128, 256), 64, 6, (2, 1), None, False),
    ],
)
def test_nvjet_names_tell_tile_ring_cluster_schedule_and_split(
    name: str,
    tile: tuple[int, int],
    tile_k: int,
    stages: int,
    cluster: tuple[int, int],
    schedule: str | None,
    splits: bool,
) -> None:
    found = parse(name)
    assert found == KernelName(
        NVJET, tile, tile_k, stages, cluster, splits, schedule, found.types, found.layout
    )
    assert found.types in ("tst", "hsh")
    assert found.layout == name[-3:]


WHOLE = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cgasize2x1x1_stage3_"
    "warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"
)
SHORT = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize{}x64_warpgroupsize{}x1x1_execute_"


@pytest.mark.parametrize(
    ("name", "tile", "stages", "cluster"),
    [
        (WHOLE, (128, 128), 3, (2, 1)),
        (SHORT.format("64x128", 1) + "segment_k_off_kernel__5x_cublas", (64, 128), None, None),
        (SHORT.format("256x128", 2) + "segment_k_of…", (256, 128), None, None),
    ],
)
def test_xmma_names_tell_what_they_name_and_no_more(
    name: str, tile: tuple[int, int], stages: int | None, cluster: tuple[int, int] | None
) -> None:
    types, layout = "bf16bf16_bf16f32_f32", "tn_n"
    assert parse(name) == KernelName(XMMA, tile, 64, stages, cluster, False, None, types, layout)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_ntn_"
            "align8_warpspecialized_pingpong_epi_tma",
            "cutlass 3, 128x128, K 64, cluster 2x1, pingpong",
        ),
        (
            "cutlass3x_sm90_tensorop_s64x256x16gemm_f16_f16_f32_void_f32_128x256x64_2x1x1_0_ttt_"
            "align8_warpspecialized_cooperative_epi_tma",
            "cutlass 3, 128x256, K 64, cluster 2x1, cooperative",
        ),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_32x3_tn_"
            "align8>(T1::Params)",
            "cutlass 2, 256x128, K 32, 3 stages",
        ),
        (
            "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn",
            "ampere, 128x64, K 64, 4 stages",
        ),
        ("ampere_sgemm_64x32_sliced1x4_tn", "ampere, 64x32"),
        (
            "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bf",
            "split-K reduction, split K",
        ),
        ("sm80_xmma_execute_split_k_kernel__5x_cublas", "split-K reduction, split K"),
        (
            "std::enable_if<!T7, void>::type internal::gemvx::kernel<int, int, __nv_bfloat16>",
            "matrix-vector",
        ),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "matrix-vector"),
        ("nvjet_sm121_tst_mma_128x208x64_2_32x104x64_tmaAB_alignCD4_bz_TNNN", "nvjet"),
        ("vectorized_elementwise_kernel", "other"),
    ],
)
def test_other_families_are_told_apart(name: str, told: str) -> None:
    assert str(parse(name)) == told


def event(name: str, ts: float, cat: str = "kernel") -> dict[str, object]:
    return {"name": name, "cat": cat, "ts": ts, "dur": 2.5}


GEMM, REDUCE = "nvjet_tst_128x8_64x12_2x1_v_bz_splitK_TNT", "void cublasLt::splitKreduce_kernel<32>"


def test_a_trace_is_read_in_the_order_of_its_times_and_holds_kernels_only() -> None:
    trace = {
        "traceEvents": [
            event(REDUCE, 3.0),
            event("cudaLaunchKernel", 0.5, "cuda_runtime"),
            event(GEMM, 2.0),
            {"name": "process_name", "ph": "M"},
            event(MARKER, 1.0),
        ]
    }
    found = from_trace(json.loads(json.dumps(trace)))
    assert found == [Seen(MARKER, 2.5), Seen(GEMM, 2.5), Seen(REDUCE, 2.5)]


NCU = f"""==PROF== Connected to process 12
product made
"ID","Process ID","Kernel Name","gpu__time_duration.sum"
"","","","ns"
"0","12","{MARKER}","1,120"
"1","12","{GEMM}","13,472"
==PROF== Disconnected
"""


def test_the_table_of_ncu_is_found_among_what_else_is_printed() -> None:
    found = from_ncu(NCU.splitlines())
    assert [kernel.name for kernel in found] == [MARKER, GEMM]
    assert [kernel.us for kernel in found] == pytest.approx([1.12, 13.472])


def test_launches_stand_between_markers_and_what_runs_before_is_left_out() -> None:
    marker, gemm, reduce = Seen(f"void {MARKER}()"), Seen(GEMM), Seen(REDUCE)
    kernels = [gemm, marker, gemm, reduce, marker, marker, gemm]
    assert launches(kernels) == [[gemm, reduce], [], [gemm]]


def test_every_labelled_launch_has_a_row_with_its_kernels() -> None:
    shape = GemmShape(64, 4096, 7168)
    labels = [label(shape, "cublas", None), label(shape, "cublaslt", '{"id": 66}')]
    marker = Seen(MARKER)
    rows = rows_of(labels, [marker, Seen(GEMM, 9.5), Seen(REDUCE, 2.0), marker, Seen(GEMM)])
    assert [[kernel["us"] for kernel in row["kernels"]] for row in rows] == [[9.5, 2.0], [None]]
    assert rows[0]["kernels"][0]["tile"] == (128, 8)
    assert rows[1]["algorithm"] == '{"id": 66}'
    assert "nvjet, 128x8" in table_line(rows[0])
    assert "split-K reduction" in table_line(rows[0])


def test_a_launch_that_was_not_seen_is_an_error_and_no_shift_of_rows() -> None:
    labels = [label(GemmShape(1, 8, 8), "cublas", None)] * 2
    with pytest.raises(ValueError, match="zip"):
        rows_of(labels, [Seen(MARKER), Seen(GEMM)])
