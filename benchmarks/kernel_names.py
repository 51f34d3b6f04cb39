"""What the name of a library's kernel says of it: tile, stages, cluster, split K, schedule.

Only what a name states is read. Nothing documents these names; the meanings are those that fit the
launches: `nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT` is a tile of 128x256, slabs of 64 of K, four
stages and a cluster of 1x2.
"""

import re
from dataclasses import dataclass

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KernelName:
    """What is not stated is None, or False.

    tile: as the name orders it. types: letters or words for the element types. layout: the letters
    for how operands and output lie. schedule: the word for how consumers divide the work.
    """

    family: str
    tile: Pair | None = None
    tile_k: int | None = None
    stages: int | None = None
    cluster: Pair | None = None
    splits_k: bool = False
    schedule: str | None = None
    types: str | None = None
    layout: str | None = None

    def __str__(self) -> str:
        parts = [self.family]
        parts += ["x".join(map(str, self.tile))] if self.tile else []
        parts += [f"K {self.tile_k}"] if self.tile_k else []
        parts += [f"{self.stages} stages"] if self.stages else []
        parts += ["cluster " + "x".join(map(str, self.cluster))] if self.cluster else []
        parts += ["split K"] if self.splits_k else []
        parts += [self.schedule] if self.schedule else []
        return ", ".join(parts)


_NVJET = re.compile(
    r"nvjet_(?:sm\d+_)?(?P<types>[a-z]+)_(?P<tile>\d+x\d+)_(?P<k>\d+)x(?P<stages>\d+)_"
    r"(?P<cluster>\d+x\d+)_(?P<rest>\w+)"
)
_XMMA = re.compile(
    r"sm\d+_xmma_gemm_(?P<types>\w+?)_(?P<layout>[tn]{2}_[tn])_tilesize(?P<tile>\d+x\d+)x(?P<k>\d+)"
    r"(?:_stage(?P<early>\d+))?(?:_cgasize(?P<cluster>\d+x\d+)x\d+)?(?:_stage(?P<stages>\d+))?"
    r"(?P<rest>\w*)"
)
_CUTLASS3 = re.compile(
    r"cutlass3x_sm\d+_tensorop_(?:[a-z]\d+x\d+x\d+)?gemm_(?P<types>[a-z0-9_]+?)_(?P<tile>\d+x\d+)x"
    r"(?P<k>\d+)_(?P<cluster>\d+x\d+)x\d+_\d+_(?P<layout>[tn]{3})_align\d+(?P<rest>\w*)"
)
_CUTLASS2 = re.compile(
    r"cutlass_\d+_(?:wmma_)?tensorop_(?P<types>\w+?)_(?P<tile>\d+x\d+)_(?P<k>\d+)x(?P<stages>\d+)_"
    r"(?P<layout>[tn]{2})_align\d+"
)
_AMPERE = re.compile(
    r"(?:ampere|turing|volta)_(?P<types>\w+?)_(?P<tile>\d+x\d+)_\w*?(?:stages_(?P<k>\d+)x"
    r"(?P<stages>\d+)_)?(?P<layout>[tn]{2})\b"
)
_REDUCTION = re.compile(r"split_?k_?reduce|execute_split_k_kernel", re.IGNORECASE)
_VECTOR = re.compile(r"gemv|dot_kernel", re.IGNORECASE)
_SPLIT = re.compile(r"segment_k_on|split_?k(?!_off)|stream_?k", re.IGNORECASE)
_SCHEDULE = re.compile(r"pingpong|coop[A-Z]\b|cooperative")


def parse(name: str) -> KernelName:
    """Read one name, whole or as a profiler shortened it; `other` for what is not known."""
    if _REDUCTION.search(name):
        return KernelName("split-K reduction", splits_k=True)
    if found := _NVJET.search(name):
        return _nvjet(found)
    for family, pattern in (
        ("xmma", _XMMA),
        ("cutlass 3", _CUTLASS3),
        ("cutlass 2", _CUTLASS2),
        ("ampere", _AMPERE),
    ):
        if found := pattern.search(name):
            return _matched(family, found)
    if _VECTOR.search(name):
        return KernelName("matrix-vector")
    return KernelName("nvjet" if name.startswith("nvjet_") else "other")


def _nvjet(found: re.Match[str]) -> KernelName:
    words = found["rest"].split("_")
    layout = words[-1] if re.fullmatch(r"[TN]{3,4}", words[-1]) else None
    return KernelName(
        "nvjet",
        _pair(found["tile"]),
        int(found["k"]),
        int(found["stages"]),
        _pair(found["cluster"]),
        "splitK" in words,
        next((word for word in words if _SCHEDULE.fullmatch(word)), None),
        found["types"],
        layout,
    )


def _matched(family: str, found: re.Match[str]) -> KernelName:
    of_name = found.groupdict()
    rest = of_name.get("rest") or ""
    stages = of_name.get("stages") or of_name.get("early")
    cluster, k = of_name.get("cluster"), of_name.get("k")
    schedule = _SCHEDULE.search(rest)
    return KernelName(
        family,
        _pair(found["tile"]),
        int(k) if k else None,
        int(stages) if stages else None,
        _pair(cluster) if cluster else None,
        _SPLIT.search(rest) is not None,
        schedule[0] if schedule else None,
        found["types"],
        found["layout"],
    )


def _pair(text: str) -> Pair:
    first, second = text.split("x")
    return int(first), int(second)
