"""A gate's plan in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["print_plan"]

_WHOLE = 1000
"""From here on three digits are whole numbers."""


def print_plan(plan: Mapping[str, Any]) -> None:
    """Print a plan, one line for each of its figures."""
    minutes = "unknown" if plan.get("minutes") is None else _said(float(plan["minutes"]))
    click.echo(f"plan: {plan['gate']} of {plan['route']}, policy {plan['policy']}")
    click.echo(f"  minutes: {minutes} (speeds {plan['rates']})")
    if "minutes_if" in plan:
        click.echo(f"  minutes, were one stream as fast as said: {_said(plan['minutes_if'])}")
    if "minutes_at_most" in plan:
        from gatekeeper.load import REQUEST_LIMIT_S

        most = _said(plan["minutes_at_most"])
        click.echo(
            f"  minutes at most, with every answer given up at its limit of {REQUEST_LIMIT_S:g} s: "
            f"{most}"
        )
    skip = {"gate", "route", "policy", "minutes", "rates", "artifact"}
    skip |= {"minutes_if", "minutes_at_most"}
    for key, value in plan.items():
        if key not in skip and value is not None:
            click.echo(f"  {key.replace('_', ' ')}: {_said(value)}")


def _said(value: object) -> str:
    """Say a figure with three digits, a number of things whole, alternatives as what each holds for."""
    from gatekeeper.reports.number_forms import count, digits

    if isinstance(value, dict):
        return ", ".join(f"{_said(item)} at {name}" for name, item in value.items())
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return count(value) if isinstance(value, int) or abs(value) >= _WHOLE else digits(value, 3)
