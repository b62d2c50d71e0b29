from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import END, WORDS, Language, ids, spelled, write_byte_tokenizer
from engine_driver import drive
from jsonschema import Draft202012Validator
from scipy import stats
from strict_bank import strict_log10_e
from tiny_drafters import damp, load_six_kinds
from tiny_models import write_tiny_llama

from gatekeeper.core.decoding import Constraint, DecodeRequest, SamplingSettings
from gatekeeper.protocols import Scored

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

KINDS = ("ngram", "draft_lm", "self_speculation", "medusa", "eagle", "eagle2")
HOT = SamplingSettings(temperature=1.0)
SCHEMA = {
    "type": "object",
    "properties": {
        "a": {"type": "integer", "minimum": 0, "maximum": 120},
        "b": {"enum": ["ab", "abc", "tr", None]},
        "c": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
    },
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
JSON = Constraint(json_schema=json.dumps(SCHEMA))
REGEX = r"[a-c]{2,6}:(10|12|1)(-[0-9]{2}){0,2}"
PATTERN = Constraint(regex=REGEX)
CHECKED = Draft202012Validator(SCHEMA)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """All six kinds on one target that spells bytes."""
    root = tmp_path_factory.mktemp("structured")
    target = damp(write_tiny_llama(root / "target"), 0.5)
    write_byte_tokenizer(target)
    return load_six_kinds(root, target, draft_ids=range(60))


def requests(
    count: int, constraint: Constraint | None = None, *, kind: str = "ngram", **changes: Any
) -> list[DecodeRequest]:
    """Without a constraint given, one of JSON and one of the regular expression by turns."""
    rng = np.random.default_rng(8)
    prompts = [tuple(rng.integers(3, len(WORDS), 4 + 3 * i).tolist()) for i in range(count)]
    return [
        DecodeRequest(
            f"r{i}",
            prompt,
            160,
            constraint=constraint or (JSON, PATTERN)[i % 2],
            proposer=kind,
            seed=i,
            **{"end_tokens": (END,), **changes},
        )
        for i, prompt in enumerate(prompts)
    ]


def whole(text: str, constraint: Constraint) -> bool:
    """Whether an answer satisfies its constraint, by other libraries than the one that made it."""
    if constraint.regex is not None:
        return re.fullmatch(constraint.regex, text) is not None
    try:
        return CHECKED.is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


@pytest.fixture(scope="module")
def ordinary(engine: Any) -> Any:
    return drive(engine, requests(8, gamma=0))


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_are_those_of_ordinary_decoding_at_every_batch_size(
    kind: str, engine: Any, ordinary: Any
) -> None:
    assert set(ordinary.reasons.values()) == {"stop"}
    asked = requests(8, kind=kind, gamma=3)
    for batch in (asked[:1], asked[1:4], asked):
        done = drive(engine, batch)
        for request in batch:
            assert done.tokens[request.request_id] == ordinary.tokens[request.request_id]
            assert done.reasons[request.request_id] == "stop"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_whole_beside_requests_without_a_constraint(
    kind: str, temperature: float, engine: Any
) -> None:
    changes = {"kind": kind, "gamma": 3, "sampling": SamplingSettings(temperature=temperature)}
    asked = [
        *requests(3, **changes),
        # without an end token an answer that may go on does: it ends where it cannot
        *(replace(r, request_id=f"on{r.seed}") for r in requests(3, end_tokens=(), **changes)),
        DecodeRequest("free", (4, 5, 6), 30, gamma=3, proposer=kind),
    ]
    done = drive(engine, asked)
    for request in asked[:-1]:
        text = spelled(done.tokens[request.request_id])
        assert done.reasons[request.request_id] == "stop", text
        assert whole(text, request.constraint), text
    assert done.reasons["free"] == "length"


def test_drafts_obey_the_constraint_before_they_are_judged(engine: Any) -> None:
    from gatekeeper_adapters.engines.reference.constraints import Grammars

    grammars = Grammars(engine._tokenizer, engine.info.vocab_size)
    for kind in KINDS:
        asked = requests(2, kind=kind, gamma=3, sampling=HOT)
        done = drive(engine, asked)
        drafted = 0
        for request in asked:
            grammar = grammars.make(request)
            mine = [e for e in done.emissions if e.request_id == request.request_id]
            for emission in mine:
                for token, draft in zip(emission.tokens, emission.draft, strict=True):
                    if draft >= 0:
                        assert grammar.permitted([draft]) == 1, (kind, WORDS[draft])
                        drafted += 1
                    grammar.commit([token])
        assert drafted > 5, kind


LANGUAGE = Language.of(
    *(word + more for word in ("a", "ab", "abc", "ca") for more in ("", ":1", ":12"))
)
FINITE = Constraint(regex="(a|ab|abc|ca)(:(1|12))?")


class Masked:
    """An engine whose scores are masked by the language written down, and made to sum to 1."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def score(self, prompt: Any, tokens: Any, sampling: Any, **_: Any) -> Scored:
        scored = self._engine.score(prompt, tokens, sampling)
        p = np.zeros_like(scored.p)
        for place in range(len(tokens)):
            allowed = sorted(LANGUAGE.allowed(tokens[:place]))
            p[place, allowed] = scored.p[place, allowed]
        return Scored(p / p.sum(axis=1, keepdims=True), scored.deficit)


@pytest.fixture(scope="module")
def law(engine: Any) -> dict[tuple[int, ...], float]:
    """Every answer as tokens, with its probability by the masked target."""
    masked, found = Masked(engine), {}
    prompt = (5, 9, 30)
    todo: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while todo:
        text, chance = todo.pop()
        if text and text[-1] == END:
            found[text] = chance
            continue
        p = masked.score(prompt, (*text, END), HOT).p[-1]
        todo += [((*text, t), chance * float(p[t])) for t in sorted(LANGUAGE.allowed(text))]
    return found


def answers(engine: Any, kind: str, gamma: int, runs: int) -> dict[tuple[int, ...], int]:
    counts: dict[tuple[int, ...], int] = {}
    base = DecodeRequest("", (5, 9, 30), 12, HOT, gamma=gamma, proposer=kind)
    for start in range(0, runs, 8):
        asked = [
            replace(base, request_id=f"s{s}", seed=s, end_tokens=(END,), constraint=FINITE)
            for s in range(start, start + 8)
        ]
        for tokens in drive(engine, asked).tokens.values():
            counts[tuple(tokens)] = counts.get(tuple(tokens), 0) + 1
    return counts


def p_value(counts: dict[tuple[int, ...], int], expected: dict[tuple[int, ...], float]) -> float:
    """Chi-square over answers, the rare ones together."""
    runs = sum(counts.values())
    if not counts.keys() <= expected.keys():
        return 0.0
    rare = [text for text, chance in expected.items() if chance * runs < 8]
    common = [text for text in expected if text not in rare]
    wanted = [expected[text] * runs for text in common]
    seen = [counts.get(text, 0) for text in common]
    rest = sum(expected[text] for text in rare) * runs
    if rest > 5:
        wanted.append(rest)
        seen.append(sum(counts.get(text, 0) for text in rare))
    total = sum(wanted)
    return float(stats.chisquare(seen, [w * sum(seen) / total for w in wanted]).pvalue)


@pytest.mark.parametrize("kind", ["draft_lm", "eagle"])
def test_sampled_answers_follow_the_masked_target_as_wholes(
    kind: str, engine: Any, law: dict[tuple[int, ...], float]
) -> None:
    assert len(law) > 15
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-4)
    assert p_value(answers(engine, kind, 2, 240), law) > 1e-3


def test_a_mask_that_misses_the_last_position_shows(
    engine: Any, law: dict[tuple[int, ...], float], monkeypatch: Any
) -> None:
    from gatekeeper_adapters.engines.reference import judge, rules

    processed, deepest = rules.processed, {}

    def without_bonus(row: Any, sequence: Any, path: Any = ()) -> Any:
        if len(path) == deepest[sequence.id]:
            sequence = replace(sequence, grammar=None)
        return processed(row, sequence, path)

    ruled = judge._ruled

    def noted(work: Any, tree: Any, logits: Any, verifier: Any) -> Any:
        deepest[work.sequence.id] = tree.depth
        return ruled(work, tree, logits, verifier)

    monkeypatch.setattr(judge, "_ruled", noted)
    monkeypatch.setattr(rules, "processed", without_bonus)
    asked = requests(4, JSON, kind="draft_lm", gamma=2, sampling=HOT)
    done = drive(engine, asked)
    assert "constraint" in done.reasons.values()
    assert not all(whole(spelled(tokens), JSON) for tokens in done.tokens.values())
    assert p_value(answers(engine, "draft_lm", 2, 40), law) < 1e-6


def test_unmasked_drafts_show(engine: Any, monkeypatch: Any) -> None:
    from gatekeeper_adapters.engines.reference.proposers import chain

    adjusted = chain.adjusted
    monkeypatch.setattr(
        chain, "adjusted", lambda row, seq, path: adjusted(row, replace(seq, grammar=None), path)
    )
    with pytest.raises(AssertionError, match="draft_lm"):
        test_drafts_obey_the_constraint_before_they_are_judged(engine)


@pytest.mark.parametrize("kind", ["draft_lm", "ngram"])
def test_the_strict_test_is_silent_about_constrained_text(kind: str, engine: Any) -> None:
    prompts = [(5, 9, 30), (40, 4, 4, 21), (7, 7)]
    batches = [
        [
            DecodeRequest(
                f"b{batch}-{i}",
                prompts[i % 3],
                12,
                HOT,
                seed=20 * batch + i,
                gamma=1 + batch % 3,
                proposer=kind,
                end_tokens=(END,),
                constraint=FINITE,
                evidence=True,
            )
            for i in range(6)
        ]
        for batch in range(6)
    ]
    assert strict_log10_e(Masked(engine), batches) < 3


def test_an_answer_ends_inside_an_accepted_run_where_nothing_can_follow(engine: Any) -> None:
    constraint = Constraint(regex="ab(ca){3}")
    for kind in ("self_speculation", "draft_lm"):
        asked = [replace(r, end_tokens=()) for r in requests(3, constraint, kind=kind, gamma=6)]
        done = drive(engine, asked)
        assert set(done.reasons.values()) == {"stop"}
        assert {spelled(tokens) for tokens in done.tokens.values()} == {"abcacaca"}
        assert all(entry.committed for entry in done.rounds)
        assert max(entry.committed for entry in done.rounds) > 1


def test_look_up_stops_before_what_the_grammar_forbids(engine: Any) -> None:
    prompt = tuple(ids("abcabcabcabcxyzabc"))
    asked = DecodeRequest(
        "r", prompt, 12, gamma=5, proposer="ngram", constraint=Constraint(regex="[abc]{12}")
    )
    done = drive(engine, [asked])
    assert all(set(spelled([t for t in e.draft if t >= 0])) <= set("abc") for e in done.emissions)
    assert sum(entry.drafted for entry in done.rounds) > 0


def test_a_constraint_too_complex_to_follow_ends_the_request_and_no_other(engine: Any) -> None:
    lost = replace(requests(1, Constraint(regex="(a?){500}a{500}"))[0], request_id="lost", gamma=2)
    done = drive(engine, [lost, *requests(2, JSON, gamma=2)])
    assert done.reasons == {"lost": "constraint", "r0": "stop", "r1": "stop"}
    assert set(spelled(done.tokens["lost"])) == {"a"}


def test_a_minimum_length_gives_way_where_only_the_end_can_follow(engine: Any) -> None:
    asked = [replace(r, min_tokens=40) for r in requests(2, Constraint(regex="abc"), gamma=2)]
    done = drive(engine, asked)
    assert {spelled(tokens) for tokens in done.tokens.values()} == {"abc"}
    assert set(done.reasons.values()) == {"stop"}
