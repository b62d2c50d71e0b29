from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import Incompatible, Unavailable

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference import devices, loaders  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.devices import Transfers  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.loader import (  # noqa: E402 - as above
    Options,
    Switches,
    load_engine,
)
from gatekeeper_adapters.engines.reference.proposers.base import Proposer  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.proposers.elsewhere import (  # noqa: E402 - as above
    Elsewhere,
)
from gatekeeper_adapters.engines.reference.timing import Stopwatch, share  # noqa: E402 - as above
from gatekeeper_adapters.engines.reference.tree import NOTHING, CandidateTree  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MOVE_S = 0.25


class Bus:
    """Two devices on one processor: every tensor handed over is copied, and a copy takes its time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits = 0
        self.moves: list[tuple[tuple[int, ...], str]] = []
        self.transfers = Transfers(
            clock=lambda: self.now, copy=self.copy, wait=self.wait, here=lambda *_: False
        )

    def copy(self, tensor: Any, device: str) -> Any:
        self.now += MOVE_S
        self.moves.append((tuple(tensor.shape), device))
        return tensor.clone()

    def wait(self, device: Any) -> None:
        self.waits += 1


def test_a_tensor_that_lies_there_is_not_moved() -> None:
    bus = Bus()
    transfers = Transfers(clock=lambda: bus.now, copy=bus.copy)
    row = torch.ones(3)
    assert transfers.moved(row, "cpu") is row
    assert transfers.moved_rows([row], "cpu")[0] is row
    assert transfers.moved_rows([], "cuda") == []
    assert (transfers.take(), transfers.bytes, bus.moves) == (0.0, 0, [])


def test_a_move_waits_for_both_ends_and_only_its_own_time_counts() -> None:
    bus = Bus()

    def slow(_: Any) -> None:
        bus.waits += 1
        if bus.waits % 2:  # what still ran where the tensor comes from
            bus.now += 10.0

    transfers = Transfers(clock=lambda: bus.now, copy=bus.copy, wait=slow, here=lambda *_: False)
    transfers.moved(torch.ones(3), "cuda")
    assert (bus.waits, transfers.bytes) == (2, 12)
    assert transfers.take() == MOVE_S
    assert transfers.take() == 0.0


def test_rows_travel_together() -> None:
    bus = Bus()
    rows = [torch.full((4,), float(i)) for i in range(3)]
    moved = bus.transfers.moved_rows(rows, "cuda")
    assert [row.tolist() for row in moved] == [row.tolist() for row in rows]
    assert bus.moves == [((3, 4), "cuda")]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("cpu", "cpu", True),
        ("cuda", "cuda:0", True),
        ("cuda", "cuda:1", False),
        ("cpu", "cuda", False),
    ],
)
def test_names_of_devices(one: str, other: str, same: str) -> None:
    assert devices.are_one(one, other) == same


class Recorder(Proposer):
    name = "recorder"
    reads_states = True

    def __init__(self) -> None:
        self.row = torch.full((5,), 0.2)
        self.learnt: list[Any] = []

    def propose(self, windows: Any) -> list[CandidateTree]:
        return [CandidateTree.chain([1, 2], [self.row, self.row]), NOTHING]

    def learn(self, sequence: Any, start: int, states: Any) -> None:
        self.learnt.append(states)

    def held(self) -> tuple[int, int]:
        return (7, 8)


def test_states_go_to_the_drafter_and_distributions_come_back() -> None:
    bus, inner = Bus(), Recorder()
    apart = Elsewhere(inner, device="cpu", draft_device="cuda", transfers=bus.transfers)
    tree, nothing = apart.propose([])
    states = torch.ones(2, 6)
    apart.learn(None, 0, states)  # type: ignore[arg-type]
    assert bus.moves == [((2, 5), "cpu"), ((2, 6), "cuda")]
    assert nothing is NOTHING
    assert [row.tolist() for row in tree.q.values()] == [inner.row.tolist()] * 2
    assert tree.q[0] is not inner.row
    assert inner.learnt[0] is not states
    assert (apart.held(), apart.beside_target()) == ((7, 8), 0)
    assert (apart.name, apart.reads_states) == ("recorder", True)


def test_every_call_reaches_the_proposer_itself() -> None:
    calls = {
        name
        for name, member in inspect.getmembers(Proposer, inspect.isfunction)
        if not name.startswith("_")
    }
    assert calls <= vars(Elsewhere).keys()


def test_moves_count_as_transfer_and_not_as_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    bus = Bus()
    monkeypatch.setattr(Stopwatch, "clock", staticmethod(lambda: bus.now))

    class Work:
        class sequence:  # noqa: N801 - stands for an instance
            spent = [0.0] * 4

    bus.transfers.moved(torch.ones(1), "cuda")  # states learnt after the step before
    watch = Stopwatch("cpu", bus.transfers)
    bus.now += 1.0
    bus.transfers.moved(torch.ones(1), "cuda")
    watch.mark()  # drafted
    bus.now += 2.0
    watch.mark()  # packed
    bus.now += 3.0
    watch.mark()  # verified
    bus.now += 4.0
    watch.mark()  # judged
    assert watch.moved == 2 * MOVE_S
    share([Work], watch)  # type: ignore[list-item]
    draft_s, verify_s, correction_s, transfer_s = Work.sequence.spent
    assert (draft_s, verify_s, correction_s) == (1.0, 3.0, 4.0)
    assert transfer_s == 2.0 + 2 * MOVE_S


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_engine_with_a_drafter_elsewhere_says_the_same(
    temperature: float, tiny: Path, tiny_draft: Path, open_tiny: Callable[..., Any]
) -> None:
    bus = Bus()

    def apart(proposer: Proposer) -> Proposer:
        return Elsewhere(proposer, device="cpu", draft_device="cuda", transfers=bus.transfers)

    other = load_engine(
        tiny,
        {"kind": "draft_lm"},
        tiny_draft,
        version="test",
        options=Options(max_context=256, switches=Switches(wrap=apart)),
    )
    other._transfers = bus.transfers
    requests = [
        DecodeRequest(
            str(i), (5, 6, 7 + i), 16, SamplingSettings(temperature=temperature), seed=i, gamma=3
        )
        for i in range(3)
    ]
    found, wanted = drive(other, requests), drive(open_tiny("draft_lm"), requests)
    assert found.tokens == wanted.tokens
    assert bool(bus.moves) == (temperature > 0)  # greedy chains need no distribution
    moved = sum(entry.transfer_s for entry in found.rounds)
    assert moved >= MOVE_S * len(bus.moves)
    rows = sum(shape[0] for shape, _ in bus.moves)
    assert bus.transfers.bytes == rows * 97 * 4


def test_the_engine_names_both_devices(tiny: Path, open_tiny: Callable[..., Any]) -> None:
    assert open_tiny("draft_lm").info.details["draft_device"] == "cpu"
    assert open_tiny("draft_lm").info.device == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU does")
def test_a_drafters_device_that_is_absent_is_named(tiny: Path, tiny_draft: Path) -> None:
    with pytest.raises(Unavailable) as caught:
        load_engine(tiny, {"kind": "draft_lm"}, tiny_draft, version="t", draft_device="cuda")
    assert caught.value.field == "draft_device"


def test_the_targets_own_layers_cannot_be_elsewhere(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "are_one", lambda *_: False)
    section = {"kind": "self_speculation", "parameters": {"exit_after": 1}}
    with pytest.raises(Incompatible) as caught:
        load_engine(tiny, section, version="t")
    assert caught.value.field == "engine.draft_device"


def test_a_drafter_on_another_device_is_loaded_there(
    tiny: Path, tiny_draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaders, "are_one", lambda *_: False)
    engine = load_engine(tiny, {"kind": "draft_lm"}, tiny_draft, version="t")
    assert isinstance(engine._proposer, Elsewhere)
    assert engine._transfers is engine._proposer._transfers
    look_up = load_engine(tiny, {"kind": "ngram"}, version="t")
    assert not isinstance(look_up._proposer, Elsewhere)
