from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gatekeeper.core.decoding import DecodeRequest, SamplingSettings
from gatekeeper.errors import InputError

pytest.importorskip("torch")
pytestmark = pytest.mark.torch

from gatekeeper_adapters.engines.reference.scheduler import Sequence  # noqa: E402 - after the skip
from gatekeeper_adapters.engines.reference.stopping import StopTexts, cut  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Tokens

HOT = SamplingSettings(temperature=1.0)
VARIED = SamplingSettings(presence_penalty=5.0)  # no token twice, so the text does not loop
PIECES = ["END", "EN", "ND", "xx", "é", "🙂", "D\n"]


def byte_level() -> Callable[[Tokens[int]], str]:
    """Ids 0–255 are bytes, then some words: as byte-level vocabularies split and join characters."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    codes = [*range(33, 127), *range(161, 173), *range(174, 256)]
    names = {byte: chr(byte) for byte in codes}
    rest = [byte for byte in range(256) if byte not in names]
    names |= {byte: chr(256 + i) for i, byte in enumerate(rest)}
    vocab = {names[byte]: byte for byte in range(256)}
    vocab |= {"".join(names[b] for b in w.encode()): 256 + i for i, w in enumerate(PIECES)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=False)


def byte_fallback() -> Callable[[Tokens[int]], str]:
    """Ids 0–255 are bytes; words begin with a space, which the first of a text loses."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE

    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocab |= {f"▁{piece}": 256 + i for i, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return lambda tokens: tokenizer.decode(list(tokens), skip_special_tokens=False)


BYTE_LEVEL, BYTE_FALLBACK = byte_level(), byte_fallback()


def by_whole_text(
    tokens: Tokens[int], stops: Tokens[str], detokenize: Callable[[Tokens[int]], str]
) -> tuple[int, str] | None:
    """The first token that completes a stop text, by decoding everything again at each token."""
    before = 0
    for count in range(1, len(tokens) + 1):
        text = detokenize(tokens[:count]).rstrip("\ufffd")
        ends = []
        for stop in stops:
            ends += [
                (place + len(stop), place, stop)
                for place in range(len(text) - len(stop) + 1)
                if text.startswith(stop, place) and place + len(stop) > before
            ]
        if ends:
            return count, min(ends)[-1]
        before = max(before, len(text))
    return None


def by_token(
    tokens: Tokens[int], stops: Tokens[str], detokenize: Callable[[Tokens[int]], str]
) -> tuple[int, str] | None:
    watch = StopTexts(stops, detokenize)
    for count, token in enumerate(tokens, 1):
        found = watch.push(token)
        if found is not None:
            return count, found
    return None


BYTES = st.sampled_from([*"ENDx é🙂\n".encode(), 0xF0, 0xE2, 0x80])
WORDS = st.integers(256, 255 + len(PIECES))
STOPS = st.lists(
    st.sampled_from(["END", "ND", "D", "é", "🙂x", "x🙂", "EN D", " END", "xx", "\n", "🙂🙂"]),
    min_size=1,
    max_size=3,
    unique=True,
)


@settings(derandomize=True, max_examples=250, deadline=None)
@given(st.lists(BYTES | WORDS, max_size=40), STOPS)
@example([0xF0, 0x9F, 0x99, 0x82] * 2, ["🙂🙂"])
@example([*[0x80] * 12, *"é".encode(), 256], ["éEND"])
@example([256, 0xE2], ["END"])
def test_the_first_completing_token_is_that_of_the_whole_text(
    tokens: list[int], stops: list[str]
) -> None:
    found = by_token(tokens, stops, BYTE_LEVEL)
    assert found == by_whole_text(tokens, stops, BYTE_LEVEL)


@settings(derandomize=True, max_examples=120, deadline=None)
@given(
    st.lists(
        st.sampled_from([list(c.encode()) for c in "é🙂xED"]) | WORDS.map(lambda word: [word]),
        max_size=12,
    ),
    STOPS,
)
@example([list("🙂".encode()), list("🙂".encode())], ["🙂🙂"])
def test_decoders_that_join_by_what_came_before(chunks: list[list[int]], stops: list[str]) -> None:
    tokens = [token for chunk in chunks for token in chunk]
    found = by_token(tokens, stops, BYTE_FALLBACK)
    assert found == by_whole_text(tokens, stops, BYTE_FALLBACK)


def test_a_character_split_over_tokens_is_found_when_complete_and_not_before() -> None:
    smile = list("🙂".encode())
    assert by_token([*smile[:3], 256], ["🙂"], BYTE_LEVEL) is None
    assert by_token([120, *smile], ["x🙂"], BYTE_LEVEL) == (5, "x🙂")
    assert by_token([256, smile[0]], ["END"], BYTE_LEVEL) == (1, "END")


def test_text_that_never_becomes_a_character_costs_no_more_and_more() -> None:
    lengths = []

    def spy(tokens: Tokens[int]) -> str:
        lengths.append(len(tokens))
        return BYTE_LEVEL(tokens)

    watch = StopTexts(("END",), spy)
    assert all(watch.push(0x80) is None for _ in range(500))
    assert watch.push(256) == "END"
    assert max(lengths) < 25


def test_the_first_to_be_complete_is_told_then_the_longest() -> None:
    assert by_token([69, 78, 68], ["ND", "END", "N"], BYTE_LEVEL) == (2, "N")
    assert by_token([69, 78, 68], ["D", "ND", "END"], BYTE_LEVEL) == (3, "END")
    assert by_token([256], ["ND", "E"], BYTE_LEVEL) == (1, "E")


def cut_all(request: DecodeRequest, runs: Tokens[list[int]]) -> tuple[list[int], str | None]:
    sequence = Sequence(request, 0, list(request.prompt))
    sequence.stop_texts = StopTexts(request.stop, BYTE_LEVEL) if request.stop else None
    for run in runs:
        kept, found = cut(sequence, run)
        sequence.append(kept)
        if found is not None or kept[-1] in request.end_tokens:
            return sequence.tokens[1:], found
    return sequence.tokens[1:], None


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_where_a_run_is_cut_does_not_depend_on_its_windows(window: int) -> None:
    text = [120, 69, 78, 68, 120, 256, 7, 120]

    def ask(**changes: Any) -> tuple[list[int], str | None]:
        request = DecodeRequest("r", (1,), 20, **changes)
        return cut_all(request, [text[i : i + window] for i in range(0, len(text), window)])

    assert ask(stop=("END",)) == (text[:4], "END")
    assert ask(stop=("END",), min_tokens=3) == (text[:4], "END")
    assert ask(stop=("END",), min_tokens=4) == (text[:6], "END")
    assert ask(stop=("DxE",), min_tokens=5) == (text[:6], "DxE")
    assert ask(end_tokens=(7,)) == (text[:7], None)
    assert ask(stop=("\x07", "x\x07"), end_tokens=(7,)) == (text[:7], None)
    assert ask(stop=("xx",)) == (text, None)
    assert ask() == (text, None)


def words(tokens: Tokens[int]) -> str:
    return " ".join(f"t{token}" for token in tokens)


def run(engine: Any, **changes: Any) -> tuple[list[int], str, str | None]:
    engine.submit(DecodeRequest("r", **{"prompt": (11, 12, 13), "max_tokens": 24, **changes}))
    tokens: list[int] = []
    while True:
        result = engine.step()
        for emission in result.emitted:
            tokens += emission.tokens
        for end in result.finished:
            return tokens, end.reason, end.stop


@pytest.mark.parametrize("sampling", [VARIED, HOT], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("kind", "gamma"), [("ngram", 0), ("ngram", 3), ("draft_lm", 2), ("self", 5)]
)
def test_stop_texts_end_at_the_same_token_for_every_window(
    kind: str, sampling: SamplingSettings, gamma: int, open_tiny: Any
) -> None:
    engine = open_tiny(kind)

    def ask(**changes: Any) -> tuple[list[int], str, str | None]:
        return run(engine, **{"sampling": sampling, "seed": 3, "gamma": gamma, **changes})

    text, reason, stop = ask()
    assert (reason, stop) == ("length", None)
    across = f"{text[9]} t{text[10]}"  # the end of one word and the next
    alone = next(f"t{t}" for i, t in enumerate(text) if i > 4 and f"t{t}" not in words(text[:i]))
    for stops in (("never", across), (alone, across), (f"t{text[3]}\n", alone)):
        count, found = by_whole_text(text, stops, words) or (len(text), None)
        assert ask(stop=stops) == (text[:count], "stop" if found else "length", found)
    place = by_whole_text(text, (alone,), words)
    assert place is not None
    held, *_ = ask(stop=(alone,), min_tokens=place[0])
    assert len(held) > place[0]
    assert held == text[: len(held)]
    assert ask(stop=(alone,), min_tokens=place[0] - 1) == (text[: place[0]], "stop", alone)
    # in the prompt it does not count
    prompt = (11, 12, text[5], 13, text[6], text[7])
    plain, *_ = ask(prompt=prompt)
    seen = words(prompt)[-7:]
    end = by_whole_text(plain, (seen,), words)
    assert ask(prompt=prompt, stop=(seen,))[0] == (plain if end is None else plain[: end[0]])


def test_lengths_are_exact_inside_an_accepted_run(open_tiny: Any) -> None:
    engine = open_tiny("self")  # accepts everything
    text, *_ = run(engine, sampling=VARIED)
    for gamma in (0, 3, 8):
        for most in (1, 2, 5, 9):
            got = run(engine, sampling=VARIED, gamma=gamma, max_tokens=most)
            assert got == (text[:most], "length", None)
        end = text[6]
        got = run(engine, sampling=VARIED, gamma=gamma, end_tokens=(end,), max_tokens=7)
        assert got == (text[:7], "stop", None)
        held, reason, _ = run(engine, sampling=VARIED, gamma=gamma, end_tokens=(end,), min_tokens=9)
        assert held[:6] == text[:6]
        assert end not in held[:9]
        assert reason in {"stop", "length"}


def test_stops_of_one_request_leave_the_others_alone(open_tiny: Any) -> None:
    engine = open_tiny("draft_lm")
    asked = [DecodeRequest(f"r{i}", (3 + i, 4, 5), 20, VARIED, gamma=3) for i in range(4)]
    plain = drive(engine, asked).tokens
    stop = f"t{plain['r1'][8]}"
    changed = [
        DecodeRequest(f"r{i}", (3 + i, 4, 5), 20, VARIED, gamma=3, stop=(stop,) if i == 1 else ())
        for i in range(4)
    ]
    record = drive(engine, changed)
    assert {name: record.tokens[name] for name in ("r0", "r2", "r3")} == {
        name: plain[name] for name in ("r0", "r2", "r3")
    }
    assert record.reasons["r1"] == "stop"
    assert len(record.tokens["r1"]) < 20


def test_an_empty_stop_text_is_refused(open_tiny: Any) -> None:
    with pytest.raises(InputError) as caught:
        open_tiny().submit(DecodeRequest("r", (1,), 3, stop=("x", "")))
    assert caught.value.field == "stop"
