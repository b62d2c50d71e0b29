from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from gatekeeper_adapters.engines.reference.server.text import Detokenizer, StopGuard
from hypothesis import given
from hypothesis import strategies as st

if TYPE_CHECKING:
    from collections.abc import Sequence

SCRIPT = "naïve 語彙 🙂👩‍🚀 end"


def of_bytes(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode(errors="replace")


def of_runs(tokens: Sequence[int]) -> str:
    """As SentencePiece's byte fallback: bytes on end that are not all text are none of them text."""
    out = ""
    for ascii_, run in itertools.groupby(tokens, lambda token: token < 128):
        data = bytes(run)
        try:
            out += data.decode()
        except UnicodeDecodeError:
            assert not ascii_
            out += "\ufffd" * len(data)
    return out


def of_words(tokens: Sequence[int]) -> str:
    return " ".join(f"w{token}" for token in tokens)


def pieces(decode: object, tokens: Sequence[int]) -> list[str]:
    words = Detokenizer(decode)  # type: ignore[arg-type]
    out = [words.push(token) for token in tokens]
    return [*out, words.flush()]


TEXT = st.text(max_size=60).map(lambda text: list(text.encode(errors="ignore")))
GARBAGE = st.lists(st.integers(0, 255), max_size=200)
CONTINUATIONS = st.lists(st.integers(0x80, 0xFF), max_size=200)


@given(st.lists(st.one_of(TEXT, GARBAGE, CONTINUATIONS), max_size=4))
def test_the_pieces_join_to_the_whole_text(parts: list[list[int]]) -> None:
    tokens = [token for part in parts for token in part]
    for decode in (of_bytes, of_words):
        assert "".join(pieces(decode, tokens)) == decode(tokens)


@pytest.mark.parametrize("decode", [of_bytes, of_runs])
def test_a_character_spread_over_tokens_comes_whole(decode: object) -> None:
    found = pieces(decode, list((SCRIPT * 8).encode()))
    assert "".join(found) == SCRIPT * 8
    assert not any("\ufffd" in piece for piece in found)


def test_text_cut_off_in_a_character_says_so_at_the_end() -> None:
    assert pieces(of_bytes, list("a語".encode()[:-1])) == ["a", "", "", "\ufffd"]


def test_no_piece_waits_for_more_than_a_character() -> None:
    words = Detokenizer(of_bytes)
    made = "".join(words.push(token) for token in [0xFF] * 500)
    assert len(made) >= 497
    assert len(words._window) <= 64


def test_what_another_token_would_have_added_changes_nothing() -> None:
    words = Detokenizer(of_words)
    assert words.push(1) == "w1"
    assert words.instead(7) == " w7"
    assert words.push(2) == " w2"


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=3), max_size=12),
)
def test_nothing_of_a_stop_text_gets_out(stops: list[str], parts: list[str]) -> None:
    guard, text, out = StopGuard(stops), "", ""
    for part in parts:
        text += part
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            out += guard.cut(part)
            assert out == text[: min(places)]
            return
        out += guard.push(part)
        assert text.startswith(out)
        held = text[len(out) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)
    assert out + guard.flush("") == text


def test_a_stop_text_before_the_minimum_length_is_ordinary_text() -> None:
    guard = StopGuard(["END"])
    assert guard.push("one END two EN") == "one END two "
    assert guard.cut("D three") == ""
