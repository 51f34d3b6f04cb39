"""What a Hopper device offers, and how one is named."""

from dataclasses import dataclass
from math import ceil

from tuner.device_key import key_parts

SMEM_BYTES_PER_BLOCK = 232_448
"""CUDA C++ Programming Guide, "Compute Capabilities": 227 KB opt-in limit per block on 9.0."""
SMEM_ALIGNMENT_SLACK_BYTES = 1024
"""The kernel aligns its ring to 1024 B itself, as 128B swizzle requires."""
REGISTERS_PER_SM = 65_536
MAX_REGISTERS_PER_THREAD = 255
WARPGROUP_THREADS = 128
MAX_CLUSTER_SIZE = 8
"""The largest cluster every 9.0 device can place; 16 needs an opt-in and is not used."""
MAX_TMA_BOX_ROWS = 256
L2_LINE_BYTES = 128
MAX_HOPPER_SMS = 144
"""A GH100 die has no more; every part that is sold has fewer."""
MAX_WGMMA_N = 256
FLOP_PER_SM_CLOCK = 4096
"""Dense bf16 on sm_90: 512 fused multiply-adds in each of the four tensor cores of an SM."""
MAX_SM_CLOCK_MHZ = 2100.0
"""No Hopper part boosts higher; an H200 reaches 1980."""
PEAK_FLOP_PER_SM_US = FLOP_PER_SM_CLOCK * MAX_SM_CLOCK_MHZ
"""What one SM cannot exceed, so that a shorter time is a mistake and no measurement."""


@dataclass(frozen=True, slots=True)
class DeviceIdentity:
    """One physical device, read from the device that runs the trials.

    `memory_bytes` is the total NVML reports, which is what the memory class in `key` is made of:
    143,771 MiB on an H200 is 141, 81,559 MiB on an H100 is 80.
    """

    name: str
    compute_capability: tuple[int, int]
    sms: int
    memory_bytes: int
    uuid: str = ""
    driver: str = ""
    cublas_version: str = ""
    l2_bytes: int = 0

    @property
    def memory_gb(self) -> int:
        return ceil(self.memory_bytes / 2**30)

    @property
    def key(self) -> str:
        """Names what makes two devices alike for tuning, such as `sm90-132sm-141gb`."""
        major, minor = self.compute_capability
        return f"sm{major}{minor}-{self.sms}sm-{self.memory_gb}gb"


@dataclass(frozen=True, slots=True)
class DeviceClass:
    """What the key of a device tells of it."""

    capability: str
    sms: int
    memory_gb: int

    @property
    def is_hopper(self) -> bool:
        return self.capability == "sm90" and self.sms <= MAX_HOPPER_SMS


def device_class(key: str) -> DeviceClass | None:
    """What `key` tells; None if it is no key, such as a device's name."""
    told = key_parts(key)
    return DeviceClass(*told) if told else None
