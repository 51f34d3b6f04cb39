"""Device memory in which thread blocks that split K exchange partial tiles."""

import cupy

from tuner.legality import MAX_PARTIALS_BYTES

MAX_COUNTERS = 1 << 16
"""More than the parts of all the tiles that fit in the partials."""
_COUNTER_BYTES = 4


class Workspace:
    """Counters, zero between launches, and room for partial tiles; one launch uses it at a time.

    Launches of one stream may share it, launches that can overlap may not. A kernel that was cut
    short leaves counters behind that would hold up the next one: `reset` before a kernel is proved.
    """

    def __init__(self) -> None:
        self._counters = cupy.zeros(MAX_COUNTERS, cupy.uint32)
        self._partials = cupy.empty(MAX_PARTIALS_BYTES, cupy.uint8)

    @property
    def arrivals_address(self) -> int:
        return int(self._counters.data.ptr)

    @property
    def partials_address(self) -> int:
        return int(self._partials.data.ptr)

    def reset(self) -> None:
        self._counters.fill(0)

    def poison(self) -> None:
        """Fill the partial tiles with NaN, so that one that is read too early shows."""
        self._partials.fill(0xFF)
