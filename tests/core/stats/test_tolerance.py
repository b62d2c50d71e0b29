from typing import Any

import numpy as np
import pandas as pd
import pytest

from gatekeeper.core.stats import tolerance
from gatekeeper.core.stats.tolerance import Sequences, bounds, judge
from gatekeeper.core.verdicts import Outcome
from gatekeeper.errors import EvidenceError

DECLARED = Sequences(window=0.02, bonus=0.05, pass_alpha=0.05, fail_alpha=0.001, count=24)


def table(*rows: tuple[Any, ...]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["stratum", "feature", "n", "s", "v"])


def test_enough_tokens_without_deviation_pass() -> None:
    outcome, rows = judge(table(("window", "f", 20_000, 0.0, 4000.0)), DECLARED)
    assert outcome is Outcome.PASS
    assert rows["low"][0] < 0 < rows["high"][0]


def test_a_clear_deviation_fails_and_few_tokens_are_inconclusive() -> None:
    bad = ("window", "f", 20_000, 1000.0, 4000.0)
    few = ("window", "f", 100, 0.0, 20.0)
    assert judge(table(bad), DECLARED)[0] is Outcome.FAIL
    assert judge(table(few), DECLARED)[0] is Outcome.INCONCLUSIVE
    assert judge(table(few, bad), DECLARED)[0] is Outcome.FAIL


def test_no_rows_is_inconclusive() -> None:
    assert judge(table(), DECLARED)[0] is Outcome.INCONCLUSIVE
    assert judge(table(("window", "f", 0, 0.0, 0.0)), DECLARED)[0] is Outcome.INCONCLUSIVE


def test_strata_have_their_own_tolerance() -> None:
    row = (3000, 60.0, 300.0)
    assert judge(table(("bonus", "f", *row)), DECLARED)[0] is Outcome.PASS
    assert judge(table(("window", "f", *row)), DECLARED)[0] is Outcome.INCONCLUSIVE
    assert DECLARED.of("all") == DECLARED.window


def test_a_feature_that_never_varies_still_needs_tokens() -> None:
    # v = 0 must not make the bound collapse at n = 1.
    low, high = bounds(1, 0, 0, 0.02, 0.05)
    assert low < -0.9
    assert high > 0.9


def test_the_bound_is_the_formula_of_fan_grama_liu() -> None:
    lam = tolerance.lambdas(0.02)
    n, s, v, a = 5000.0, 30.0, 700.0, 0.01
    by_hand = min((np.log(3 / a) + (-np.log(1 - x) - x) * v) / (x * n) for x in lam)
    low, high = bounds(n, s, v, 0.02, a)
    assert low == pytest.approx(s / n - by_hand)
    assert high == pytest.approx(s / n + by_hand)


def test_fail_needs_more_than_pass_excludes() -> None:
    # 24 sequences share the level, so leaving the .05 band is not yet a FAIL.
    n, v = 20_000, 4000.0
    low, _ = bounds(n, 0.032 * n, v, 0.02, DECLARED.pass_alpha)
    assert low > 0.02
    status = DECLARED.status("window", np.array([n]), np.array([0.032 * n]), np.array([v]))
    assert status.tolist() == [0]


def test_statistics_add_over_requests() -> None:
    y = np.random.default_rng(0).uniform(-1, 1, (50, len(tolerance.FEATURES)))
    y[:, 4] = np.nan
    bonus = np.arange(50) % 5 == 4
    whole = tolerance.sufficient(y, bonus)
    halves = pd.concat(
        [tolerance.sufficient(y[:20], bonus[:20]), tolerance.sufficient(y[20:], bonus[20:])]
    )
    added = halves.groupby(["stratum", "feature"], as_index=False)[["n", "s", "v"]].sum()
    merged = whole.merge(added, on=["stratum", "feature"])
    assert len(merged) == len(whole) == 2 * (len(tolerance.FEATURES) - 1)
    assert merged["s_x"].to_numpy() == pytest.approx(merged["s_y"].to_numpy())
    assert merged["n_x"].tolist() == merged["n_y"].tolist()


def test_deviation_is_recomputed_from_the_table() -> None:
    rows = pd.DataFrame(
        [("T=1", "window", "f", 10, 1.0, 2.0), ("T=1", "window", "f", 30, 1.0, 2.0)],
        columns=["setting", "stratum", "feature", "n", "s", "v"],
    )
    assert tolerance.deviation(rows, setting="T=1", stratum="window", feature="f") == 0.05
    with pytest.raises(EvidenceError):
        tolerance.deviation(rows, setting="T=2", stratum="window", feature="f")


def test_a_failure_sticks_even_where_later_rows_dilute_it() -> None:
    rows = pd.DataFrame(
        [
            (0, "T=1", "window", "f", 5000, 500.0, 800.0),
            (1, "T=1", "window", "f", 500_000, 0.0, 50_000.0),
        ],
        columns=["request", "setting", "stratum", "feature", "n", "s", "v"],
    )
    assert "request 0" in tolerance.first_outside(rows, DECLARED)
    assert tolerance.first_outside(rows.iloc[1:], DECLARED) is None


def test_more_tokens_follow_the_slowest_open_sequence() -> None:
    _, rows = judge(
        table(("bonus", "f", 100, 0.0, 20.0), ("window", "f", 900, 0.0, 180.0)), DECLARED
    )
    open_rows = rows[rows["outcome"] == "INCONCLUSIVE"]
    # bonus: 15·.2/.0025 = 1200 of its own at a tenth of the tokens; window 7500 at nine tenths.
    assert tolerance.more_tokens(open_rows, 1000) == pytest.approx(11_000, rel=0.01)
    assert tolerance.more_tokens(rows.iloc[:0], 1000) == 0
