"""Replay: recorded rows through the same study, and nothing that was not recorded."""

import gzip
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from tests.device.fake import H200, TOOLCHAIN
from tests.device.recordings import recorded_rows, write_recording
from tests.study.doubles import MemoryRows
from tuner.device.protocol import Entrant
from tuner.device.replay import RecordedCompiler, Recording, ReplayDevice, packaged_recordings
from tuner.errors import DeviceError, DeviceUnavailable
from tuner.search.space import trusted_config
from tuner.shape import GemmShape, Problem
from tuner.study import Budget, Tools, run_all, tune
from tuner.trial import (
    PROTOCOL_HEAT,
    PROTOCOL_HOT,
    PROTOCOL_SCREEN,
    Contender,
    Cubin,
    Measurement,
    ShapeState,
    TrialState,
)

PROBLEM = Problem(GemmShape(512, 512, 512), 132)
UNRECORDED = Problem(GemmShape(640, 512, 512), 132)
ROWS = recorded_rows(PROBLEM)
TRUSTED = Entrant(Contender("kernel", trusted_config(PROBLEM)))


@pytest.fixture
def device() -> ReplayDevice:
    return ReplayDevice(Recording("test", H200, ROWS))


def replayed(device: ReplayDevice, rows: MemoryRows) -> Tools:
    compiler = RecordedCompiler(device)
    return Tools(device, compiler, rows, "run-1", source="replay", menu=device)


def kernels(protocol: str) -> list[Measurement]:
    return [r for r in ROWS if r.protocol == protocol and r.contender.name == "kernel"]


def test_a_file_becomes_the_recorded_device_kernel_and_configs(tmp_path: Path) -> None:
    device = ReplayDevice(write_recording(tmp_path / "small.jsonl.gz", ROWS))
    assert device.identify() == H200
    assert RecordedCompiler(device).toolchain() == TOOLCHAIN
    assert device.recording.problems() == [PROBLEM]
    assert len(device.recorded_configs(PROBLEM)) == 14
    assert device.recorded_configs(UNRECORDED) == []


def test_recorded_samples_come_back_in_order_and_any_subset_is_still_paired(
    device: ReplayDevice,
) -> None:
    device.prepare(PROBLEM, TRUSTED)
    subset = kernels(PROTOCOL_HOT)[3:5]
    entrants = [Entrant(Contender("cublas")), *(Entrant(row.contender) for row in subset)]
    sampled = device.race(entrants, PROTOCOL_HOT, rounds=5)
    recorded = {row.contender: row.samples_us[:5] for row in ROWS if row.protocol == PROTOCOL_HOT}
    assert [s.samples_us for s in sampled] == [recorded[e.contender] for e in entrants]
    assert [len(s.samples_us) for s in sampled] == [5, 5, 5]


def test_more_rounds_than_were_recorded_are_not_made_up(device: ReplayDevice) -> None:
    device.prepare(PROBLEM, TRUSTED)
    entrants = [Entrant(Contender("cublas")), Entrant(kernels(PROTOCOL_HOT)[0].contender)]
    assert [len(s.samples_us) for s in device.race(entrants, PROTOCOL_HOT, 100)] == [7, 7]


def test_the_library_comes_back_with_its_recorded_algorithm(device: ReplayDevice) -> None:
    device.prepare(PROBLEM, TRUSTED)
    (sampled,) = device.race([Entrant(Contender("cublaslt"))], PROTOCOL_HOT, 3)
    assert sampled.contender.algorithm == "tile=128x256 stages=4"
    assert sampled.state is TrialState.OK


def test_a_study_on_a_recording_ends_tuned_with_recorded_times_marked_as_replay(
    device: ReplayDevice,
) -> None:
    rows = MemoryRows()
    outcome = tune(PROBLEM, replayed(device, rows), Budget(finalists=4))
    assert outcome.state is ShapeState.TUNED
    assert outcome.toolchain == TOOLCHAIN
    assert outcome.compiled == 0
    assert outcome.counts == {"ok": 12, "compile_refused": 1, "wrong_result": 1}
    assert {row.source for row in rows.rows} == {"replay"}
    recorded = {(r.protocol, r.contender): r.samples_us for r in ROWS}
    for row in rows.rows:
        if row.state is TrialState.UNSTABLE:  # cuBLASLt's best of one race, not in the other
            assert (row.protocol, row.contender) not in recorded
            assert row.contender.algorithm is not None
            assert row.samples_us == ()
        elif row.protocol == PROTOCOL_HEAT:
            played = recorded[PROTOCOL_HOT, row.contender]
            assert row.samples_us == played[: len(row.samples_us)] != ()
        else:
            assert row.samples_us == recorded[row.protocol, row.contender]
    fastest = min(kernels(PROTOCOL_SCREEN), key=lambda r: r.median_us or float("inf"))
    raced = {r.contender.config for r in rows.rows if r.protocol == PROTOCOL_HOT}
    assert fastest.contender.config in raced


