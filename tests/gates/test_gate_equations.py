"""A worker imports one gate and nothing more: every equation has to be known by then."""

from __future__ import annotations

import subprocess
import sys

import pytest

ALONE = """
import gatekeeper.gates.{gate} as gate
known = set(gate.EQUATIONS)
import gatekeeper.core.equations as every
print(*sorted(set(every.EQUATIONS) - known))
"""


@pytest.mark.parametrize("gate", ["serving_figures", "servers_equivalence"])
def test_a_gate_that_is_imported_alone_knows_every_equation(gate: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", ALONE.format(gate=gate)], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == []
