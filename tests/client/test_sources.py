"""Sources in their order: file, pinned generation, server, cache, package, the caller's default."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bad_servers import behaving, refusing, response, sending, snapshot_response
from tests.client.conftest import Client
from tests.lookup.measured import H100_PCIE, H200, known, measured, problem
from tuner.client import BestConfig, TunedConfigs, rules
from tuner.client.process import Process
from tuner.client.sources import shipped
from tuner.client.told import packed
from tuner.config import KernelConfig, KernelVariant, LaunchKnobs
from tuner.errors import NoTunedConfig
from tuner.legality import faults
from tuner.lookup import Answer
from tuner.lookup.snapshot import Snapshot, build_snapshot, read_snapshot
from tuner.shape import GemmShape

Ship = Callable[[Snapshot], None]
TUNED = (4096, 4096, 4096)


def test_a_file_comes_before_all_else(
    client: Client, ships: Ship, snapshot: Snapshot, newer: Snapshot, tmp_path: Path
) -> None:
    ships(snapshot)
    for name, content in (("a.json", newer.body), ("a.json.gz", packed(newer.body))):
        path = tmp_path / name
        path.write_bytes(content)
        with behaving(sending(snapshot_response(snapshot.body))) as server:
            best = client(config_file=str(path), api_url=server.url).best_config(*TUNED)
            assert (best.source, best.tier, best.generation) == ("file", "exact", newer.id)
            assert server.requests == 0


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\x1f\x8b\x00", b'{"entries": [3]}'])
def test_a_file_that_cannot_be_used_is_named_and_passed_over(
    content: bytes | None, client: Client, ships: Ship, snapshot: Snapshot, tmp_path: Path
) -> None:
    ships(snapshot)
    path = tmp_path / "own.json"
    if content is not None:
        path.write_bytes(content)
    configs = client(config_file=str(path))
    assert configs.best_config(*TUNED).source == "shipped"
    (problem,) = configs.problems
    assert problem.startswith(f"the file {path} ")
    with pytest.raises(NoTunedConfig):
        strictly(client, config_file=str(path))


def strictly(client: Client, **variables: str) -> TunedConfigs:
    """As `load` does."""
    configs = client(strict="1", **variables)
    if configs.problems:
        raise NoTunedConfig(" ".join(configs.problems))
    return configs


def test_a_pinned_generation_comes_from_the_server_and_then_from_the_cache(
    client: Client, ships: Ship, snapshot: Snapshot, newer: Snapshot
) -> None:
    ships(newer)
    heard: list[bytes] = []

    def serve(connected, _):  # type: ignore[no-untyped-def]
        heard.append(connected.recv(65536))
        pinned = f"id={snapshot.id}".encode() in heard[-1]
        connected.sendall(snapshot_response(snapshot.body if pinned else newer.body))

    with behaving(serve) as server:
        for _ in range(2):
            best = client(generation=snapshot.id, api_url=server.url).best_config(*TUNED)
            assert (best.source, best.generation) == ("pinned", snapshot.id)
        assert len(heard) == 1
    with refusing() as nobody:
        for variables in ({}, {"offline": "1"}, {"api_url": nobody.url}):
            best = client(generation=snapshot.id, **variables).best_config(*TUNED)
            assert (best.source, best.generation) == ("pinned", snapshot.id)
    assert client(generation=newer.id).best_config(*TUNED).source == "pinned"  # it is shipped


def test_a_pinned_generation_that_is_nowhere_gives_way_to_what_every_machine_has(
    client: Client, ships: Ship, snapshot: Snapshot, newer: Snapshot
) -> None:
    ships(snapshot)
    missing = response(404, b'{"detail": "There is no generation."}', "application/problem+json")
    with behaving(sending(snapshot_response(newer.body))) as server:
        assert client(H200, api_url=server.url).source == "server"
    with behaving(sending(missing)) as server:
        configs = client(H200, api_url=server.url, generation="0" * 64)
        assert configs.best_config(*TUNED).source == "shipped"
        assert configs.problems[0].endswith("answered 404: There is no generation.")
    cut = client(generation=snapshot.id[:16])
    assert (cut.source, len(cut.problems)) == ("shipped", 1)
    assert "64 digits" in cut.problems[0]


def test_strict_mode_raises_for_what_would_be_given_way_on(
    client: Client, ships: Ship, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ships(snapshot)
    monkeypatch.setenv("TUNER_CACHE_DIR", str(tmp_path / "cache"))
    with refusing() as nobody, pytest.raises(NoTunedConfig, match="did not answer"):
        Process().configs(
            H200, url=nobody.url, file=None, generation=None, strict=True, kernel_hash=None
        )
    with pytest.raises(NoTunedConfig, match="was not found"):
        Process().configs(
            H200, url=None, file=None, generation="1" * 64, strict=True, kernel_hash=None
        )
    configs = client(strict="1")
    assert configs.best_config(*TUNED).tier == "exact"
    with pytest.raises(NoTunedConfig, match="K to be a multiple of 8"):
        configs.best_config(64, 64, 20)
    with pytest.raises(NoTunedConfig, match="was not measured"):
        configs.best_config(64, 64, 64, match="exact", default={})


@pytest.mark.parametrize(
    "device", ["NVIDIA H200", "NVIDIA_H200", "nvidia h200", "H100/PCIe", "☃", "a" * 4000]
)
def test_a_name_is_no_key_and_the_reason_lists_what_there_is(
    device: str, client: Client, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    configs = client(device)
    best = configs.best_config(*TUNED, default={"own": 1})
    assert (best.source, best.config) == ("default", {"own": 1})
    assert "is no key of a device" in configs.problems[0]
    assert H200 in configs.problems[0]


def test_a_device_without_a_snapshot_borrows_from_another_hopper_part_or_has_nothing(
    client: Client, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    best = client(H100_PCIE).best_config(*TUNED)
    assert (best.tier, best.source) == ("sibling", "shipped")
    assert best.answer is not None
    assert best.answer["device"]["key"] == H100_PCIE
    assert best.config is not None
    assert best.config["num_sms"] <= 114
    for other in ("sm80-108sm-80gb", "sm120-188sm-96gb"):
        best = client(other).best_config(*TUNED)
        assert (best.tier, best.source) == ("none", "default")
        assert f"No device has the key '{other}'" in best.reason


def illegal(configs: list[tuple[Answer, dict[str, Answer]]]) -> Snapshot:
    """The first answer has a ring that no block's shared memory holds."""
    (best, under), *others = configs
    v = best.config.variant
    huge = KernelConfig(
        KernelVariant(v.block_m, v.block_n, 16), LaunchKnobs(num_sms=best.config.knobs.num_sms)
    )
    assert faults(huge, best.problem)
    terms = {label: replace(answer, config=huge) for label, answer in under.items()}
    return build_snapshot(H200, "NVIDIA H200", [(replace(best, config=huge), terms), *others])


