"""A server without arithmetic is small, and its first arithmetic disturbs nobody."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gatekeeper.actions import on_demand

SCRIPT = Path(__file__).parents[1] / "light_server.py"


def test_a_server_loads_pandas_and_scipy_when_they_are_first_needed(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), str(tmp_path)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(out.stdout)
    assert found["before"] == []
    assert found["ready"] == 200
    assert {"numpy", "pandas", "scipy", "statsmodels"} <= set(found["after"])
    assert found["statuses"] == {
        "/v1/routes/none/value": 404,
        "/v1/reports/none": 404,
        "/v1/claims?verify=true": 200,
        "/v1/gate-runs?plan=true": 404,
    }


def test_what_is_no_such_use_case_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'queue'"):
        on_demand.queue  # noqa: B018 - the access itself is what is tried
