"""One tuner per GPU, and nothing left behind by a dead one."""

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
    "with device_lock(Path(sys.argv[1]), 'GPU-1'):\n"
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
            device_lock(tmp_path, "GPU-1"),
        ):
            pass
        with device_lock(tmp_path, "GPU-2"):
            pass
        holder.kill()
        holder.wait()
    with device_lock(tmp_path, "GPU-1") as path:
        assert path.exists()


def test_a_lock_file_left_by_a_dead_process_locks_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / "gpu-GPU-1.lock").write_text("999999\n")
    with device_lock(tmp_path, "GPU-1") as path:
        assert path.read_text().strip() != "999999"


def test_a_name_that_is_no_file_name_stays_inside_the_folder(tmp_path: Path) -> None:
    with device_lock(tmp_path, "../../etc/passwd") as path:
        assert path.parent == tmp_path / "locks"


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(DeviceUnavailable, match="set TUNER_CACHE_DIR"),
        device_lock(tmp_path / "file", "GPU-1"),
    ):
        pass
