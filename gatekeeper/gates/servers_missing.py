"""What two running servers do not show, and what would: the limits of every verdict about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.verdicts import Outcome, Part

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Missing", "account", "missing", "parts", "readings"]


@dataclass(frozen=True)
class Missing:
    """One thing unknown: what was seen in its place, and what would supply it."""

    name: str
    seen: str
    supply: str


def readings(servers: Any) -> dict[str, dict[str, str]]:  # noqa: ANN401 - the ``servers`` table
    """Read the ``servers`` table (``arm``, ``name``, ``value``) as one mapping an arm."""
    found: dict[str, dict[str, str]] = {}
    for arm, name, value in servers[["arm", "name", "value"]].itertuples(index=False):
        found.setdefault(str(arm), {})[str(name)] = str(value)
    return found


def missing(
    said: Mapping[str, Mapping[str, str]],
    *,
    targets: str = "",
    drafted: float | None = None,
    sampled: str = "no sampled text was compared",
) -> list[Missing]:
    """List what cannot be verified.

    ``targets`` tells what the texts say about the weights, ``drafted`` the tokens that the
    candidate's counters show per round with a draft, ``sampled`` what comparing samples gave.
    """
    both = {
        name: f"{said.get('baseline', {}).get(name, 'not said')} and "
        f"{said.get('candidate', {}).get(name, 'not said')}"
        for name in ("model", "version", "fingerprint")
    }
    gamma = said.get("pair", {}).get("gamma", "unknown")
    declared = "not declared" if gamma == "unknown" else f"declared as {gamma}"
    counted = "" if drafted is None else f"; its counters show {drafted:.1f} tokens a draft"
    return [
        Missing(
            "weights of both servers",
            f"they name the models {both['model']}; {targets}",
            "the sha256 of the model files that each server loaded: register the pair as files",
        ),
        Missing(
            "version of both servers",
            f"they say {both['version']}, fingerprints {both['fingerprint']}",
            "an engine pinned by the artifact, with a version that voids evidence when it changes",
        ),
        Missing(
            "gamma",
            f"{declared}, and no server discloses its window{counted}",
            "--gamma with the configured window, and counters that show the tokens drafted",
        ),
        Missing(
            "acceptance method and sampler",
            "no server tells how it accepts drafts",
            "the launch configuration as an artifact: its acceptance method and thresholds",
        ),
        Missing(
            "tokenizer and chat template",
            "each server applies its own",
            "the sha256 of the tokenizer files of target and draft",
        ),
        Missing(
            "sampled distribution",
            f"{sampled}; a client sees tokens and no target probabilities, and comparing two "
            "samples of texts misses mild and bonus-only faults even at 100,000 tokens",
            "the target's files (--target), with which the tokens are scored here; or an "
            "EVIDENCE.npz for gatekeeper equivalence check",
        ),
    ]


def parts(found: Sequence[Missing]) -> list[Part]:
    """One mandatory INCONCLUSIVE part for each: nothing unknown passes."""
    return [
        Part(one.name, Outcome.INCONCLUSIVE, f"unverified: {one.seen}; supply {one.supply}")
        for one in found
    ]


def account(found: Sequence[Missing]) -> list[dict[str, str]]:
    """JSON-able list for the summary."""
    return [{"what": one.name, "seen": one.seen, "supply": one.supply} for one in found]
