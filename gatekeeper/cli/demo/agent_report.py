"""The agent's figures as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gatekeeper.reports import number_forms as forms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["lines"]


def lines(document: Mapping[str, Any], value: Mapping[str, Any] | None = None) -> list[str]:
    """Say what was predicted, what was observed, and whether they agree; ceiling first.

    ``value`` is the pricing of the route: its own saving is set beside the predicted one.
    """
    predicted, observed = document["predicted_s"], document["observed_s"]
    if predicted is None:
        return ["No task could be compared:", *(f"  {line}" for line in document["problems"])]
    n = sum(row["problem"] is None for row in document["tasks"])
    ratios = "; ".join(
        f"{s['value']:.2f}× ({s['low']:.2f}–{s['high']:.2f}) at {s['concurrency']}"
        for s in document["speedup"]
    )
    ceiling = (
        f"{n} task{'s' if n > 1 else ''} in each arm, baseline {document['baseline_wall_s']:.2f} s "
        f"a task; infinitely fast decoding would save {document['ceiling_s']:.2f} s."
    )
    said = [
        ceiling,
        f"  predicted saving {_interval(predicted)} from the baseline's traces at {ratios}",
        f"  observed saving  {_interval(observed)} ({_level(document['confidence'])})",
        f"  {_verdict(document)}",
        *_bridge(value),
    ]
    waits = [row for row in document["tasks"] if row["problem"] is None and _tool_bound(row)]
    if waits:
        said.append(
            f"  In {_tasks(waits)} the parallel calls wait for a slower tool: faster decoding of "
            f"them saves {_s(max(row['branch_predicted_s'] for row in waits))} s there."
        )
    return [*said, *(f"  left out: {line}" for line in document["problems"])]


def _bridge(value: Mapping[str, Any] | None) -> list[str]:
    """Why the route's report has another saving, where it has one."""
    saved, speedup = (value or {}).get("saved_s"), (value or {}).get("speedup")
    if value is None or saved is None or speedup is None:
        return []
    text = (
        f'  The route\'s report has {forms.duration(saved["value"])} as "Saved on the critical path": '
        f"there every call gains {speedup['ratio']:.2f}×, as measured at concurrency "
        f"{speedup['concurrency']}, the worst that passed, over all {forms.count(value['tasks'])} "
        "priced tasks; here each call gains what was measured at its own concurrency. The time added "
        "before first tokens is in neither; the value takes it off."
    )
    return [text]


def _interval(found: Mapping[str, float | None]) -> str:
    value, low, high = (found[end] for end in ("value", "low", "high"))
    if low is None or high is None:
        return f"{_s(value)} s (no interval: too few tasks)"
    return f"{_s(value)} s ({_s(low)} to {_s(high)})"


def _s(seconds: float | None) -> str:
    """Hundredths, with a true minus sign."""
    return "unknown" if seconds is None else f"{seconds:.2f}".replace("-", "−")


def _level(confidence: float) -> str:
    return f"paired t, each bound at {100 * confidence:g} %"


def _verdict(document: Mapping[str, Any]) -> str:
    if document["agrees"] is None:
        return "Whether they agree cannot be said: too few tasks, or no evidence of the noise."
    where = "within" if document["agrees"] else "OUTSIDE"
    text = (
        f"The observed mean lies {where} the predicted interval widened by "
        f"{document['widening_s']:.2f} s, its own uncertainty."
    )
    ratio = document["decode_ratio"]
    if not document["agrees"] and ratio is not None:
        text += f" The decode of these tasks itself was {ratio:.2f}× as fast."
    return text


def _tool_bound(row: Mapping[str, Any]) -> bool:
    """Whether the tool, not the branch, was on the critical path of the baseline."""
    return bool(row["critical_path_s"].get("tool", 0.0) > row["tool_s"] / 2)


def _tasks(rows: Sequence[Mapping[str, Any]]) -> str:
    numbers = ", ".join(str(row["task"] + 1) for row in rows)
    return f"task{'s' if len(rows) > 1 else ''} {numbers}"