def test_a_config_that_the_device_cannot_hold_is_never_used_whatever_the_source(
    client: Client, tmp_path: Path
) -> None:
    answers = [(best, dict(under)) for best, under in known()]
    damaged = illegal(answers)
    asked = answers[0][0].problem.shape
    path = tmp_path / "illegal.json"
    path.write_bytes(damaged.body)
    with behaving(sending(snapshot_response(damaged.body))) as server:
        for configs in (
            client(config_file=str(path)),
            client(api_url=server.url),
            client(api_url=server.url, offline="1"),
        ):
            best = configs.best_config(asked.m, asked.n, asked.k)
            assert best.tier != "exact"
            assert best.config is not None
            legal = KernelConfig.from_dict(best.config)
            assert faults(legal, answers[0][0].problem) == []
            whole = configs.best_config(2048, 2048, 2048)
            assert whole.tier == "exact"


@pytest.mark.parametrize("limit_s", [-1.0, 1e9])
def test_a_snapshot_that_was_not_checked_in_time_has_its_entries_checked_when_asked(
    limit_s: float, client: Client, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "CHECK_S", limit_s)
    answers = [(best, dict(under)) for best, under in known()]
    damaged, whole = illegal(answers), build_snapshot(H200, "NVIDIA H200", answers)
    for snapshot, tier in ((whole, "exact"), (damaged, "nearest")):
        with behaving(sending(snapshot_response(snapshot.body))) as server:
            for _ in range(2):  # from the server, and as it was kept
                configs = client(H200, api_url=server.url)
                assert configs.source == "server"
                shape = answers[0][0].problem.shape
                best = configs.best_config(shape.m, shape.n, shape.k)
                assert (best.tier, configs.best_config(2048, 2048, 2048).tier) == (tier, "exact")
    marks = {path.name[:64] for path in cache.glob("*.checked-*")}
    assert marks == ({whole.id} if limit_s > 0 else set())


