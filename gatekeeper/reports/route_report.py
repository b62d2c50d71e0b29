"""A route's report, laid out from the document of ``GET /v1/reports/{route}``.

The layout is the same on a terminal, in HTML and in Markdown: sections of paragraphs, facts,
tables and charts, in which every number is tied to its claim. Nothing is computed here.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gatekeeper.core.running_pair import is_running_pair
from gatekeeper.core.watch_alarms import REARMED_BY, raised_by
from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.gate_commands import (
    HOW_TO_PRICE,
    OUTCOME_REFUSED,
    outcome_elsewhere,
    run_command,
    runs_here,
)
from gatekeeper.reports.route_report_delivered import delivered_sections
from gatekeeper.reports.route_report_figures import (
    UNKNOWN,
    Block,
    Facts,
    Items,
    Ledger,
    Line,
    Mark,
    Paragraph,
    Report,
    Section,
    Table,
    line,
)
from gatekeeper.reports.route_report_gates import (
    gate_groups,
    investigate,
    moment,
    most_in_window,
    run_figures,
)
from gatekeeper.reports.route_report_serving import serving_sections
from gatekeeper.reports.route_report_terms import terms_section
from gatekeeper.reports.route_report_value import outcome_section, value_section

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["lay_out"]

_HEADLINE = {
    "equivalence_failed": "speculation does not keep the target's output",
    "serving_failed": "no load region showed a gain",
    "outcome_failed": "tasks succeed less often, or cost more per success",
    "value_negligible": "what is gained is not worth owning it",
    "insufficient_evidence": "the evidence does not support enabling yet",
    "gates_passed": "every mandatory gate passed",
    "override": "set by hand",
    "below_promise": "tasks save less time than was promised",
    "slower_than_holdout": "tasks take longer than those of the holdout",
    "success_dropped": "tasks succeed less often than those of the holdout",
}


def lay_out(document: Mapping[str, Any]) -> Report:
    """Lay out one report document.

    Raises:
        KeyError: the document is not one of this version's.
    """
    ledger = Ledger.of(document["claims"])
    lease = document["decision"]
    runs = {
        gate: run_figures(ledger, gate, entry)
        for gate, entry in document["gates"].items()
        if entry is not None
    }
    explanation = ledger.quote(lease["explanation"], f"decision/{lease['route']}/explanation")
    facts = _decision_facts(document, ledger)
    sections = (
        Section("gates", "The three gates", gate_groups(document, ledger)),
        *serving_sections(document, runs.get("serving")),
        outcome_section(runs.get("outcome")),
        value_section(document, ledger),
        *delivered_sections(document, ledger),
        Section("change", "What would change it", _change(document, ledger)),
        Section("provenance", "Policy, artifact, engine", _provenance(document, ledger)),
        Section("history", "History and overrides", _history(document, ledger)),
    )
    said = (facts, Paragraph((explanation,)), *(b for one in sections for b in one.blocks))
    return Report(
        subject=lease["route"],
        question="Should route {} decode speculatively?",
        headline=_headline(document),
        tone="good" if lease["action"] == "enable" else "plain",
        explanation=(explanation,),
        facts=facts,
        sections=(*sections, *terms_section(said)),
        claims=tuple(ledger.cited.values()),
        known_claims=len(ledger.claims),
        unclaimed=tuple(ledger.unclaimed),
        generated_at=moment(document["generated_at"]),
        source=f"/v1/reports/{lease['route']}",
    )


def _headline(document: Mapping[str, Any]) -> str:
    """The decision as one sentence: action, and why in a clause."""
    lease = document["decision"]
    clause = _HEADLINE.get(lease["reason"], str(lease["reason"]).replace("_", " "))
    equivalence = document["gates"].get("equivalence")
    if lease["reason"] == "equivalence_failed" and (equivalence or {}).get("outcome") != "FAIL":
        clause = "the artifact is approximate and the policy demands exact decoding"
    return f"{str(lease['action']).capitalize()}: {clause}"


def _decision_facts(document: Mapping[str, Any], ledger: Ledger) -> Facts:
    lease = document["decision"]
    at = f"decision/{lease['route']}"
    rows: list[tuple[str, Line]] = [("Holds", _holds(document))]
    if lease["action"] == "enable":
        rows.append(("Window", _windows(lease, ledger, at)))
        rows.append(("Inside", _envelope(lease, ledger, at)))
    value = lease["value"]
    if value is not None:
        named = {
            "per_task": forms.money(value["currency"]),
            "low": forms.amount,
            "high": forms.amount,
        }
        amounts = {k: ledger.figure(value[k], form, f"{at}/value.{k}") for k, form in named.items()}
        rows.append(
            (
                "Value",
                line(amounts["per_task"], " [", amounts["low"], ", ", amounts["high"], "] a task"),
            )
        )
    rows.append(
        (
            "Clients",
            line(
                "ask again after ",
                ledger.figure(lease["ttl_s"], forms.duration, f"{at}/ttl_s"),
                " and bypass once an answer is older than ",
                ledger.figure(
                    max(lease["ttl_s"], lease["max_stale_s"]),
                    forms.duration,
                    f"{at}/max_stale_s",
                    f"{at}/ttl_s",
                ),
            ),
        )
    )
    _, counter = lease["version"]  # the epoch is a clock's number, for machines
    rows.append(("Decided", (f"{moment(lease['decided_at'])}, version {counter}",)))
    return Facts(tuple(rows))


def _holds(document: Mapping[str, Any]) -> Line:
    """Until when, and what ends it."""
    lease, reason = document["decision"], document["decision"]["reason"]
    expires = lease["evidence_expires_at"]
    if reason == "override":
        return (f"until {moment(expires)}, when the override ends and the gates decide again",)
    if lease["action"] == "enable":
        current = {g["gate"]: g["expires_at"] for g in lease["gates"] if g["mandatory"]}
        first = min(current, key=lambda gate: current[gate] or "", default="")
        return (f"until {moment(expires)}, when the evidence of the {first} gate expires",)
    if reason in {"equivalence_failed", "serving_failed", "outcome_failed"}:
        return ("until a new artifact or policy version: a FAIL does not expire",)
    if reason == "value_negligible":
        return ("until the pricing, the evidence or the policy's minimum changes",)
    if reason in REARMED_BY:
        alarm = f"the {raised_by(reason)}'s alarm"
        return (f"until evidence begun after {alarm} passes; bypass is always safe",)
    return ("until the missing evidence is there; bypass is always safe",)


def _windows(lease: Mapping[str, Any], ledger: Ledger, at: str) -> Line:
    whole = line("γ = ", ledger.figure(lease["gamma"], forms.count, f"{at}/gamma"))
    by_load = lease["gamma_by_concurrency"]
    if not by_load:
        return whole
    parts: Line = ()
    for load, gamma in by_load.items():
        claim = f"{at}/gamma_by_concurrency.{load}"
        parts = line(
            parts,
            ", " if parts else "",
            f"{load} concurrent: ",
            ledger.figure(gamma, forms.count, claim),
        )
    return line(whole, " at any load of the envelope; ", parts)


_LIMITS = (
    ("max_concurrency", "up to {} concurrent requests", forms.count),
    ("max_context_tokens", "context up to {} tokens", forms.count),
    ("min_remaining_tokens", "at least {} tokens left", forms.count),
    ("min_acceptance", "acceptance at least {}", forms.share),
    ("max_memory_utilisation", "memory use up to {}", forms.share),
    ("max_draft_queue", "draft queue up to {}", forms.count),
)


def _envelope(lease: Mapping[str, Any], ledger: Ledger, at: str) -> Line:
    found: Line = ()
    for name, phrase, form in _LIMITS:
        limit = lease["envelope"].get(name)
        if limit is not None:
            before, _, after = phrase.partition("{}")
            figure = ledger.figure(limit, form, f"{at}/envelope.{name}")
            found = line(found, ", " if found else "", before, figure, after)
    return found or ("no limits",)


def _change(document: Mapping[str, Any], ledger: Ledger) -> tuple[Block, ...]:
    lease = document["decision"]
    items: list[Line] = []
    for gate in lease["gates"]:
        if gate["mandatory"]:
            items += _gate_changes(document, ledger, gate)
    pricing, at = document["value"] or {}, f"pricing/{document['route']}"
    for i, need in enumerate(pricing.get("still_needed", ())):
        quoted = ledger.quote(need, f"{at}/still_needed[{i}]")
        items.append(line("Pricing needs ", quoted, "."))
    if pricing.get("still_needed"):
        listed = f"gatekeeper traces list --route {shlex.quote(document['route'])}"
        items.append((f"The tasks that a pricing has so far: {listed}. {HOW_TO_PRICE}.",))
    for i, sentence in enumerate(pricing.get("what_would_change", ())):
        items.append((ledger.quote(sentence, f"{at}/what_would_change[{i}]"),))
    if lease["reason"] == "override":
        items.insert(
            0, ("Clearing the override: gatekeeper override clear, then the gates decide.",)
        )
    if lease["reason"] in REARMED_BY:
        gates, who = " and ".join(REARMED_BY[lease["reason"]]), raised_by(lease["reason"])
        items.insert(0, (f"Running again what the policy demands of {gates}: the {who} alarmed.",))
    if lease["action"] == "enable":
        items += [
            (
                "Expiry of the evidence, a new artifact or a new policy version: bypass until gated again.",
            ),
            ("Request by request: load, context, memory or acceptance outside the envelope.",),
        ]
    blocks: list[Block] = [Items(tuple(items or [("Nothing is open.",)]))]
    look = investigate(document)
    if look is not None:
        blocks += [Paragraph(("Where to look first:",)), look]
    return tuple(blocks)


def _gate_changes(
    document: Mapping[str, Any], ledger: Ledger, gate: Mapping[str, Any]
) -> list[Line]:
    name, entry = gate["gate"], document["gates"][gate["gate"]]
    if entry is None:
        return _running(document, name)
    if entry["outcome"] == "FAIL":
        return [
            (f"Another artifact or policy version that passes {name}; the failed run stands.",),
            *(_break_even(document, ledger) if name == "serving" else []),
        ]
    if entry["state"] == "expired":
        return [(f"Running the {name} gate again: its evidence has expired.",)]
    if entry["outcome"] != "PASS":
        figures = run_figures(ledger, name, entry)
        needed: Line = ("a run that completes",)
        if figures.value("still_needed"):
            needed = (figures.quote("still_needed"),)
        return [line(f"{name.capitalize()} is {entry['outcome']}; it still needs ", needed, ".")]
    return []


def _running(document: Mapping[str, Any], gate: str) -> list[Line]:
    """How a gate that has not run is run, or what settles it where it cannot be."""
    route = document["route"]
    if runs_here(gate, on_servers=is_running_pair(document["artifact"]["document"])):
        return [(f"Running the {gate} gate: {run_command(route, gate)}.",)]
    return [(f"{OUTCOME_REFUSED.capitalize()}; {how}.",) for how in outcome_elsewhere(route)]


def _break_even(document: Mapping[str, Any], ledger: Ledger) -> list[Line]:
    """How far each load is from paying."""
    figures = run_figures(ledger, "serving", document["gates"]["serving"])
    lines: list[Line] = []
    for i, region in enumerate(figures.value("summary.regions") or ()):
        load = region["concurrency"]
        claim = f"report/{document['route']}/break_even.c{load}"
        if claim in ledger.claims:
            lines.append(
                line(
                    f"At {load} concurrent, a round commits ",
                    figures.figure(
                        f"summary.regions[{i}].mean_accepted_length",
                        forms.plain,
                        f"mean_accepted_length.c{load}",
                    ),
                    " tokens and must commit ",
                    ledger.figure(ledger.claims[claim]["value"], forms.plain, claim),
                    " to take no longer than ordinary decoding.",
                )
            )
    return lines


def _provenance(document: Mapping[str, Any], ledger: Ledger) -> tuple[Block, ...]:
    policy, artifact = document["policy"], document["artifact"]
    body = artifact["document"]
    target, proposer, engine = (body.get(k) or {} for k in ("target", "proposer", "engine"))
    acceptance = body.get("acceptance") or {}
    minimum = policy["document"].get("minimum_value")
    wanted: Line = ("none demanded",)
    if minimum:
        name = f"policy/{policy['digest']}/minimum_value.per_task"
        form = forms.money(minimum["currency"])
        wanted = line(ledger.figure(minimum["per_task"], form, name), " a task")
    gamma = ledger.figure(body.get("gamma"), forms.count, f"artifact/{artifact['digest']}/gamma")
    rows: list[tuple[str, Line]] = [
        ("Policy", (f"{policy['name']}, {policy['digest']}",)),
        ("Demands", (", ".join(policy["document"].get("mandatory_gates", ())) or UNKNOWN,)),
        ("Minimum value", wanted),
        ("Artifact", (artifact["digest"],)),
        (
            "Target",
            (f"{target.get('source', UNKNOWN)}, revision {target.get('revision') or UNKNOWN}",),
        ),
        ("Proposer", line(str(proposer.get("kind", UNKNOWN)), most_in_window(gamma))),
        (
            "Contract",
            (
                f"{acceptance.get('contract', UNKNOWN)}, {acceptance.get('method', UNKNOWN)} acceptance",
            ),
        ),
        (
            "Engine declared",
            (
                ", ".join(
                    str(engine.get(k, UNKNOWN))
                    for k in ("name", "version", "dtype", "kv_dtype", "device")
                ),
            ),
        ),
    ]
    rows += [
        (f"Read back by {gate}", _read_back(entry, ledger))
        for gate, entry in document["gates"].items()
        if entry is not None
    ]
    return (Facts(tuple(rows)),)


def _read_back(entry: Mapping[str, Any], ledger: Ledger) -> Line:
    info = entry["engine"]
    if info is None:
        return (UNKNOWN,)
    at = f"run/{entry['run']}/engine"
    words = [str(info[k]) for k in ("name", "version", "device", "dtype") if info.get(k)]
    found: Line = (", ".join(words),)
    for name, phrase in (("max_batch", ", batch up to "), ("max_context", ", context up to ")):
        if info.get(name) is not None:
            found = line(found, phrase, ledger.figure(info[name], forms.count, f"{at}/{name}"))
    return found


def _history(document: Mapping[str, Any], ledger: Ledger) -> tuple[Block, ...]:
    decisions = tuple(
        (
            (moment(row["decided_at"]),),
            (Mark(row["action"], "good" if row["action"] == "enable" else "plain"),),
            (str(row["reason"]).replace("_", " "),),
            (f"{row['artifact'][:12]}",),
            (".".join(str(part) for part in row["version"]),),
        )
        for row in document["history"]
    )
    columns = ("decided", "action", "reason", "artifact", "version")
    blocks: list[Block] = [Table("Latest decisions", columns, decisions, numeric=False)]
    if not document["overrides"]:
        return (*blocks, Paragraph(("No override has ever been set.",), muted=True))
    rows = []
    for row in document["overrides"]:
        action: Line = (row["action"],)
        if row["gamma"] is not None:
            claim = f"override/{row['id']}/gamma"
            action = line(action, ", window ", ledger.figure(row["gamma"], forms.count, claim))
        ended = f"expires {moment(row['expires_at'])}"
        if row["cleared_at"] is not None:
            ended = f"cleared {moment(row['cleared_at'])} by {row['cleared_by']}"
        elif row["expires_at"] <= document["generated_at"]:
            ended = f"expired {moment(row['expires_at'])}"
        rows.append(
            ((moment(row["created_at"]),), action, (row["actor"],), (row["reason"],), (ended,))
        )
    columns = ("set", "action", "by", "reason", "end")
    return (*blocks, Table("Overrides", columns, tuple(rows), numeric=False))
