"""The ``context`` table of an equivalence run: (name, value) pairs on what was tested and how."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.stats import tolerance
from gatekeeper.core.stats.eprocess import MEMBERS
from gatekeeper.errors import EvidenceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pandas as pd

    from gatekeeper.gates.equivalence_plan import Plan
    from gatekeeper.protocols import EngineInfo

__all__ = [
    "CONTINUES",
    "FACTS",
    "NOT_CONTINUED",
    "POSITIONS",
    "TEXT",
    "Context",
    "difference",
    "facts",
    "links",
    "pairs_of",
]

CONTINUES, NOT_CONTINUED = "continues", "not continued"
"""JSON objects: one for each earlier run, oldest first; the inconclusive run that was another test, with
the facts that differ."""

POSITIONS = "positions"
"""Name of a fact that stands only where no token's place in a window is known: ``unknown``."""

TEXT = "text of "
"""Begin of the name under which a token's text stands."""

FACTS = (
    "engine",
    "device",
    "vocabulary",
    "identity_rule",
    "dtype",
    "sigma",
    "delta",
    "gamma",
    "contract",
    "alternatives",
    "design",
    "setting",
    "deviation",
    POSITIONS,
)
"""What two runs of one test have in common."""

_OWN = frozenset({"order", "prompts", "greedy_prompts"})
"""Parts of a design that differ between two runs of one experiment."""


@dataclass(frozen=True)
class Context:
    """The ``context`` table, read.

    ``continues`` has the id, evidence digests and sampled tokens of each earlier run of the chain.
    ``strata`` are those that the tolerance is judged in.
    """

    rule: str
    sigma: float
    delta: float
    gamma: int
    contract: str
    greedy_prompts: int
    settings: tuple[str, ...]
    deviation: float | None
    design: Mapping[str, Any] | None
    continues: tuple[Mapping[str, Any], ...]
    not_continued: Mapping[str, Any] | None
    texts: Mapping[int, str]
    strata: tuple[str, ...]

    @classmethod
    def read(cls, table: pd.DataFrame) -> Context:
        """Read the table.

        Raises:
            EvidenceError: a fact that every run writes is not there.
        """
        named = table.groupby("name")["value"].agg(list).to_dict()
        try:
            return cls(
                rule=named["identity_rule"][0],
                sigma=float(named["sigma"][0]),
                delta=float(named["delta"][0]),
                gamma=int(named["gamma"][0]),
                contract=named["contract"][0],
                greedy_prompts=int(named["greedy_prompts"][0]),
                settings=tuple(named.get("setting", ())),
                deviation=float(named["deviation"][0]) if "deviation" in named else None,
                design=json.loads(named["design"][0]) if "design" in named else None,
                continues=links(table),
                not_continued=json.loads(named.get(NOT_CONTINUED, ["null"])[0]),
                texts={
                    int(str(name).removeprefix(TEXT)): found[0]
                    for name, found in named.items()
                    if str(name).startswith(TEXT)
                },
                strata=("all",) if POSITIONS in named else ("window", "bonus"),
            )
        except KeyError as error:
            raise EvidenceError(
                f"lacks {error.args[0]}", field="context", remedy="run the gate again"
            ) from error


def facts(plan: Plan, info: EngineInfo, noise: tuple[float, float]) -> list[tuple[str, str]]:
    """Rows of ``context`` on what was tested and how; ``noise`` are σ and δ.

    Two runs whose facts agree, up to the seed and the prompts drawn, are one experiment.
    """
    names = "\n".join((*MEMBERS, *tolerance.FEATURES))
    deviation = plan.deviation
    return [
        ("engine", f"{info.name} {info.version}"),
        ("device", info.device),
        ("vocabulary", str(info.vocab_size)),
        ("identity_rule", info.identity_rule),
        ("dtype", info.dtype),
        ("sigma", repr(noise[0])),
        ("delta", repr(noise[1])),
        ("gamma", str(plan.gamma)),
        ("contract", plan.contract),
        ("alternatives", hashlib.sha256(names.encode()).hexdigest()[:16]),
        ("design", json.dumps(plan.design, sort_keys=True)),
        *(("setting", s.label) for s in plan.settings),
        *([] if deviation is None else [("deviation", repr(deviation))]),
        *([] if plan.positions else [(POSITIONS, "unknown")]),
    ]


def links(context: pd.DataFrame) -> tuple[dict[str, Any], ...]:
    """Earlier runs that a ``context`` table names, oldest first."""
    named = context.loc[context["name"] == CONTINUES, "value"]
    return tuple(json.loads(value) for value in named)


def difference(earlier: pd.DataFrame, own: Iterable[tuple[str, str]]) -> list[str]:
    """Names of the facts of an earlier ``context`` table that differ from a run's own."""
    before, now = _by_name(pairs_of(earlier)), _by_name(own)
    return [name for name in FACTS if before.get(name) != now.get(name)]


def pairs_of(context: pd.DataFrame) -> list[tuple[str, str]]:
    """The rows of a ``context`` table."""
    return [(str(n), str(v)) for n, v in context[["name", "value"]].itertuples(index=False)]


def _by_name(pairs: Iterable[tuple[str, str]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(_common(json.loads(value)) if name == "design" else value)
    return found


def _common(design: Mapping[str, Any]) -> dict[str, Any]:
    """What two runs of one test have in common of a design: not what the tokens so far make of it."""
    effect = design.get("declared_effect") or {}
    return {
        **{key: value for key, value in design.items() if key not in _OWN},
        "declared_effect": [effect.get("share"), effect.get("power")],
    }