def test_answers_made_for_another_kernel_or_an_older_compiler_are_marked(
    client: Client, ships: Ship, snapshot: Snapshot
) -> None:
    ships(snapshot)
    made_for = snapshot.entries[0]["kernel_hash"]
    for kernel_hash, stale in ((made_for, False), ("another", True)):
        configs = client(kernel_hash=kernel_hash)
        assert configs.best_config(*TUNED).stale is stale
        assert configs.best_config(*TUNED, protocol="graph-coldl2-hot/1").stale is stale
        assert configs.best_config(4096, 4096, 4104).stale is stale
    assert client().best_config(*TUNED).stale is False
    asked = problem(64, 64, 64)
    best, under = measured(asked, KernelConfig.from_dict(snapshot.entries[0]["config"]))
    later = replace(best.toolchain, nvrtc_version="99.0")
    newest = replace(best, toolchain=later)
    both = build_snapshot(H200, "NVIDIA H200", [*known(), (newest, under)])
    ships(both)
    configs = client(generation=both.id, kernel_hash=made_for)
    assert configs.best_config(*TUNED).stale is True
    assert configs.best_config(64, 64, 64).stale is False


def test_the_first_format_is_read_by_the_full_rules(client: Client, tmp_path: Path) -> None:
    body = build_snapshot(H200, "NVIDIA H200", [(best, {}) for best, _ in known()]).body
    path = tmp_path / "first.json"
    path.write_bytes(body.replace(b"gemm-tuner-snapshot/2", b"gemm-tuner-snapshot/1"))
    configs = client(config_file=str(path))
    assert configs.best_config(*TUNED, launch="plain").tier == "exact"


def test_the_package_ships_snapshots_that_are_what_they_are_called_and_legal_throughout() -> None:
    found = shipped()
    assert {told.device_key for told in found.values()} >= {H200}
    for id, told in found.items():
        snapshot = read_snapshot(told.body, id)
        assert len(snapshot.entries) >= 1
        for entry in snapshot.entries:
            extents = entry["shape"]
            GemmShape(extents["m"], extents["n"], extents["k"])
            assert len(entry["kernel_hash"]) == 16
            for answer in (entry, *entry["under"].values()):
                shape = GemmShape(extents["m"], extents["n"], extents["k"])
                asked = replace(problem(1, 1, 8), shape=shape, sms=entry["sms"], d=entry["d"])
                assert faults(KernelConfig.from_dict(answer["config"]), asked) == []
    kernels = {e["kernel_hash"] for t in found.values() for e in Snapshot(t.body).entries}
    assert len(kernels) == 1


def test_an_answer_does_not_change_and_can_be_sent_to_another_process() -> None:
    import pickle

    best = BestConfig((1, 2, 8), {"block_m": 64}, "kernel", "exact", "server", "id", "", {"a": 1})
    with pytest.raises(AttributeError, match="does not change"):
        best.tier = "model"
    with pytest.raises(AttributeError):
        del best.use
    assert pickle.loads(pickle.dumps(best)) == best
    assert best != BestConfig((1, 2, 8), None, "kernel", "exact", "server")
    assert repr(best) == "<BestConfig 1x2x8: kernel, tier exact, source server>"
