"""``gatekeeper value``: what a second is worth, as the outcomes of tasks show it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gatekeeper.cli.show import as_json_option, print_document, print_table, read_document
from gatekeeper.errors import EvidenceError, GatekeeperError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.core.outcomes import Outcomes
    from gatekeeper.core.time_value import AbandonmentFit

__all__ = ["value"]

_CONFIDENCE = 0.95
_TOLERANCE = 1e-9


@click.group()
def value() -> None:
    """What a second of a task is worth, from recorded outcomes."""


@value.command()
@click.argument("outcomes", type=click.Path(path_type=Path), metavar="OUTCOMES.csv")
@click.option(
    "--time",
    type=click.Choice(["log_seconds", "seconds"]),
    default="log_seconds",
    show_default=True,
    help="What the log odds of leaving are linear in.",
)
@click.option("--value-of-kept-task", type=float, help="Money that a task not abandoned is worth.")
@click.option("--route", help="Take the rows of this route alone.")
@click.option("--min-concurrency", type=click.IntRange(min=1), help="Take rows from this load on.")
@click.option("--max-concurrency", type=click.IntRange(min=1), help="Take rows up to this load.")
@click.option(
    "--replicates", default=1000, show_default=True, help="Bootstrap samples of sessions."
)
@click.option("--seed", default=20240229, show_default=True, help="Seed of the samples.")
@as_json_option
def fit(
    *,
    outcomes: Path,
    time: str,
    value_of_kept_task: float | None,
    route: str | None,
    min_concurrency: int | None,
    max_concurrency: int | None,
    replicates: int,
    seed: int,
    as_json: bool,
) -> None:
    """Fit how abandonment rises with a task's duration; print the rule for value_of_time.

    Columns of OUTCOMES.csv: duration_s (what the task took, or would have taken had the person
    stayed), abandoned (yes or no), session; where known route, concurrency, task. Exit 1 where the
    outcomes bear no curve: too few, separated by duration, or falling with it.
    """
    from gatekeeper.core.abandonment import duration_bands, fit_abandonment, fit_claims
    from gatekeeper.core.documents import plain
    from gatekeeper.core.time_value import Abandonment, TimeRule

    chosen = {
        "route": route,
        "min_concurrency": min_concurrency,
        "max_concurrency": max_concurrency,
    }
    read = _read(outcomes, chosen)
    found = fit_abandonment(
        read.table, data=read.data, time=time, replicates=replicates, seed=seed, rows=chosen
    )
    rule = TimeRule(
        routes=() if route is None else (route,),
        min_concurrency=min_concurrency,
        max_concurrency=max_concurrency,
        abandonment=Abandonment(found, value_of_kept_task),
    )
    document = {
        "rule": _without_null(plain(rule)),
        "confidence": _CONFIDENCE,
        "intervals": _intervals(found),
        "log_likelihood": _log_likelihoods(read),
        "bands": duration_bands(read.table, found),
        "claims": [claim.to_dict() for claim in fit_claims(found)],
    }
    if as_json:
        print_document(document)
    else:
        click.echo(_text(document, found))


@value.command()
@click.argument("outcomes", type=click.Path(path_type=Path), metavar="OUTCOMES.csv")
@click.argument("economics", type=click.Path(path_type=Path), metavar="ECONOMICS.yaml")
@as_json_option
def check(outcomes: Path, economics: Path, *, as_json: bool) -> None:
    """Fit OUTCOMES.csv again: does ECONOMICS.yaml carry what comes out? Exit 0 yes, 1 no."""
    import hashlib

    from gatekeeper.core.abandonment import fit_abandonment
    from gatekeeper.core.economics import Economics

    prices = Economics.from_dict(read_document(economics))
    data = hashlib.sha256(_bytes(outcomes)).hexdigest()
    curves = [
        (f"value_of_time[{i}]", rule.abandonment.fit)
        for i, rule in enumerate(prices.value_of_time)
        if rule.abandonment is not None and rule.abandonment.fit.data == data
    ]
    if not curves:
        raise EvidenceError(
            "carries no curve fitted from these outcomes",
            field="economics",
            value=f"{prices.name}; outcomes {data[:12]}",
            remedy="give the file whose sha256 is the fit's data, or fit it anew",
        )
    rows = []
    for where, recorded in curves:
        chosen = {n: getattr(recorded, n) for n in ("route", "min_concurrency", "max_concurrency")}
        again = fit_abandonment(
            _read(outcomes, chosen).table,
            data=data,
            time=recorded.time,
            replicates=recorded.replicates,
            seed=recorded.seed,
            rows=chosen,
        )
        rows += _compared(f"{where}.abandonment.fit", recorded, again)
    if as_json:
        print_document({"figures": rows})
    else:
        print_table(rows, {n: n for n in ("figure", "recorded", "recomputed", "agrees")}, "")
    sys.exit(0 if all(row["agrees"] for row in rows) else 1)


def _read(path: Path, chosen: Mapping[str, Any]) -> Outcomes:
    from gatekeeper.core.outcomes import read_outcomes

    return read_outcomes(_bytes(path), **chosen)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            (error.strerror or str(error)).lower(),
            field="outcomes",
            value=str(path),
            remedy="name a readable CSV file",
        ) from error


def _without_null(document: Any) -> Any:  # noqa: ANN401 - JSON
    """A document without the keys that say nothing."""
    if isinstance(document, dict):
        kept = {key: _without_null(item) for key, item in document.items()}
        return {key: item for key, item in kept.items() if item not in (None, [])}
    return document


def _intervals(found: AbandonmentFit) -> dict[str, list[float]]:
    from gatekeeper.core.abandonment import parameter_interval

    return {
        name: list(parameter_interval(found, name, _CONFIDENCE)) for name in ("log_odds", "slope")
    }


def _log_likelihoods(read: Outcomes) -> dict[str, float | None]:
    """How well each kind of time describes the tasks; None where it cannot be fitted."""
    from gatekeeper.core.abandonment import log_likelihood
    from gatekeeper.core.time_value import TIMES

    found: dict[str, float | None] = {}
    for time in TIMES:
        try:
            found[time] = log_likelihood(read.table, time)
        except GatekeeperError:
            found[time] = None
    return found


def _compared(where: str, recorded: AbandonmentFit, again: AbandonmentFit) -> list[dict[str, Any]]:
    from dataclasses import asdict

    from gatekeeper.core.documents import is_number, leaves, plain

    other = dict(leaves(plain(asdict(again))))
    rows = []
    for name, one in leaves(plain(asdict(recorded))):
        two = other.get(name)
        agrees = one == two
        if is_number(one) and is_number(two):
            agrees = math.isclose(one, two, rel_tol=_TOLERANCE, abs_tol=0.0)
        row = {"figure": f"{where}.{name}", "recorded": one, "recomputed": two, "agrees": agrees}
        rows.append(row)
    return rows


def _text(document: Mapping[str, Any], found: AbandonmentFit) -> str:
    """The rule as YAML, after what it rests on as comments: ready for an economics document."""
    import yaml

    from gatekeeper.reports.number_forms import count, digits, fixed, share

    (low, high), (flat, steep) = (document["intervals"][n] for n in ("log_odds", "slope"))
    unit = "logarithm of a second" if found.time == "log_seconds" else "second"
    estimates = (
        f"Log odds at {digits(found.at_s)} s: {digits(found.log_odds)} [{digits(low)}, "
        f"{digits(high)}], slope {digits(found.slope)} [{digits(flat)}, {digits(steep)}] per "
        f"{unit}: {share(document['confidence'])}, {count(found.replicates)} bootstrap samples of "
        "sessions."
    )
    abandoned = (
        f"{count(found.abandoned)} of {count(found.tasks)} tasks of {count(found.sessions)} "
        "sessions were abandoned."
    )
    lines = [
        abandoned,
        estimates,
        f"{'seconds':>19} {'tasks':>7} {'abandoned':>9} {'fitted':>8}",
    ]
    lines += [
        f"{digits(band['from_s']):>8} to {digits(band['to_s']):>7} {count(band['tasks']):>7} "
        f"{share(band['observed']):>9} {share(band['fitted']):>8}"
        for band in document["bands"]
    ]
    known = {k: v for k, v in document["log_likelihood"].items() if v is not None}
    likelihoods = ", ".join(f"{time} {fixed(value, 1)}" for time, value in known.items())
    lines.append(
        f"Log likelihood by --time, the greater describes the tasks better: {likelihoods}."
    )
    if flat <= 0:
        lines.append("The slope may be 0 by its interval, and so may what a saved second is worth.")
    if "value_of_kept_task" not in document["rule"]["abandonment"]:
        lines.append("Unknown until you add value_of_kept_task beside fit: what a kept task earns.")
    lines.append("For value_of_time of an economics document:")
    rule = yaml.safe_dump([document["rule"]], sort_keys=False)
    return "\n".join([*(f"# {text}" for text in lines), rule.rstrip()])
