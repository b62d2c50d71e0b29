"""Arms of a rollout: which targeting keys speculate, by one hash for server and client.

    digest   = SHA-256 of the UTF-8 bytes of salt, NUL, key
    position = first 53 bits of eight bytes of it, big-endian, over 2^53: in [0, 1)

Bytes 0 to 7 give the key's place for the holdout, bytes 8 to 15 its place in the ramp. The two are
independent, and so are the places of one key on two routes, since the salt is the route's name. A
step changes no place: a larger share lets keys in and puts none out.

Imported by clients on the request path, so it loads the standard library alone.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ARMS",
    "ARM_ATTRIBUTE",
    "BASELINE",
    "CANDIDATE",
    "HOLDOUT",
    "MIXED",
    "ORDINARY",
    "Split",
    "places",
]

ARM_ATTRIBUTE = "gatekeeper.arm"
"""Span attribute that carries the arm of the decision that a call was made under."""

CANDIDATE, BASELINE, HOLDOUT = "candidate", "baseline", "holdout"
"""Speculates; not in yet at this step; never in."""

ARMS = (CANDIDATE, BASELINE, HOLDOUT)
ORDINARY = (BASELINE, HOLDOUT)
"""Arms that decode without speculation: what the candidate is compared with."""

MIXED = "mixed"
"""Arm of a task whose calls carry several, or only some of them one: it is in no figure."""

_BITS = 53


@dataclass(frozen=True)
class Split:
    """Who takes part in an enable.

    ``holdout`` of all keys never do; of the others ``share`` do now, which is 0 in a bypass. ``step``
    counts from 1, is 0 in a bypass and None under an override; ``steps`` is how many there are.
    """

    salt: str
    share: float
    holdout: float
    step: int | None
    steps: int

    def __post_init__(self) -> None:
        for name in ("share", "holdout"):
            value = getattr(self, name)
            if not (math.isfinite(value) and 0 <= value <= 1):
                raise ValueError(f"rollout.{name}={value!r} is not a share")

    @property
    def whole(self) -> bool:
        """Whether every key is in, so that a request without one is too."""
        return self.share >= 1 and self.holdout <= 0

    @property
    def reached(self) -> float:
        """Share of all keys that speculate."""
        return self.share * (1 - self.holdout)

    def arm(self, key: str) -> str:
        """Arm of a targeting key."""
        held, ramp = places(self.salt, key)
        if held < self.holdout:
            return HOLDOUT
        return CANDIDATE if ramp < self.share else BASELINE

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form; ``from_dict`` reads it back."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Split:
        """Read ``to_dict`` back; fields that a newer server added are left out.

        Raises:
            KeyError: a field is missing.
            TypeError, ValueError: a share is none.
        """
        step = document["step"]
        return cls(
            salt=str(document["salt"]),
            share=float(document["share"]),
            holdout=float(document["holdout"]),
            step=None if step is None else int(step),
            steps=int(document["steps"]),
        )


def places(salt: str, key: str) -> tuple[float, float]:
    """Places of a key in [0, 1): for the holdout, and in the ramp."""
    # JSON may hold a lone surrogate, which must not stop the request path
    digest = hashlib.sha256(f"{salt}\0{key}".encode("utf-8", "surrogatepass")).digest()
    held, ramp = digest[0:8], digest[8:16]
    return _place(held), _place(ramp)


def _place(part: bytes) -> float:
    # 53 bits are what a float holds exactly: 64 would round up to 1
    return (int.from_bytes(part, "big") >> (64 - _BITS)) / (1 << _BITS)
