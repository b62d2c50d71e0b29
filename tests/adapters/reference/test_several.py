from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive

from gatekeeper.core.decoding import DecodeRequest
from gatekeeper.errors import InputError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("ngram", "draft_lm", "self_speculation")


@pytest.fixture(scope="module")
def engine(tiny: Path, tiny_draft: Path) -> Any:
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    return load_engine(
        tiny,
        {"kind": "ngram"},
        others=[
            ({"kind": "draft_lm"}, tiny_draft),
            ({"kind": "self_speculation", "parameters": {"exit_after": 1}}, None),
        ],
        version="test",
        options=Options(max_batch=8, max_context=256),
    )


class Noted:
    """A proposer that writes down what it is asked."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.calls = inner, []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name in {"propose", "prefill", "admit", "settle", "release", "learn"}:
            return lambda *given: (self.calls.append((name, given)), found(*given))[1]
        return found


def ask(proposers: tuple[str | None, ...], **changes: Any) -> list[DecodeRequest]:
    return [
        DecodeRequest(
            f"r{i}", tuple(range(3 + i, 20 + i)), 12, gamma=1 + i % 4, proposer=name, **changes
        )
        for i, name in enumerate(proposers)
    ]


def test_each_request_is_drafted_by_the_one_it_names_and_all_of_one_together(engine: Any) -> None:
    several = engine._proposer
    inner = dict(several._proposers)
    several._proposers = {name: Noted(one) for name, one in inner.items()}
    asked = ask((None, "draft_lm", "ngram", "self_speculation", "draft_lm"))
    record = drive(engine, asked)
    heard = {
        name: {
            part.id if hasattr(part, "id") else part[0].id
            for _, given in one.calls
            for part in (given[0] if isinstance(given[0], list) else given[:1])
        }
        for name, one in several._proposers.items()
    }
    assert heard == {
        "ngram": {"r0", "r2"},
        "draft_lm": {"r1", "r4"},
        "self_speculation": {"r3"},
    }
    first = next(g for n, g in several._proposers["draft_lm"].calls if n == "propose")
    assert [sequence.id for sequence, _ in first[0]] == ["r1", "r4"]
    several._proposers = inner
    assert record.tokens == drive(engine, ask((None,) * 5)).tokens


def test_a_mixed_batch_gives_what_each_would_give_alone(engine: Any) -> None:
    asked = ask((*KINDS, None, *KINDS, None))
    together = drive(engine, asked)
    for request in asked:
        alone = drive(engine, [request])
        assert alone.tokens[request.request_id] == together.tokens[request.request_id]
        assert [e.accepted for e in alone.rounds] == [
            e.accepted for e in together.rounds if e.request_id == request.request_id
        ]


def test_memory_is_the_sum_and_states_are_read_if_any_reads_them(
    engine: Any, open_tiny: Any
) -> None:
    from gatekeeper_adapters.engines.reference.proposers.several import Several

    draft = open_tiny("draft_lm")._proposer
    both = Several({"a": draft, "b": draft, "c": open_tiny("ngram")._proposer})
    assert both.held() == tuple(2 * part for part in draft.held())
    assert not both.reads_states
    assert both.names == ("a", "b", "c")

    class Reader:
        reads_states = True

        def most_candidates(self, gamma: int) -> int:
            return 3 * gamma

    mixed = Several({"a": draft, "reader": Reader()})
    assert mixed.reads_states
    assert mixed.most_candidates(4) == 12
    assert engine.memory().draft_weights > 0
    assert not engine._proposer._proposers["draft_lm"]._cached  # earlier tests left nothing


@pytest.mark.parametrize(("several", "name"), [(True, "medusa"), (False, "draft_lm")])
def test_an_unknown_name_is_refused(several: Any, name: str, engine: Any, open_tiny: Any) -> None:
    one = engine if several else open_tiny("ngram")
    with pytest.raises(InputError, match="ngram") as caught:
        one.submit(DecodeRequest("r", (1, 2), 3, gamma=2, proposer=name))
    assert caught.value.field == "proposer"
    assert "r" not in one._scheduler


def test_a_single_proposer_may_be_named(open_tiny: Any) -> None:
    record = drive(open_tiny("ngram"), ask(("ngram", None)))
    assert set(record.reasons.values()) == {"length"}