def test_the_search_measures_only_as_many_recorded_configs_as_it_may(
    device: ReplayDevice,
) -> None:
    outcome = tune(PROBLEM, replayed(device, MemoryRows()), Budget(trials=6, finalists=2))
    assert outcome.state is ShapeState.TUNED
    assert outcome.trials == 6


def test_an_unrecorded_shape_ends_not_recorded_and_the_others_go_on(device: ReplayDevice) -> None:
    rows = MemoryRows()
    outcomes = run_all([UNRECORDED, PROBLEM], replayed(device, rows), Budget(finalists=2))
    assert [o.state for o in outcomes] == [ShapeState.NOT_RECORDED, ShapeState.TUNED]
    assert outcomes[0].detail == "the recording has no 640x512x512."
    assert not [row for row in rows.rows if row.problem == UNRECORDED]


def test_realtime_takes_as_long_as_the_recorded_samples() -> None:
    slept: list[float] = []
    device = ReplayDevice(Recording("test", H200, ROWS), realtime=True, sleep=slept.append)
    device.prepare(PROBLEM, TRUSTED)
    row = kernels(PROTOCOL_SCREEN)[-1]
    device.screen(Entrant(row.contender))
    assert slept == [sum(row.samples_us) / 1e6]


def test_a_config_that_was_screened_but_not_raced_is_not_offered() -> None:
    lone = kernels(PROTOCOL_SCREEN)[-1].contender
    kept = [r for r in ROWS if r.contender != lone or r.protocol == PROTOCOL_SCREEN]
    device = ReplayDevice(Recording("test", H200, kept))
    assert lone.config not in device.recorded_configs(PROBLEM)
    device.prepare(PROBLEM, TRUSTED)
    (sampled,) = device.race([Entrant(lone)], PROTOCOL_HOT, 3)
    assert (sampled.state, sampled.samples_us) == (TrialState.UNSTABLE, ())


def test_a_refused_variant_is_refused_again_and_any_other_has_a_cubin(
    device: ReplayDevice,
) -> None:
    compiler = RecordedCompiler(device)
    (refused,) = (r for r in ROWS if r.state is TrialState.COMPILE_REFUSED)
    assert refused.contender.config is not None
    failure = compiler.submit(refused.contender.config.variant).result()
    assert not isinstance(failure, Cubin)
    assert (failure.state, failure.detail) == (TrialState.COMPILE_REFUSED, "spills 8 B")
    assert isinstance(compiler.submit(trusted_config(PROBLEM).variant).result(), Cubin)


def test_what_was_not_recorded_is_a_sentence(device: ReplayDevice) -> None:
    with pytest.raises(DeviceError, match="prepare one first"):
        device.screen(Entrant(kernels(PROTOCOL_SCREEN)[0].contender))
    with pytest.raises(DeviceError, match="has no 640x512x512"):
        device.prepare(UNRECORDED, TRUSTED)


def test_a_recording_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    path = write_recording(tmp_path / "whole.jsonl.gz", ROWS)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(path.read_bytes()[:400])
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_text("not compressed")
    bad_row = tmp_path / "bad.jsonl.gz"
    bad_row.write_bytes(gzip.compress(b'{"format": "gemm-tuner-rows/1", "device": null}\n{}\n'))
    for broken in (cut, plain, bad_row, tmp_path / "absent.jsonl.gz"):
        with pytest.raises(DeviceUnavailable, match=f"{broken.name} cannot be read"):
            ReplayDevice(broken)
    with pytest.raises(DeviceUnavailable, match="no recording named 'b300'; shipped are: "):
        ReplayDevice("b300")


def test_a_recording_with_one_byte_flipped_anywhere_in_its_data_is_named(tmp_path: Path) -> None:
    whole = write_recording(tmp_path / "whole.jsonl.gz", ROWS).read_bytes()
    flipped = tmp_path / "flipped.jsonl.gz"
    causes = set()
    # Ten bytes of header may change without harm; all after them are data, checksum or length.
    for position in range(10, len(whole), len(whole) // 100):
        damaged = bytearray(whole)
        damaged[position] ^= 0xFF
        flipped.write_bytes(damaged)
        with pytest.raises(DeviceUnavailable, match=r"flipped\.jsonl\.gz cannot be read") as caught:
            Recording.load(flipped)
        causes.add(type(caught.value.__cause__))
    assert zlib.error in causes


def test_rows_of_two_kernels_or_of_another_device_are_no_recording() -> None:
    other_kernel = replace(ROWS[0], toolchain=replace(TOOLCHAIN, kernel_hash="other"))
    with pytest.raises(DeviceUnavailable, match="rows of 2 kernels"):
        Recording("mixed", H200, [*ROWS, other_kernel])
    with pytest.raises(DeviceUnavailable, match="has rows of"):
        Recording("mixed", H200, [replace(row, device_key="sm90-114sm-94gb") for row in ROWS])


def test_shipped_recordings_can_be_opened() -> None:
    for name in packaged_recordings():
        assert ReplayDevice(name).recording.problems()
