"""Inputs of a pricing: curves of simple tasks, a serving summary, an outcome, prices."""

from __future__ import annotations

from typing import Any

import pandas as pd

from gatekeeper.core.economics import Economics
from gatekeeper.core.policies import MinimumValue
from gatekeeper.core.pricing import Priced, PricingInputs, price
from gatekeeper.core.task_savings import COLUMNS

GRID = [k / 20 for k in range(21)] + [k / 10 for k in range(11, 21)] + [3.0]
"""As trace ingestion has it; a test there holds the two together."""

SHA = "c" * 64


def task(
    decode: float, rest: float, *, beside: float = 0.0, name: str = "t", **more: Any
) -> dict[str, Any]:
    """A task of ``rest`` s and ``decode`` s in a row; ``beside`` s of other work hides the decode."""
    spans = [rest + max(decode * x, beside) for x in GRID]
    low, high = more.pop("edges", (1.0, 1.0))
    row: dict[str, Any] = {
        "task": name,
        "version": 1,
        "session": name,
        "calls": 1,
        "grade": "A",
        "reconciled": True,
        "wall_s": rest + max(decode, beside),
        "decode_on_path_s": decode if decode > beside else 0.0,
        "x": GRID,
        "makespan_s": spans,
        "makespan_low_s": [rest + max(low * decode * x, beside) for x in GRID],
        "makespan_high_s": [rest + max(high * decode * x, beside) for x in GRID],
    }
    return {**row, **more}


def curves(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=list(COLUMNS))


ESSAY = curves([task(1.2, 3.8, name=f"t{i}") for i in range(8)])
"""The essay's task, eight times: 1.2 s of 5 s decode."""


def serving(
    ratio: float = 2.0,
    *,
    spread: float = 0.02,
    slo: bool = False,
    throughput: float = 1.5,
    **changes: Any,
) -> dict[str, Any]:
    """Summary with one passing level at concurrency 2."""
    import math

    def around(value: float) -> dict[str, float]:
        return {"ratio": value, "low": value * (1 - spread), "high": value * (1 + spread)}

    row = {
        "concurrency": 2,
        "gamma": 4,
        "speedup": around(ratio),
        "log_speedup": {"mean": math.log(ratio), "sd": spread, "pairs": 6.0},
        "ttft_s": {"ordinary": 0.4, "speculative": 0.4},
        "ttft_ratio": {"ratio": 1.0, "low": 1.0, "high": 1.0},
        "throughput_ratio": around(throughput),
        "goodput": {"ordinary": 1.0, "speculative": 2.0} if slo else None,
        "goodput_difference": {"mean": 1.0, "low": 0.5, "high": 1.2} if slo else None,
    }
    row |= changes
    return {
        "regions": [row],
        "gamma_by_concurrency": {"2": 4},
        "confidence": 0.95,
        "memory": {"speculative": 2.0**30, "unmeasured": []},
    }


OUTCOME = {"difference": 0.0, "interval": [-0.02, 0.02]}

PRICES: dict[str, Any] = {
    "name": "demo",
    "description": "prices of a test",
    "currency": "EUR",
    "value_of_second": 0.01,
    "replica_cost_per_hour": 3.6,
    "target_occupancy": "measured",
    "draft": {"device_cost_per_hour": 0.0, "memory_cost_per_gib_hour": 0.01},
    "operations_per_month": 100.0,
    "tasks_per_month": 1_000_000.0,
    "cost_per_failure": 0.01,
    "energy": {"declared": False},
}

MINIMUM = MinimumValue(0.001, "EUR")


def inputs(**changes: Any) -> PricingInputs:
    document = {**PRICES, **changes.pop("prices", {})}
    document = {name: value for name, value in document.items() if value is not None}
    table = changes.pop("curves", ESSAY)
    values: dict[str, Any] = {
        "route": "prose",
        "curves": table,
        "evidence": SHA if len(table) else None,
        "serving": ("run-s", serving()),
        "outcome": ("run-o", OUTCOME),
        "economics_name": "demo",
        "economics": Economics.from_dict(document),
        "minimum": MINIMUM,
    }
    return PricingInputs(**{**values, **changes})


def priced(**changes: Any) -> Priced:
    return price(inputs(**changes))
