"""What the service is asked and what it answers, as OpenAPI shows it."""

from collections import Counter
from dataclasses import fields
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, create_model

from tuner.api.extents import Extent, whole_number
from tuner.api.question import Question
from tuner.config import KernelVariant, LaunchKnobs
from tuner.shape import MAX_EXTENT, GemmShape

MAX_PAGE = 1000

DeviceKey = Annotated[
    str | None,
    Field(
        description="Key of a device, such as `sm90-132sm-141gb`; /devices lists them. "
        "May be left out while only one device is stored."
    ),
]
Protocol = Literal["graph-coldl2-hot/1", "graph-coldl2-cool/1"]


class Query(BaseModel):
    """A query string; a parameter nobody reads is refused, so a typing error is seen."""

    model_config = ConfigDict(extra="forbid")


class BestConfigQuery(Query):
    """One tuning question."""

    m: Extent = Field(description="Rows of A and D.")
    n: Extent = Field(description="Columns of D; B is stored [N,K].")
    k: Extent = Field(description="Elements of a row of A and of B.")
    dtype: Literal["bf16"] = Field("bf16", description="Type of A, B and D.")
    layout: Literal["tn"] = Field("tn", description="A and B are both K-contiguous.")
    d: Literal["row", "col"] = Field("row", description="Memory order of D.")
    device: DeviceKey = None
    sms: Extent | None = Field(
        None, description="Multiprocessors the kernel may use; all of the device if left out."
    )
    protocol: Protocol | None = Field(
        None,
        description="Rank by one protocol only. Left out: the best geometric mean of both "
        "among the configs that lose to cuBLAS in neither.",
    )
    numerics: Literal["deterministic", "invariant"] | None = Field(
        None,
        description="`deterministic`: the same bits each time. `invariant`: the bits of a row "
        "do not depend on M either, so the config does not split K and no library product is "
        "recommended.",
    )
    launch: Literal["any", "plain"] = Field(
        "any",
        description="`plain`: a config without `dependent_launch`. `any`: it may have it, and is "
        "then to be launched with programmatic stream serialization, as it was measured.",
    )
    match: Literal["any", "exact"] = Field(
        "any", description="`exact` refuses an answer that was tuned for another shape."
    )

    @property
    def question(self) -> Question:
        shape = GemmShape(self.m, self.n, self.k)
        told = self.model_dump(exclude={"m", "n", "k"})
        return Question(shape, **told)


class ShapesQuery(Query):
    """One page of the shapes of a device."""

    device: DeviceKey = None
    limit: Annotated[int, Field(ge=1, le=MAX_PAGE), whole_number(1, MAX_PAGE)] = 100
    offset: Annotated[int, Field(ge=0, le=MAX_EXTENT), whole_number(0, MAX_EXTENT)] = 0


class Shape(BaseModel):
    """Extents of D[M,N] = A[M,K] x B[N,K]^T."""

    m: int
    n: int
    k: int


class Device(BaseModel):
    """What makes two devices alike for tuning, and a name to show."""

    key: str
    name: str


class StoredDevice(Device):
    """A device that something is stored for."""

    sms: int
    shapes: int = Field(description="Shapes it has results for.")


class Match(BaseModel):
    """Which shape the answer was tuned for."""

    tier: Literal["exact", "layer", "nearest", "sibling", "model"]
    from_shape: Shape | None


def _config_model() -> type[BaseModel]:
    """The flat form of KernelConfig, from the one place that names its fields."""
    # Any: create_model's overloads cannot see through fields made in a loop.
    members: dict[str, Any] = {
        f.name: (f.type, ...) for part in (KernelVariant, LaunchKnobs) for f in fields(part)
    }
    return create_model("Config", __config__=ConfigDict(extra="forbid"), **members)


Config = _config_model()


class Measured(BaseModel):
    """The time of the config; `ci95_us` is the 95 % interval of the median."""

    model_config = ConfigDict(extra="forbid")

    median_us: float
    tflops: float
    ci95_us: tuple[float, float]
    samples: int
    protocol: str


class Regret(BaseModel):
    """How much slower than the best config an answer is expected to be; 0.03 is 3 %."""

    model_config = ConfigDict(extra="forbid")

    mean: float
    p95: float
    cases: int = Field(description="Left-out shapes that this is estimated from.")


class Confidence(BaseModel):
    """How sure an answer is."""

    model_config = ConfigDict(extra="forbid")

    samples: int = Field(description="Times that were taken of this shape and config.")
    ci95_us: tuple[float, float] | None = Field(
        description="95 % interval of the median of the samples or, without them, of the time "
        "that is predicted."
    )
    expected_regret: Regret | None = Field(description="None for a measured answer.")
    distance: float | None = Field(
        description="Doublings to the tuned shape that the answer comes from."
    )


class Baseline(BaseModel):
    """The libraries, measured in the same rounds."""

    model_config = ConfigDict(extra="forbid")

    cublas_us: float | None
    cublaslt_best_us: float | None


class ProtocolResult(Measured, Baseline):
    """The config under one protocol; `speedup` is cuBLAS's time over ours."""

    speedup: float


class Library(BaseModel):
    """The routine that `use` names, and the cuBLAS version that was measured."""

    model_config = ConfigDict(extra="forbid")

    cublas_version: str | None
    algorithm: str | None


class BestConfig(BaseModel):
    """The fastest proven config; `use` says whether a library was faster still."""

    model_config = ConfigDict(extra="forbid")

    shape: Shape
    dtype: str
    layout: str
    d: str
    epilogue: str
    sms: int
    device: Device
    match: Match
    config: Config  # type: ignore[valid-type]  # made by create_model
    measurement: Measured | None
    baseline: Baseline | None
    speedup: float | None = Field(description="Geometric mean over `protocols` of theirs.")
    confidence: Confidence
    protocols: dict[str, ProtocolResult]
    use: Literal["kernel", "cublas", "cublaslt"]
    library: Library | None
    ties: list[Config] = Field(  # type: ignore[valid-type]
        description="Configs that the races cannot tell from this one."
    )
    numerics: Literal["invariant", "deterministic"]
    kernel_hash: str
    toolchain: str
    measured_at: datetime | None
    stale: bool = Field(description="Made with another kernel, compiler or driver.")
    source: Literal["measured", "replay", "import"]


def refuse_repeats(request: Request) -> None:
    """Raises: RequestValidationError for a parameter given twice, of which one would be ignored."""
    times = Counter(name for name, _ in request.query_params.multi_items())
    if repeated := sorted(name for name, count in times.items() if count > 1):
        raise RequestValidationError(
            [
                {
                    "type": "repeated",
                    "loc": ("query", name),
                    "msg": "given more than once",
                    "ctx": {"allowed": "given once"},
                    "input": f"{times[name]} times",
                }
                for name in repeated
            ]
        )
