"""SmolLM2-135M-Instruct under a JSON schema and a regular expression."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from engine_driver import drive
from jsonschema import Draft202012Validator

from gatekeeper.core.decoding import Constraint, DecodeRequest, SamplingSettings

if TYPE_CHECKING:
    from pathlib import Path

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.model

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 16},
        "degrees": {"type": "integer", "minimum": -60, "maximum": 60},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "rain": {"type": "boolean"},
    },
    "required": ["city", "degrees", "unit", "rain"],
    "additionalProperties": False,
}
JSON = Constraint(json_schema=json.dumps(SCHEMA))
DATE = Constraint(regex=r"(19|20)[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])")
EXAMPLE = '{"city": "Oslo", "degrees": -3, "unit": "celsius", "rain": false}'
ASKED = (
    (JSON, f"Answer as JSON like {EXAMPLE}. What is the weather in Rome?"),
    (DATE, "On which date did people first land on the moon? Answer as 1999-12-31."),
    (JSON, f"The weather in Cairo, in the form {EXAMPLE}"),
)


@pytest.fixture(scope="module")
def engine(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    from gatekeeper_adapters.engines.reference.cut import cut_layers
    from gatekeeper_adapters.engines.reference.loader import Options, load_engine

    draft = cut_layers(smollm2, [0, 1, 29], range(8192), tmp_path_factory.mktemp("cut") / "draft")
    return load_engine(
        smollm2,
        {"kind": "ngram"},
        others=[
            ({"kind": "draft_lm"}, draft),
            ({"kind": "self_speculation", "parameters": {"skip_layers": [*range(5, 25, 2)]}}, None),
        ],
        version="test",
        options=Options(max_batch=3, max_context=256),
    )


def requests(engine: Any, **changes: Any) -> list[DecodeRequest]:
    ends = engine.info.end_tokens
    return [
        DecodeRequest(
            f"r{i}",
            engine.tokenize(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"),
            72,
            constraint=constraint,
            end_tokens=ends,
            **changes,
        )
        for i, (constraint, text) in enumerate(ASKED)
    ]


def check(engine: Any, done: Any) -> None:
    for i, (constraint, _) in enumerate(ASKED):
        text = engine.detokenize(done.tokens[f"r{i}"][:-1])
        assert done.reasons[f"r{i}"] == "stop", text
        if constraint is DATE:
            assert re.fullmatch(DATE.regex or "", text), text
        else:
            Draft202012Validator(SCHEMA).validate(json.loads(text))


@pytest.fixture(scope="module")
def ordinary(engine: Any) -> dict[str, list[int]]:
    tokens = {}
    for request in requests(engine):
        tokens |= drive(engine, [request]).tokens
    return tokens


@pytest.mark.parametrize("kind", ["ngram", "draft_lm", "self_speculation"])
def test_greedy_answers_are_whole_and_those_of_ordinary_decoding(
    kind: str, engine: Any, ordinary: dict[str, list[int]]
) -> None:
    done = drive(engine, requests(engine, gamma=3, proposer=kind))
    assert done.tokens == ordinary
    assert sum(entry.accepted for entry in done.rounds) > 0
    check(engine, done)


def test_sampled_answers_are_whole(engine: Any) -> None:
    hot = SamplingSettings(temperature=1.0)
    asked = requests(engine, gamma=3, proposer="draft_lm", sampling=hot, seed=1)
    check(engine, drive(engine, asked))
