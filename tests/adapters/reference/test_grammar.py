from __future__ import annotations

import json
import random
from typing import Any

import pytest
from byte_tokenizer import END, WORDS, Language, ids, spelled, write_byte_tokenizer

from gatekeeper.core.decoding import Constraint, DecodeRequest
from gatekeeper.errors import InputError, TooLarge

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

VOCAB = 97
CASES = {
    r"[ab]{1,3}c?": Language.of(
        *(x + y for x in ("a", "b", *(p + q for p in "ab" for q in "ab")) for y in ("", "c")),
        *(p + q + r + y for p in "ab" for q in "ab" for r in "ab" for y in ("", "c")),
    ),
    r"(ab|a1|abc)(,x)?|true": Language.of(
        "true", *(word + more for word in ("ab", "a1", "abc") for more in ("", ",x"))
    ),
    r"10|12|1": Language.of("10", "12", "1"),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("bytes")
    write_byte_tokenizer(folder)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Any) -> Any:
    from gatekeeper_adapters.engines.reference.constraints import Grammars

    return Grammars(tokenizer, VOCAB)


def make(grammars: Any, constraint: Constraint | str, *, ends: bool = True) -> Any:
    wanted = Constraint(regex=constraint) if isinstance(constraint, str) else constraint
    end_tokens = (END,) if ends else ()
    return grammars.make(DecodeRequest("r", (3,), 20, constraint=wanted, end_tokens=end_tokens))


def found(grammar: Any, path: Any = ()) -> set[int]:
    return set(torch.nonzero(grammar.allowed(path)).flatten().tolist())


def is_forced(allowed: set[int], text: list[int], language: Language) -> bool:
    """Whether the one token allowed is how every answer goes on: one spelling of it may do."""
    before = spelled(text)
    rest = [a for a in language.answers if a.startswith(before)]
    return len(allowed) == 1 and all(a.startswith(before + WORDS[min(allowed)]) for a in rest)


@pytest.mark.parametrize("regex", CASES)
@pytest.mark.parametrize("ends", [True, False])
def test_masks_are_those_of_the_language_along_any_paths(
    regex: str, ends: Any, grammars: Any
) -> None:
    rng, language = random.Random(1), CASES[regex]
    for _ in range(20):
        grammar, text = make(grammars, regex, ends=ends), []
        while True:
            for _ in range(4):  # branches below the text, in no order
                path: list[int] = []
                while len(path) < 4:
                    expected = language.allowed([*text, *path], ends=ends)
                    if not expected or END in path:
                        break
                    allowed = found(grammar, path)
                    assert allowed == expected or is_forced(allowed, [*text, *path], language)
                    path.append(rng.choice(sorted(expected)))
            options = language.allowed(text, ends=ends)
            if not options:
                assert grammar.complete
                break
            run = [rng.choice(sorted(options))]
            following = language.allowed([*text, *run], ends=ends)
            if following and run != [END]:
                run.append(rng.choice(sorted(following)))
            grammar.commit(run)
            text += run
            assert not grammar.lost
            if END in run:
                assert spelled(text) in language.answers
                break
            assert grammar.complete == (
                not language.allowed(text, ends=False) and spelled(text) in language.answers
            )


def test_special_tokens_and_padding_stand_for_no_text(grammars: Any) -> None:
    grammar = make(grammars, ".*")
    assert found(grammar) == {END} | set(range(3, len(WORDS))) - {WORDS.index("\n")}
    assert len(grammar.allowed(())) == VOCAB > len(WORDS)
    assert found(make(grammars, ".*", ends=False)) == found(grammar) - {END}


def test_an_answer_without_an_end_token_is_as_long_as_it_may_be(grammars: Any) -> None:
    grammar = make(grammars, "ab|abc1?", ends=False)
    whole = ids("abc1")
    assert grammar.length(whole) == 4
    assert grammar.length([*whole, *ids("zz")]) == 4
    assert grammar.length(ids("ab")) == 2  # a whole answer, but more could follow
    assert not grammar.complete
    grammar.commit(whole)
    assert grammar.complete
    # what is drawn past the end is cut off, and must have a distribution until then
    assert bool(grammar.allowed(()).all())


def test_with_an_end_token_nothing_but_it_follows_a_whole_answer(grammars: Any) -> None:
    grammar = make(grammars, "ab")
    assert found(grammar, ids("ab")) == {END}
    assert grammar.length([*ids("ab"), END, *ids("zz")]) == 3
    assert grammar.permitted([*ids("ab"), END]) == 3
    assert grammar.permitted(ids("abab")) == 2
    grammar.commit([*ids("ab"), END])
    assert not grammar.lost


