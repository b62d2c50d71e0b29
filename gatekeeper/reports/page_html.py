"""Pages as one HTML file each: no script, no network, nothing beside it."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from functools import cache
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from gatekeeper.reports.charts import draw

if TYPE_CHECKING:
    from gatekeeper.reports.route_report_figures import Page

__all__ = ["render_page"]


@cache
def _environment() -> Environment:
    found = Environment(
        loader=PackageLoader("gatekeeper.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters.update(kind=_kind, draw=draw, exact=_exact)
    return found


def render_page(
    template: str,
    page: Page,
    *,
    anchors: dict[str, str] | None = None,
    **more: Any,  # noqa: ANN401 - what the template reads beside the page
) -> str:
    """Return a whole page; its policy forbids every request and every script.

    Args:
        template: name of a template that extends ``page.html``.
        page: what is on it.
        anchors: id of the place on the page that each claim leads to.
        more: further values of the template.
    """
    environment = _environment()
    css = environment.get_template("report.css").render().strip()
    digest = b64encode(hashlib.sha256(css.encode()).digest()).decode()
    return environment.get_template(template).render(
        page=page,
        anchors=anchors or {},
        css=Markup(css),  # noqa: S704 - our own file, no value in it
        csp=f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'",
        **more,
    )


def _kind(value: object) -> str:
    """Name of a piece or block, by which the template picks how to write it."""
    return type(value).__name__


def _exact(value: object) -> str:
    """Every digit of a figure; a sentence stands in the text above."""
    return "as quoted" if isinstance(value, str) else repr(value)
