"""A route's report as one HTML file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from gatekeeper.reports.page_html import render_page

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.reports.route_report_figures import Report

__all__ = ["render_html"]

_SHORT = 12
_DIGEST = 64


def render_html(report: Report) -> str:
    """Return the whole page, with every figure's claim at its end."""
    anchors = {str(claim["id"]): f"c{i}" for i, claim in enumerate(report.claims, start=1)}
    inputs = {
        anchor: _inputs(claim["inputs"])
        for anchor, claim in zip(anchors.values(), report.claims, strict=True)
    }
    seen: dict[str, str] = {}
    same_inputs = {anchor: seen.setdefault(text, anchor) for anchor, text in inputs.items()}
    return render_page(
        "report.html", report, anchors=anchors, inputs=inputs, same_inputs=same_inputs
    )


def _inputs(inputs: Mapping[str, Any]) -> str:
    """Inputs as JSON; digests by their first characters."""
    return json.dumps({k: _short(v) for k, v in inputs.items()}, ensure_ascii=False)


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) == _DIGEST:
        return f"{value[:_SHORT]}…"
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return value
