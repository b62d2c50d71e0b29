from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from typing import Any

import pytest

from gatekeeper import workloads
from gatekeeper.errors import InputError
from gatekeeper.workloads import documents, tool_calls


@pytest.mark.parametrize("name", workloads.SLICES)
def test_slices_have_enough_distinct_well_formed_prompts(name: str) -> None:
    found = workloads.prompts(name)
    assert len(found) >= 24
    assert len({p.id for p in found}) == len({p.text for p in found}) == len(found)
    for prompt in found:
        assert prompt.slice == name
        assert prompt.text.startswith("<|im_start|>")
        assert prompt.text.endswith("<|im_start|>assistant\n")
        assert prompt.text.count("<|im_start|>") == prompt.text.count("<|im_end|>") + 1


def test_slices_share_no_prompt() -> None:
    texts = [p.text for name in workloads.SLICES for p in workloads.prompts(name)]
    assert len(set(texts)) == len(texts)


def test_prompts_are_not_one_template_with_another_word() -> None:
    """No two prose or code prompts share most of their words."""
    for name in ("prose", "code"):
        bags = [set(re.findall(r"\w{4,}", p.text)) for p in workloads.prompts(name)]
        for i, one in enumerate(bags):
            for other in bags[:i]:
                assert len(one & other) / min(len(one), len(other)) < 0.7


def test_tool_calls_repeat_the_keys_that_the_answer_needs() -> None:
    for prompt in workloads.prompts("tool_calls"):
        if "-next-" not in prompt.id:
            continue
        calls = re.findall(r"<\|im_start\|>assistant\n(\{.*\})<\|im_end\|>", prompt.text)
        assert calls
        shapes = {tuple(json.loads(call)["arguments"]) for call in calls}
        assert len(shapes) == 1
        assert {json.loads(call)["tool"] for call in calls} == {prompt.id.split("-")[0]}


def test_multilingual_text_is_written_in_many_languages_and_four_scripts() -> None:
    texts: dict[str, str] = {}
    for prompt in workloads.prompts("multilingual"):
        language = prompt.id.split("-")[1]
        asked = prompt.text.split("user\n")[1].split("<|im_end|>")[0]
        texts[language] = texts.get(language, "") + asked
    assert len(texts) >= 8
    scripts = {
        language: Counter(unicodedata.name(c).split()[0] for c in text if c.isalpha())
        for language, text in texts.items()
    }
    found = {language: counts.most_common(1)[0][0] for language, counts in scripts.items()}
    assert found["de"] == found["pl"] == "LATIN"
    assert {found["ru"], found["el"], found["ja"]} == {"CYRILLIC", "GREEK", "HIRAGANA"}


def test_long_context_prompts_hold_a_document_and_a_question_about_it() -> None:
    by_document: dict[str, list[str]] = {}
    for prompt in workloads.prompts("long_context"):
        by_document.setdefault(prompt.id.split("-")[1], []).append(prompt.text)
    assert by_document.keys() == documents.DOCUMENTS.keys()
    for name, texts in by_document.items():
        document = documents.DOCUMENTS[name]
        assert len(document) > 900
        for text in texts:
            assert document in text
            assert 20 < len(text.split(document)[1]) < 200


def test_every_tool_is_used() -> None:
    assert len({p.id.split("-")[0] for p in workloads.prompts("tool_calls")}) == len(
        tool_calls._TOOLS
    )


def test_an_unknown_slice_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        workloads.prompts("poetry")
    assert caught.value.field == "slice"
    assert "tool_calls" in str(caught.value)


def test_long_prompts_are_left_out_whole() -> Any:
    def words(text: str) -> Any:
        return tuple(range(len(text.split())))

    everything = workloads.tokenised("code", words)
    limit = sorted(len(p.tokens) for p in everything)[9]
    some = workloads.tokenised("code", words, max_tokens=limit)
    assert 10 <= len(some) < len(everything)
    assert set(some) <= set(everything)
    with pytest.raises(InputError) as caught:
        workloads.tokenised("code", words, max_tokens=3)
    assert caught.value.field == "max_prompt_tokens"


def test_the_digest_follows_the_content() -> None:
    found = {workloads.digest(name) for name in workloads.SLICES}
    assert len(found) == len(workloads.SLICES)
    assert workloads.digest("code") == workloads.digest("code")
