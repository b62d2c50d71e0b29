"""What a plain page rests on: a run, what it tested, and the claim of every number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.core.running_pair import is_running_pair
from gatekeeper.errors import InputError
from gatekeeper.reports import number_forms as forms
from gatekeeper.reports import route_claims
from gatekeeper.reports.route_report_figures import Ledger, Mark, RunFigures

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gatekeeper.reports.route_report_figures import Piece

__all__ = ["STICKS", "Case", "collect"]

STICKS = "Testing again does not lift this verdict."

_FOUND = {
    "PASS": Mark("no difference", "good"),
    "FAIL": Mark("a difference", "bad"),
    "INCONCLUSIVE": Mark("undecided", "warn"),
    "ERROR": Mark("not comparable", "bad"),
}
_NOTHING = Mark("nothing compared", "plain")


def collect(
    run: Mapping[str, Any],
    artifact: Mapping[str, Any],
    policy: Mapping[str, Any],
    claims: Iterable[Mapping[str, Any]],
    *,
    prompts: Mapping[str, str],
    written_at: str,
) -> dict[str, Any]:
    """Join what the API knows of a run into the document of one page.

    ``run`` is the answer of ``GET /v1/gate-runs/{id}``, ``artifact`` and ``policy`` their documents,
    ``claims`` the ledger's of this run, ``prompts`` the texts of its workload by id.

    Raises:
        InputError: the run is of another gate.
    """
    if run["gate"] != "equivalence":
        raise InputError(
            "is not explained: only equivalence runs are",
            field="gate",
            value=run["gate"],
            remedy=f"gatekeeper gate show {run['id']}, or gatekeeper report {run['route']}",
        )
    result = run["result"] or {}
    evidence = {table["table"]: table["sha256"] for table in run["evidence"]}
    known = [
        *claims,
        *route_claims.judged(run["id"], "equivalence", result, evidence),
        *route_claims.derived(run["route"], {"equivalence": {"result": result}}),
    ]
    for kind, document in (("artifact", artifact), ("policy", policy)):
        digest = run[kind]
        name = f"{kind}/{digest}"
        known += route_claims.declared(name, document, {kind: digest}, f"{kind} document")
    example = (result.get("summary") or {}).get("counter_example") or {}
    return {
        "run": dict(run),
        "artifact": dict(artifact),
        "policy": dict(policy),
        "prompt": prompts.get(example.get("prompt", "")),
        "claims": known,
        "written_at": written_at,
    }


@dataclass(frozen=True)
class Case:
    """The document of one page, read. ``prompt`` is the counter-example's text, where known."""

    run: Mapping[str, Any]
    artifact: Mapping[str, Any]
    policy: Mapping[str, Any]
    prompt: str | None
    figures: RunFigures

    @classmethod
    def read(cls, document: Mapping[str, Any], ledger: Ledger) -> Case:
        """Read what ``collect`` made; the figures cite ``ledger``."""
        run = document["run"]
        figures = RunFigures(ledger, run["id"], "equivalence", run["result"] or {})
        return cls(run, document["artifact"], document["policy"], document["prompt"], figures)

    @property
    def outcome(self) -> str | None:
        """None while there is no result."""
        found: str | None = self.figures.value("outcome")
        return found

    @property
    def measured(self) -> bool:
        """Whether anything was compared that a verdict could rest on."""
        return bool(self.figures.value("summary"))

    @property
    def exact(self) -> bool:
        """Whether the artifact promises the very text of the model alone."""
        contract = self.figures.value("summary.contract") or self.artifact["acceptance"]["contract"]
        return bool(contract == "exact")

    @property
    def servers(self) -> bool:
        """Whether two servers that already run were compared from outside."""
        return is_running_pair(self.artifact)

    @property
    def again(self) -> str:
        """The command that tests the route again."""
        return f"gatekeeper gate run {self.run['route']} equivalence"

    @property
    def parts(self) -> dict[str, str]:
        """Outcome of each part by its name."""
        return {part["name"]: part["outcome"] for part in self.figures.value("parts") or ()}

    def found(self, part: str) -> Mark:
        """What a part of the verdict found; a part that is not there compared nothing."""
        return _FOUND.get(self.parts.get(part, ""), _NOTHING)

    def count(self, path: str, own: str | None = None) -> Piece:
        """Whole number at a path of the result."""
        return self.figures.figure(path, forms.count, own)

    def declared(self, kind: str, path: str) -> Piece:
        """Whole number of the ``artifact``'s or the ``policy``'s document."""
        value: Any = self.artifact if kind == "artifact" else self.policy
        for key in path.split("."):
            value = None if value is None else value.get(key)
        return self.figures.ledger.figure(value, forms.count, f"{kind}/{self.run[kind]}/{path}")
