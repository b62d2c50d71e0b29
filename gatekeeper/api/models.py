"""Request bodies. Unknown keys are errors: dropping one silently would hide a typo."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, StringConstraints

from gatekeeper.actions.identity import MAX_OVERLAP_S, MAX_RATE_PER_S, MAX_ROUTES, MAX_TTL_S
from gatekeeper.core.documents import check_json

__all__ = [
    "AliasBody",
    "ClaimBody",
    "ContextBody",
    "FailBody",
    "FinishBody",
    "GateRunBody",
    "HeartbeatBody",
    "OverrideBody",
    "RotationBody",
    "RouteBody",
    "TokenBody",
    "TryBody",
]

# PostgreSQL's text has no NUL; refused for both databases alike.
Name = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")
]
Text = Annotated[str, StringConstraints(max_length=10_000, pattern=r"^[^\x00]*$")]


def _storable(document: dict[str, Any]) -> dict[str, Any]:
    check_json(document)  # no NaN, no lone surrogate
    return document


Document = Annotated[dict[str, JsonValue], AfterValidator(_storable)]


class Body(BaseModel):
    """Base of all bodies."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=False)


class AliasBody(Body):
    """Where an alias shall point."""

    digest: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class RouteBody(Body):
    """What a route serves; no ``sampling`` means all that the artifact covers.

    A ``rollout`` that is left out stays as it is, and null ends it: a ramp must not end by omission.
    """

    slice: Name
    artifact: Name
    policy: Name
    rules: list[Document] = []
    slo: Document | None = None
    sampling: list[Document] = []
    task_rules: Document | None = None
    economics: Name | None = None
    rollout: Document | None = None


class TryBody(Body):
    """A policy to try on the past; no ``routes`` means those of its name."""

    document: Document
    days: Annotated[float, Field(gt=0, le=366)] = 30.0
    routes: Annotated[list[Name], Field(max_length=100)] = []


class GateRunBody(Body):
    """A gate run to queue, or to plan."""

    route: Name
    gate: Literal["equivalence", "serving", "outcome"]
    parameters: Document = {}
    priority: Annotated[int, Field(ge=-100, le=100)] = 0


class EngineOffer(Body):
    """An engine that a worker has."""

    name: Name
    version: Name


class DeviceOffer(Body):
    """Devices of one kind that a worker has."""

    kind: Literal["cpu", "cuda"]
    count: Annotated[int, Field(ge=1)] = 1
    memory_bytes: Annotated[int, Field(ge=0)] | None = None


class ClaimBody(Body):
    """A worker asking for work."""

    worker: Name
    engines: Annotated[list[EngineOffer], Field(min_length=1)]
    devices: Annotated[list[DeviceOffer], Field(min_length=1)]
    labels: dict[str, str] = {}
    run_id: Name | None = None
    lease_s: Annotated[float, Field(gt=0, le=3600)]


Fence = Annotated[int, Field(ge=0, le=2**31 - 1)]


class ProgressBody(Body):
    """How far a run is."""

    phase: Name
    done: Annotated[float, Field(ge=0)] | None = None
    total: Annotated[float, Field(ge=0)] | None = None
    seconds_left: Annotated[float, Field(ge=0)] | None = None
    note: Text | None = None


class HeartbeatBody(Body):
    """A worker that is still there."""

    fence: Fence
    progress: ProgressBody | None = None


class FinishBody(Body):
    """A worker's result; ``evidence`` maps each uploaded table to its sha256."""

    fence: Fence
    result: Document
    evidence: dict[str, str]
    info: Document | None = None
    acceptance: list[Document] = []


class FailBody(Body):
    """A worker that could not measure the run."""

    fence: Fence
    error: Text
    retry: bool


class ContextBody(Body):
    """What the caller knows of a request now; a fact left out cannot trigger its rule."""

    concurrency: Annotated[int, Field(ge=0)] | None = None
    context_tokens: Annotated[int, Field(ge=0)] | None = None
    remaining_tokens: Annotated[int, Field(ge=0)] | None = None
    acceptance: Annotated[float, Field(ge=0, le=1)] | None = None
    memory_utilisation: Annotated[float, Field(ge=0)] | None = None
    draft_queue: Annotated[int, Field(ge=0)] | None = None
    artifact: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None
    targeting_key: Annotated[str, StringConstraints(min_length=1, max_length=1000)] | None = None


class OverrideBody(Body):
    """Somebody's word over the gates'."""

    route: Name
    action: Literal["enable", "bypass"]
    reason: Annotated[str, StringConstraints(min_length=1, max_length=2_000, pattern=r"^[^\x00]+$")]
    ttl_s: Annotated[float, Field(gt=0)]
    gamma: Annotated[int, Field(ge=1, le=64)] | None = None


class TokenBody(Body):
    """A token to create.

    No ``ttl_s`` means that it lasts until it is revoked, no ``routes`` that it is for all, no
    ``rate_per_s`` that it has what the server allows every token.
    """

    name: Name
    role: Literal["reader", "ingester", "worker", "operator", "admin"]
    ttl_s: Annotated[float, Field(gt=0, le=MAX_TTL_S)] | None = None
    routes: Annotated[list[Name], Field(min_length=1, max_length=MAX_ROUTES)] | None = None
    rate_per_s: Annotated[float, Field(gt=0, le=MAX_RATE_PER_S)] | None = None


class RotationBody(Body):
    """How long the token that is replaced stays good."""

    overlap_s: Annotated[float, Field(ge=0, le=MAX_OVERLAP_S)] = 0.0
