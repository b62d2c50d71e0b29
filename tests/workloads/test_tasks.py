from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from gatekeeper import workloads
from gatekeeper.workloads import tasks

SUITE = tasks.suite()
BY_ID = {task.id: task for task in SUITE}


def test_four_kinds_of_thirty_with_prompts_of_their_own() -> None:
    assert Counter(task.kind for task in SUITE) == dict.fromkeys(tasks.KINDS, 30)
    assert len(BY_ID) == len({task.text for task in SUITE}) == len(SUITE)
    assert all(task.text.endswith("<|im_start|>assistant\n") for task in SUITE)
    shared = {p.text for name in workloads.SLICES for p in workloads.prompts(name)}
    assert not shared & {task.text for task in SUITE}


@pytest.mark.parametrize("task", SUITE, ids=lambda task: task.id)
def test_its_own_answer_solves_a_task_and_little_else(task: tasks.Task) -> None:
    assert task.verify(task.answer)
    assert task.verify(f" {task.answer}\n")
    wrong = ("", " ", task.answer[:-1], task.answer + ".", f"{task.answer}\nyes", "null", "[]")
    assert not any(task.verify(text) for text in wrong)
    assert not task.verify(f"The answer is {task.answer}")


def test_no_other_tasks_answer_solves_a_task_of_its_kind() -> None:
    for task in SUITE:
        others = {o.answer for o in SUITE if o.kind == task.kind} - {task.answer}
        assert not any(task.verify(answer) for answer in others)


def test_answers_are_short() -> None:
    assert max(len(task.answer) for task in SUITE) <= 24


def test_the_answer_is_not_shown_in_the_example() -> None:
    for task in SUITE:
        if task.kind in {"copy", "arithmetic", "extract"}:
            assert f"assistant\n{task.answer}<|im_end|>" not in task.text


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ('{"count": 3}', True),
        ('{"count":3}\n', True),
        ('{"count": 3.0}', False),
        ('{"count": "3"}', False),
        ('{"count": 3, "city": "Porto"}', False),
        ('{"count": 3, "count": 3}', False),
        ('[["count", 3]]', False),
        ('```json\n{"count": 3}\n```', False),
        ("{count: 3}", False),
        ('{"count": 3} {}', False),
        ('{"count": NaN}', False),
        ("[" * 100_000, False),
    ],
)
def test_extraction_wants_the_object_itself(text: str, good: bool) -> None:  # noqa: FBT001 - a table
    assert BY_ID["extract-01-count"].verify(text) is good


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("4 + 3 = 7", True),
        ("4 + 3 = 07", False),
        ("3 + 4 = 7", False),
        ("4+3=7", False),
        ("7", False),
        ("4 + 3 = 7 + 0", False),
        ("4 + 3 = ٧", False),
    ],
)
def test_sums_stand_in_the_grammar(text: str, good: bool) -> None:  # noqa: FBT001 - a table
    assert BY_ID["arithmetic-01"].verify(text) is good


def test_the_digest_follows_the_content() -> None:
    assert tasks.digest() == tasks.digest(SUITE)
    assert len(tasks.digest()) == 64
    for changed in (replace(SUITE[0], text="other"), replace(SUITE[0], answer="other")):
        assert tasks.digest((changed, *SUITE[1:])) != tasks.digest()
    assert tasks.digest(SUITE[1:]) != tasks.digest()
