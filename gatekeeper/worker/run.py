"""A claimed run, as the API hands it to a worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.policy_schema import Policy, Slo
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ClaimedRun"]


@dataclass(frozen=True)
class ClaimedRun:
    """What to measure, and the fence under which results may be written.

    ``sampling`` are the settings the route covers; ``slo`` is the route's own, None where the
    policy's holds.
    """

    id: str
    gate: str
    route: str
    slice: str
    artifact_digest: str
    artifact: Mapping[str, Any]
    policy: Policy
    parameters: Mapping[str, Any]
    attempt: int
    fence: int
    cancel_requested: bool
    sampling: tuple[SamplingSettings, ...]
    slo: Slo | None

    @property
    def engine_name(self) -> str:
        """Entry point of the engine that the artifact names."""
        return str(self.artifact["engine"]["name"])

    @property
    def device(self) -> str:
        """Device kind that the artifact names."""
        return str(self.artifact["engine"].get("device", "cpu"))

    @property
    def continues(self) -> tuple[str, Mapping[str, str]] | None:
        """Id of the inconclusive run that this one goes on from, and the sha256 of its tables.

        Raises:
            InputError: the server's words for it are not understood.
        """
        named = self.parameters.get("continues")
        if named is None:
            return None
        try:
            return str(named["run"]), {str(k): str(v) for k, v in named["evidence"].items()}
        except (TypeError, KeyError, AttributeError) as error:
            raise InputError(
                "is not a run and its evidence",
                field="parameters.continues",
                value=named,
                remedy="run a worker of the same release as the server",
            ) from error

    @property
    def max_batch(self) -> int:
        """Slots the engine needs for every gate of the policy, so that one engine serves all."""
        policy = self.policy
        levels = (*policy.serving.concurrency, policy.outcome.concurrency)
        return max(policy.equivalence.max_batch, *levels)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ClaimedRun:
        """Read the ``run`` of a claim's answer.

        Raises:
            InputError: a key is missing, or a part cannot be read.
        """
        try:
            artifact, policy, slo = document["artifact"], document["policy"], document.get("slo")
            sampling = document.get("sampling") or artifact["document"]["sampling"]
            return cls(
                id=str(document["id"]),
                gate=str(document["gate"]),
                route=str(document["route"]),
                slice=str(document["slice"]),
                artifact_digest=str(artifact["digest"]),
                artifact=artifact["document"],
                policy=Policy.from_dict(policy["document"]),
                parameters=document.get("parameters") or {},
                attempt=int(document["attempt"]),
                fence=int(document["fence"]),
                cancel_requested=bool(document.get("cancel_requested", False)),
                sampling=tuple(SamplingSettings.from_dict(s) for s in sampling),
                slo=None if slo is None else Slo(slo.get("ttft_s"), slo.get("tpot_s")),
            )
        except KeyError as error:
            raise InputError(
                "is missing from the claimed run",
                field=str(error.args[0]),
                remedy="run a worker of the same release as the server",
            ) from error
