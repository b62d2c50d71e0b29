"""A route's report as one HTML file: no script, no network, nothing beside it."""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatekeeper.reports.charts import draw

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.reports.route_report_figures import Report

__all__ = ["render_html"]

_SHORT = 12
_DIGEST = 64


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("gatekeeper.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(kind=_kind, draw=draw, exact=_exact, inputs=_inputs)
    return found


def render_html(report: Report) -> str:
    """Return the whole page; its policy forbids every request and every script."""
    environment = _environment()
    css = environment.get_template("report.css").render().strip()
    digest = b64encode(hashlib.sha256(css.encode()).digest()).decode()
    anchors = {str(claim["id"]): f"c{i}" for i, claim in enumerate(report.claims, start=1)}
    seen: dict[str, str] = {}
    same_inputs = {
        anchor: seen.setdefault(_inputs(claim["inputs"]), anchor)
        for anchor, claim in zip(anchors.values(), report.claims, strict=True)
    }
    return environment.get_template("report.html").render(
        report=report,
        anchors=anchors,
        same_inputs=same_inputs,
        css=Markup(css),  # noqa: S704 - our own file, no value in it
        csp=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
    )


def _kind(value: object) -> str:
    """Name of a piece or block, by which the template picks how to write it."""
    return type(value).__name__


def _exact(value: object) -> str:
    """Every digit of a figure; a sentence stands in the text above."""
    return "as quoted" if isinstance(value, str) else repr(value)


def _inputs(inputs: Mapping[str, Any]) -> str:
    """Inputs as JSON; digests by their first characters."""
    return json.dumps({k: _short(v) for k, v in inputs.items()}, ensure_ascii=False)


def _short(value: object) -> object:
    if isinstance(value, str) and len(value) == _DIGEST:
        return f"{value[:_SHORT]}…"
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    return value
