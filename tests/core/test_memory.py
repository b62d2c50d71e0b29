from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatekeeper.core.memory import (
    PURPOSES,
    MemoryLedger,
    active_sequences_lost,
    max_active_sequences,
)
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

ledgers = st.builds(MemoryLedger, *[st.integers(0, 2**40)] * 6)


def test_total_and_what_speculation_adds() -> None:
    ledger = MemoryLedger(1, 2, 4, 8, 16, 32)
    assert ledger.total == 63
    assert ledger.speculative == 4 + 8 + 16
    assert ledger.complete


@given(ledgers, ledgers)
def test_ledgers_add_by_purpose(one: MemoryLedger, other: MemoryLedger) -> None:
    both = one + other
    assert both.total == one.total + other.total
    assert all(getattr(both, p) == getattr(one, p) + getattr(other, p) for p in PURPOSES)


def test_unmeasured_stays_unmeasured() -> None:
    known = MemoryLedger(1, 1, 1, 1, 1, 1)
    partly = MemoryLedger(1, 1, 1, 1, 1, 0, unmeasured=("workspace",))
    assert (known + partly).unmeasured == ("workspace",)
    assert not (partly + known).complete
    assert MemoryLedger.from_dict(json.loads(json.dumps(partly.to_dict()))) == partly


def test_sequences_lost() -> None:
    assert max_active_sequences(100, 20, 10) == 8
    assert max_active_sequences(10, 20, 10) == 0
    # 80 bytes for sequences of 10; with a draft 60 for sequences of 15
    assert active_sequences_lost(100, 20, 10, 20, 5) == 4
    assert active_sequences_lost(100, 20, 10, 0, 0) == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: MemoryLedger(-1, 0, 0, 0, 0, 0),
        lambda: MemoryLedger(0, 0, 0, 0, 0, 0, unmeasured=("elsewhere",)),
        lambda: max_active_sequences(1, 0, 0),
    ],
)
def test_impossible_inputs_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(InputError):
        call()