def test_after_a_path_that_no_answer_begins_with_nothing_is_allowed(grammars: Any) -> None:
    grammar = make(grammars, "abc")
    assert found(grammar, ids("x")) == set()
    assert found(grammar, ids("xy")) == set()
    assert found(grammar, ids("a")) == {WORDS.index("b")}  # forced: and not "bc"
    assert not grammar.lost
    grammar.commit(ids("x"))
    assert grammar.lost


def test_a_grammar_that_grows_too_complex_is_lost_and_not_whole(grammars: Any) -> None:
    grammar = make(grammars, "(a?){500}a{500}", ends=False)
    assert not grammar.lost
    run = ids("aaa")
    assert grammar.length(run) == 1
    grammar.commit(run[:1])
    assert grammar.lost
    assert not grammar.complete
    assert bool(grammar.allowed(()).all())


def test_a_mask_depends_on_the_text_alone(grammars: Any) -> None:
    constraint = Constraint(json_schema='{"type": "array", "items": {"enum": ["ab", true, 12]}}')
    rng, travelled, text = random.Random(4), make(grammars, constraint), []
    for _ in range(60):
        path: list[int] = []
        while len(path) < 5 and END not in path:
            options = found(travelled, path)
            fresh = make(grammars, constraint)
            fresh.commit(text)
            for token in path:
                fresh.commit([token])
            assert found(fresh) == options
            path.append(rng.choice(sorted(options)))
        step = [token for token in path[: rng.randrange(3)] if token != END]
        travelled.commit(step)
        text += step


def test_requests_for_the_same_constraint_do_not_share_their_place(grammars: Any) -> None:
    first, second = make(grammars, "ab|c"), make(grammars, "ab|c")
    first.commit(ids("a"))
    assert found(second) == {WORDS.index(word) for word in ("a", "ab", "c")}
    assert found(first) == {WORDS.index("b")}
    for _ in range(3):  # nor what they use up of the library's limits
        assert not make(grammars, "(a?){500}a{500}").lost


@pytest.mark.parametrize(
    ("constraint", "field", "part"),
    [
        (Constraint(json_schema="{"), "constraint.json_schema", "is not JSON"),
        (Constraint(json_schema="[" * 5000), "constraint.json_schema", "is not JSON"),
        (Constraint(json_schema="[1]"), "constraint.json_schema", "is not an object"),
        (Constraint(json_schema='{"type": "objec"}'), "constraint.json_schema", "Invalid type"),
        (
            Constraint(json_schema='{"type": "array", "uniqueItems": true}'),
            "constraint.json_schema",
            "uniqueItems",
        ),
        (
            Constraint(
                json_schema='{"type": "array", "uniqueItems": true, "x-guidance": {"lenient": true}}'
            ),
            "constraint.json_schema",
            "uniqueItems",
        ),
        (
            Constraint(json_schema='{"type": "string", "minLength": 3, "maxLength": 2}'),
            "constraint.json_schema",
            "minLength",
        ),
        (
            Constraint(json_schema='{"$ref": "http://127.0.0.1/x"}'),
            "constraint.json_schema",
            "Resource",
        ),
        (Constraint(regex="(a"), "constraint.regex", "unclosed group"),
        (Constraint(regex="a(?=b)"), "constraint.regex", "look-around"),
        (Constraint(regex="Z"), "constraint.regex", "no answer that this vocabulary can spell"),
    ],
)
def test_a_constraint_that_cannot_be_enforced_is_refused(
    constraint: Constraint, field: str, part: str, grammars: Any
) -> None:
    with pytest.raises(InputError) as caught:
        make(grammars, constraint)
    assert caught.value.field == field
    assert part in caught.value.message
    assert caught.value.remedy
    assert "\n" not in str(caught.value)


def test_too_long_a_schema_is_refused_before_it_is_read(grammars: Any) -> None:
    with pytest.raises(TooLarge) as caught:
        make(grammars, Constraint(json_schema=json.dumps({"enum": ["x" * 70_000]})))
    assert caught.value.field == "constraint.json_schema"


def test_a_tokenizer_that_spells_no_bytes_is_named_as_the_reason(tiny: Any) -> None:
    from gatekeeper_adapters.engines.reference.constraints import Grammars
    from tokenizers import Tokenizer

    words = Grammars(Tokenizer.from_file(str(tiny / "tokenizer.json")), VOCAB)
    with pytest.raises(InputError, match="spells bytes"):
        make(words, "a")
    assert words.make(DecodeRequest("r", (3,), 20)) is None


def test_white_space_in_json_is_one_blank_or_one_line_break(grammars: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    closed = Constraint(json_schema=json.dumps({**schema, "additionalProperties": False}))
    for text in ('{"a":1}', '{ "a" : 1 }', '{\n  "a": 1\n}'):
        assert make(grammars, closed).permitted([*ids(text), END]) == len(text) + 1
    for text, place in (('{  "a":1}', 2), ('{"a":\n\n1}', 6)):
        assert make(grammars, closed).permitted(ids(text)) == place
