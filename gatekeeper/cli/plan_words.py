"""A gate's plan in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["print_limits", "print_plan"]

_WHOLE = 1000
"""From here on three digits are whole numbers."""

_NAMES = {
    "slice": "workload",
    "tokens": "tokens at most",
    "settings": "sampling settings",
    "gammas": "windows (gamma)",
    "declared_effect": "smallest fault to be found",
    "tokens_to_pass_tolerance": "tokens to pass the tolerance, a setting",
    "tolerance_attainable": "tolerance can be passed within the budget",
    "prospect": "can end in",
}
"""Figures that are not called as their key is."""


def print_plan(plan: Mapping[str, Any]) -> None:
    """Print a plan, one line for each of its figures."""
    click.echo(f"plan: {plan['gate']} of {plan['route']}, policy {plan['policy']}")
    click.echo(f"  minutes: {_minutes(plan)}")
    known = plan.get("minutes") is not None
    if "minutes_if" in plan and not known:
        click.echo(f"  minutes, were one stream as fast as said: {_said(plan['minutes_if'])}")
    if "minutes_at_most" in plan:
        from gatekeeper.load import REQUEST_LIMIT_S

        most = _said(plan["minutes_at_most"])
        click.echo(
            f"  minutes at most, with every answer given up at its limit of {REQUEST_LIMIT_S:g} s: "
            f"{most}"
        )
    skip = {"gate", "route", "policy", "minutes", "minutes_from", "rates", "artifact", "limits"}
    skip |= {"minutes_if", "minutes_at_most", "minutes_at_least"}
    for key, value in plan.items():
        if key not in skip and value is not None:
            name = _NAMES.get(key, key.replace("_", " "))
            click.echo(f"  {name}: {_WORDS.get(key, _said)(value)}")


def print_limits(plans: Sequence[Mapping[str, Any]]) -> None:
    """Print once what no run of these plans leads to."""
    found = list(dict.fromkeys(limit for plan in plans for limit in plan.get("limits", ())))
    if found:
        click.echo("what these servers cannot be given:")
    for limit in found:
        click.echo(f"  {limit}")


def _minutes(plan: Mapping[str, Any]) -> str:
    """What the last run took, else a bound from speeds, with what each rests on."""
    if plan.get("minutes") is None:
        return f"unknown ({plan['rates'].removeprefix('unknown: ')})"
    minutes, least = _said(float(plan["minutes"])), plan.get("minutes_at_least")
    if plan.get("minutes_from") == "last_run":
        return f"about {minutes} (what the last run of this gate took)"
    lower = "" if least is None else f", at least {_said(float(least))}"
    return f"at most about {minutes}{lower} (every answer at full length; speeds {plan['rates']})"


def _said(value: object) -> str:
    """Say a figure with three digits, a number of things whole, alternatives as what each holds for."""
    from gatekeeper.reports.number_forms import count, digits

    if isinstance(value, dict):
        return ", ".join(f"{_said(item)} at {name}" for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_said, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, (int, float)):
        return "not stated" if value is None else str(value)
    return count(value) if isinstance(value, int) or abs(value) >= _WHOLE else digits(value, 3)


def _settings(labels: Sequence[str]) -> str:
    """Sampling settings by the names that a request has for them."""
    return "; ".join(
        label.replace("T=", "temperature=").replace(" ", ", ").replace("=", " ").replace("_", "-")
        for label in labels
    )


def _effect(effect: Mapping[str, Any]) -> str:
    needed = _said(effect["tokens_needed"])
    least, most = (_said(float(effect[f"power_at_{end}"])) for end in ("least", "most"))
    fits = "within the budget" if effect["within_budget"] else "more than the budget has"
    return (
        f"{effect['share']:.0%} of the tokens drafted and not checked, to be found with probability "
        f"{_said(float(effect['power']))}: that needs {needed} tokens, {fits}; the run finds it with "
        f"probability {least} at its fewest tokens, {most} at its most"
    )


def _power(power: object) -> str:
    """Probability to find each of the reference faults, or the gate's own sentence."""
    if not isinstance(power, dict):
        return _said(power)
    chances = ", ".join(f"{_said(float(chance))} {fault}" for fault, chance in power.items())
    return f"probability to find each of these faults within the tokens: {chances}"


def _each(needed: Mapping[str, int]) -> str:
    return ", ".join(f"{_said(tokens)} for the {place}" for place, tokens in needed.items())


_WORDS: dict[str, Callable[[Any], str]] = {
    "settings": _settings,
    "sampling": lambda label: _settings([label]),
    "declared_effect": _effect,
    "attainable_power": _power,
    "tokens_to_pass_tolerance": _each,
}
