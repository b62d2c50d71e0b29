"""The abandonment curve: what the library says, what sessions do to it, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from abandonment_cases import outcomes
from statsmodels.discrete.discrete_model import Logit
from statsmodels.genmod.families import Binomial
from statsmodels.genmod.generalized_linear_model import GLM

from gatekeeper.core.abandonment import (
    MIN_OUTCOMES,
    MIN_SESSIONS,
    _newton,
    abandoned_share,
    duration_bands,
    fit_abandonment,
    fit_claims,
    log_likelihood,
    parameter_interval,
)
from gatekeeper.core.equations import verify
from gatekeeper.errors import EvidenceError, InputError

DATA = "a" * 64
TABLE = outcomes(0)


def fitted(table: pd.DataFrame = TABLE, **changes: Any) -> Any:
    return fit_abandonment(table, **{"data": DATA, "replicates": 200, **changes})


@pytest.mark.parametrize("time", ["log_seconds", "seconds"])
def test_the_estimate_is_the_librarys_and_sessions_are_its_clusters(time: str) -> None:
    table = outcomes(3, time=time, slope=1.2 if time == "log_seconds" else 0.1)
    found = fitted(table, time=time, replicates=1000)
    duration = table["duration_s"].to_numpy()
    at = found.at_s
    z = np.log(duration / at) if time == "log_seconds" else duration - at
    design = np.column_stack([np.ones_like(z), z])
    groups = {"groups": table["session"].to_numpy()}
    known = Logit(table["abandoned"].to_numpy(), design).fit(
        disp=0, tol=1e-10, cov_type="cluster", cov_kwds=groups
    )
    assert (found.log_odds, found.slope) == pytest.approx(tuple(known.params), rel=1e-7)
    # the sandwich estimates the same spread another way
    ratio = np.sqrt(np.diag(found.covariance) / np.diag(known.cov_params()))
    assert ratio == pytest.approx([1, 1], abs=0.12)
    share = abandoned_share(
        duration, time=time, at_s=at, log_odds=found.log_odds, slope=found.slope
    )
    assert share == pytest.approx(known.predict(design), rel=1e-6)


def test_a_bootstrap_sample_is_a_weighted_fit() -> None:
    rng = np.random.default_rng(5)
    z = np.log(TABLE["duration_s"].to_numpy() / 8)
    y = TABLE["abandoned"].to_numpy(float)
    session = TABLE["session"].to_numpy()
    times = np.stack([np.bincount(rng.integers(0, 150, 150), minlength=150) for _ in range(3)])
    found = _newton(z, y, times[:, session].astype(float), (-1.0, 1.0))
    design = np.column_stack([np.ones_like(z), z])
    for weight, mine in zip(times[:, session], found, strict=True):
        model = GLM(y, design, family=Binomial(), freq_weights=weight)
        assert mine == pytest.approx(model.fit(tol=1e-12).params, rel=1e-6)


def test_a_sample_that_separates_has_no_estimate() -> None:
    z = np.linspace(-1, 1, 40)
    weight = np.ones((1, 40))
    assert np.isnan(_newton(z, (z > 0).astype(float), weight, (0.0, 1.0))).all()
    assert np.isnan(_newton(z, np.zeros(40), weight, (0.0, 1.0))).all()


def test_tasks_of_a_session_are_one_observation() -> None:
    doubled = pd.concat([TABLE] * 4, ignore_index=True)
    once, often = fitted(), fitted(doubled)
    assert (often.log_odds, often.slope) == pytest.approx((once.log_odds, once.slope))
    assert np.allclose(often.covariance, once.covariance, rtol=1e-6)
    # as if each copy were somebody else's: half the spread
    apart = doubled.assign(session=np.repeat(range(4), len(TABLE)) * 1000 + doubled["session"])
    narrow = fitted(apart)
    assert np.sqrt(narrow.covariance[1][1] / once.covariance[1][1]) == pytest.approx(0.5, abs=0.1)


def test_the_interval_is_the_estimate_and_a_t_quantile() -> None:
    found = fitted()
    low, high = parameter_interval(found, "slope", 0.95)
    assert (low + high) / 2 == pytest.approx(found.slope)
    assert (high - low) / 2 == pytest.approx(1.976 * np.sqrt(found.covariance[1][1]), rel=1e-3)


def test_the_same_data_and_seed_give_the_same_fit() -> None:
    assert fitted() == fitted()
    assert fitted(seed=7).covariance != fitted().covariance
    assert fitted(seed=7).slope == fitted().slope


def test_the_better_time_has_the_greater_likelihood() -> None:
    for time, slope in (("log_seconds", 2.0), ("seconds", 0.2)):
        table = outcomes(1, sessions=400, time=time, slope=slope)
        other = "seconds" if time == "log_seconds" else "log_seconds"
        assert log_likelihood(table, time) > log_likelihood(table, other) + 3


def test_bands_hold_each_task_once_and_the_fit_meets_the_observed_total() -> None:
    found = fitted()
    bands = duration_bands(TABLE, found)
    assert len(bands) == 10
    assert sum(band["tasks"] for band in bands) == len(TABLE)
    # a maximum of the likelihood has as many expected as observed
    expected = sum(band["fitted"] * band["tasks"] for band in bands)
    assert expected == pytest.approx(sum(band["abandoned"] for band in bands))
    coarse = TABLE.assign(duration_s=TABLE["duration_s"].round(-1) + 5)
    assert sum(b["tasks"] for b in duration_bands(coarse, fitted(coarse))) == len(TABLE)


def test_every_figure_of_a_fit_recomputes_from_its_outcomes() -> None:
    claims = fit_claims(fitted())
    assert {c.inputs["figure"] for c in claims} >= {"log_odds", "slope", "covariance.11"}
    assert all(row.agrees for row in verify(claims, lambda name, sha: TABLE))
    assert {c.inputs["evidence"] for c in claims} == {DATA}
    other = TABLE.assign(
        abandoned=np.where(TABLE.index == 0, 1 - TABLE["abandoned"], TABLE["abandoned"])
    )
    assert not any(
        row.agrees
        for row in verify(claims, lambda name, sha: other)
        if row.claim.inputs["figure"] != "at_s"
    )


# --- refused, each with its reason


def refused(table: pd.DataFrame, kind: type[Exception] = EvidenceError) -> Any:
    with pytest.raises(kind) as caught:
        fitted(table)
    assert type(caught.value) is kind
    assert caught.value.remedy
    return caught.value


def test_too_few_of_either_outcome_or_of_sessions_are_refused() -> None:
    gone = TABLE[TABLE["abandoned"] == 1]
    kept = TABLE[TABLE["abandoned"] == 0]
    few = MIN_OUTCOMES - 1
    assert refused(pd.concat([gone.head(few), kept])).field == "outcomes.abandoned"
    assert refused(pd.concat([gone, kept.head(few)])).field == "outcomes.kept"
    error = refused(TABLE.assign(session=TABLE["session"] % (MIN_SESSIONS - 1)))
    assert (error.field, error.value) == ("outcomes.sessions", MIN_SESSIONS - 1)
    assert refused(TABLE.head(0)).field == "outcomes.abandoned"


def test_durations_that_tell_nothing_or_everything_are_refused() -> None:
    assert "does not vary" in refused(TABLE.assign(duration_s=4.0)).message
    cut = TABLE["duration_s"] > 12
    for abandoned in (cut, ~cut):
        error = refused(TABLE.assign(abandoned=abandoned.astype(int)))
        assert "separates" in error.message
    # one length of task holds both outcomes and no other does
    two = TABLE.assign(duration_s=np.where(cut, 20.0, 5.0))
    mixed = (two["duration_s"] == 20) & (two["session"] % 2 == 0)
    assert "separates" in refused(two.assign(abandoned=mixed.astype(int))).message


def test_a_curve_that_falls_is_refused_and_says_which_duration_to_give() -> None:
    error = refused(outcomes(0, slope=-1.0))
    assert error.field == "outcomes.slope"
    assert "whole duration" in error.remedy
    # as where the clock stops when the person leaves: the abandoned are cut short
    table = outcomes(0)
    left = table["abandoned"] == 1
    early = table.assign(duration_s=np.where(left, table["duration_s"] / 8, table["duration_s"]))
    assert refused(early).field == "outcomes.slope"


def test_a_fit_that_one_session_carries_is_refused() -> None:
    kept = TABLE[TABLE["abandoned"] == 0]
    lost = pd.DataFrame({"duration_s": np.linspace(9, 30, 30), "abandoned": 1, "session": 7})
    error = refused(pd.concat([kept, lost], ignore_index=True))
    assert "few sessions" in error.message


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("duration_s", float("nan")),
        ("duration_s", float("inf")),
        ("duration_s", 0.0),
        ("duration_s", -1.0),
        ("abandoned", float("nan")),
        ("abandoned", 0.5),
        ("abandoned", 2),
    ],
)
def test_cells_that_are_no_outcome_are_refused_with_their_row(column: str, value: float) -> None:
    table = TABLE.astype({"abandoned": float})
    table.loc[4, column] = value
    error = refused(table, InputError)
    assert error.field == f"outcomes.{column}"
    assert "row 5" in error.value


def test_a_missing_column_an_unknown_time_and_too_few_samples_are_refused() -> None:
    assert refused(TABLE.drop(columns="session"), InputError).field == "outcomes.session"
    for changes in ({"time": "minutes"}, {"replicates": 20}):
        with pytest.raises(InputError) as caught:
            fitted(**changes)
        assert caught.value.field == next(iter(changes))
