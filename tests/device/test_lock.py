"""One tuner per GPU, and nothing left behind by a dead one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tuner.device.lock import device_lock
from tuner.errors import DeviceUnavailable

HOLD = (
    "import sys, time\n"
    "from pathlib import Path\n"
    "from tuner.device.lock import device_lock\n"
    "with device_lock('GPU-1', Path(sys.argv[1])):\n"
    "    print('held', flush=True)\n"
    "    time.sleep(60)\n"
)


def test_a_second_tuner_on_a_gpu_is_refused_at_once_and_told_who_has_it(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(DeviceUnavailable, match=f"tuner process {holder.pid}, which holds"),
            device_lock("GPU-1", tmp_path),
        ):
            pass
        with device_lock("GPU-2", tmp_path):
            pass
        holder.kill()
        holder.wait()
    with device_lock("GPU-1", tmp_path) as path:
        assert path.exists()


def test_a_lock_file_left_by_a_dead_process_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / "gpu-GPU-1.lock").write_text("999999\n")
    with device_lock("GPU-1", tmp_path) as path:
        assert path.read_text().strip() != "999999"


def test_a_name_that_is_no_file_name_stays_inside_the_folder(tmp_path: Path) -> None:
    with device_lock("../../etc/passwd", tmp_path) as path:
        assert path.parent == tmp_path


def test_the_folder_is_the_users_and_no_setting_moves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNER_CACHE_DIR", "TMPDIR", "XDG_RUNTIME_DIR", "HOME"):
        monkeypatch.setenv(name, "/elsewhere")
    with device_lock("GPU-of-this-test") as path:
        assert path == Path(f"/tmp/gemm-tuner-{os.getuid()}/gpu-GPU-of-this-test.lock")
        assert path.parent.stat().st_mode & 0o077 == 0
        path.unlink()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with (
            pytest.raises(DeviceUnavailable, match=f"make {folder} a folder that you can write"),
            device_lock("GPU-1", folder),
        ):
            pass


def test_a_link_where_the_folder_should_be_is_refused(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "locks").symlink_to(elsewhere)
    with (
        pytest.raises(DeviceUnavailable, match="is not yours"),
        device_lock("GPU-1", tmp_path / "locks"),
    ):
        pass
    assert list(elsewhere.iterdir()) == []
