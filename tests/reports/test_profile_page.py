from __future__ import annotations

import base64
import hashlib
import re
from fractions import Fraction
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from span_builders import span, trace

from gatekeeper.core.human_wait import BOUND, MEASURED, WithoutWaiting
from gatekeeper.core.task_profile import TaskProfile, profile_task
from gatekeeper.core.what_if import Change, WhatIf
from gatekeeper.reports.profile import profile_json, render_profile, render_summary
from gatekeeper.reports.profile_page import MOST_TASKS, profile_html
from gatekeeper.reports.profile_words import excluded, total_sentence, waiting_sentence
from gatekeeper.reports.waterfall import rows

S = 10**9
HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>&\x1b[2J{{ 7 * 7 }}'


def call(name: str, start: int, first: int, end: int, **more: Any) -> Any:
    return span(
        name,
        start * S,
        end * S,
        parent="root",
        kind="model",
        langfuse__completion_start_ns=first * S,
        **more,
    )


def task(*, name: str = "search", **attributes: Any) -> TaskProfile:
    spans = (
        span("root", 0, 10 * S, **attributes),
        call("llm", 0, 1, 6, gen_ai__usage__output_tokens=5),
        span("tool", 6 * S, 10 * S, parent="root", kind="tool", name=name),
        span("side", 6 * S, 7 * S, parent="root", kind="tool"),
    )
    what = WhatIf((Change.parse("decode=2"), Change.parse("tool:sea*=2")))
    return profile_task(trace(*spans), what_if=what if name == "search" else None)


def grade_d() -> TaskProfile:
    return profile_task(
        trace(span("root", 0, 10 * S), span("llm", 0, 10 * S, parent="root", kind="model"))
    )


class Parsed(HTMLParser):
    """The tags of a page, their attributes, and the text in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.style = ""
        self._in_style = False
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.style += data
        else:
            self.texts.append(" ".join(data.split()))

    @property
    def text(self) -> str:
        return " ".join(t for t in self.texts if t)


def shown(renderable: Any) -> str:
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    console.print(renderable)
    return console.export_text()


def test_the_page_says_what_the_terminal_says() -> None:
    profile = task()
    page = Parsed(profile_html([("x/a.json", profile)], []))
    for said in (
        "What would faster work save in a.json ?",
        "Saves 45.0 %",
        "4.500 s of 10.000 s",
        "Decode at 2 times and the tool sea* at 2 times the speed saves 4.500 s of 10.000 s (45.0 %)",
        "decode and the tool sea* in no time at all would save 8.000 s of 10.000 s (80.0 %), never",
        "reconciled: path and wall differ by 0.000 s",
        "the client's first-token time",
        "if a span waits only for what the trace records as its cause",
    ):
        assert said in page.text, said
    terminal = " ".join(shown(render_profile(profile, "x/a.json")).split())
    for said in ("saves 4.500 s of 10.000 s (45.0 %)", "tool:sea*", "records as its cause"):
        assert said in terminal


def test_every_span_has_a_bar_and_the_path_is_marked() -> None:
    page = Parsed(profile_html([("a.json", task())], []))
    bars = [attrs for tag, attrs in page.tags if tag == "li" and "d" in (attrs.get("class") or "")]
    classes = [str(attrs["class"]) for attrs in bars]
    assert classes == ["d0", "d1 on", "d2 on", "d2 on", "d1", "d1 on"]  # side beside the path
    on = [
        attrs
        for tag, attrs in page.tags
        if tag == "rect" and attrs["class"] == "k-decode" and attrs["height"] == "10"
    ]
    assert next((a["x"], a["width"]) for a in on if a["y"] == "0") == ("100.00", "500.00")


def test_the_page_asks_for_nothing_and_runs_nothing() -> None:
    text = profile_html([("a.json", task())], [("b.json", "not a trace")])
    page = Parsed(text)
    policy = next(
        str(a["content"])
        for t, a in page.tags
        if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "form", "base"}
    assert not any("style" in attrs or "src" in attrs for _, attrs in page.tags)
    assert not re.search(r"https?://", text)
    assert "b.json: not a trace" in page.text


def test_hostile_names_stay_text() -> None:
    profile = task(name=HOSTILE)
    for text in (
        profile_html([(HOSTILE, profile)], [(HOSTILE, HOSTILE)]),
        shown(render_profile(profile, HOSTILE)),
        shown(render_summary([(HOSTILE, profile)])),
    ):
        assert "\x1b[2J" not in text
    page = Parsed(profile_html([(HOSTILE, profile)], []))
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert "{{ 7 * 7 }}" in page.text


def test_several_tasks_have_a_table_and_the_first_of_too_many_are_drawn() -> None:
    many = [(f"t{i}.json", task()) for i in range(MOST_TASKS + 2)]
    many[3] = ("t3.json", grade_d())
    page = Parsed(profile_html(many, []))
    assert f"{MOST_TASKS + 2} tasks, {MOST_TASKS + 1} priced (left out: 1 grade D)" in page.text
    assert f"Drawn below are the first {MOST_TASKS} of {MOST_TASKS + 2} tasks." in page.text
    sections = [a["id"] for t, a in page.tags if t == "section"]
    assert sections == ["tasks", *(f"task-{i + 1}" for i in range(MOST_TASKS)), "method"]
    assert "unknown" in page.text


def test_a_page_of_nothing_known_says_so_and_never_zero() -> None:
    page = Parsed(profile_html([("d.json", grade_d())], []))
    assert "Unknown : no task shows where its model calls decode" in page.text
    assert "saving unknown, which is not zero" in page.text


def test_what_is_not_priced_is_counted_by_reason() -> None:
    unreconciled = profile_task(
        trace(
            span("root", 0, 10 * S, gen_ai__usage__output_tokens=8),
            call("llm", 0, 1, 6, gen_ai__usage__output_tokens=5),
        )
    )
    spans = [span(f"m{i}", i * S, 9 * S, kind="model", parent="root") for i in range(4)]
    untrusted = profile_task(trace(span("root", 0, 9 * S), *spans))
    every = [task(), unreconciled, untrusted, grade_d(), grade_d()]
    assert excluded(every) == {"unreconciled": 1, "untrusted timings": 1, "grade D": 2}
    assert total_sentence(every).startswith(
        "5 tasks, 1 priced (left out: 1 unreconciled, 1 untrusted timings, 2 grade D); decode at 2"
    )


def test_json_takes_the_what_if_apart_and_shows_the_residual_and_the_repairs() -> None:
    document = profile_json(task(), "a.json")
    assert document["what_if"]["route"] is None
    decode, tool = document["what_if"]["changes"]
    assert decode == {
        "segment": "decode",
        "speedup": 2.0,
        "spans": 1,
        "work_s": 5.0,
        "on_path_s": 5.0,
        "saving_s": 2.5,
        "ceiling_s": 5.0,
    }
    assert (tool["segment"], tool["saving_s"], tool["ceiling_s"]) == ("tool:sea*", 2.0, 3.0)
    assert document["residual_s"] == 0.0
    lost = profile_json(
        profile_task(trace(span("llm", 0, S, parent="gone", kind="decode"))), "b.json"
    )
    assert any("orphan" in note for note in lost["repairs"])
    assert lost["completeness"] == 0.5


def told(what: str, *spans: Any) -> str:
    changes = tuple(map(Change.parse, what.split()))
    profile = profile_task(trace(*spans), what_if=WhatIf(changes))
    return " ".join(shown(render_profile(profile, "a.json")).split())


def test_the_ceiling_is_that_of_the_work_asked_about() -> None:
    search = span("tool", 6 * S, 10 * S, parent="root", kind="tool", name="search")
    spans = (span("root", 0, 10 * S), call("llm", 0, 1, 6), search)
    text = told("tool:search=2", *spans)
    assert "the tool search in no time at all would save 4.000 s of 10.000 s (40.0 %)" in text
    assert "The tool search at 2 times the speed saves 2.000 s" in text
    assert "infinitely fast decode" not in text
    assert "infinitely fast decode would save 5.000 s" in told("decode=2", *spans)
    unknown = span("llm", 0, 6 * S, parent="root", kind="model")
    text = told("tool=2 prefill=2", spans[0], unknown, search)
    assert "unknown: nothing tells decode from the rest of its model calls" in text
    assert "tool in no time at all would save 4.000 s" in told("tool=2", spans[0], unknown, search)
    assert "unknown: no model call in it" in told("decode=2", spans[0], search)
    assert "tool in no time at all would save 4.000 s" in told("tool=2", spans[0], search)


def counted(start: int, end: int, tokens: int) -> Any:
    name, usage = f"m{start}", {"gen_ai__usage__output_tokens": tokens}
    return span(name, start * S, end * S, parent="root", kind="model", **usage)


def test_decode_that_is_estimated_is_drawn_and_named_so_even_as_a_whole_call() -> None:
    spans = (span("root", 0, 4 * S), counted(0, 2, 1000), counted(2, 4, 10))
    profile = profile_task(trace(*spans))
    assert [(one.kind, one.estimated) for one in rows(profile)] == [
        ("other", False),
        (
            "decode",
            True,
        ),  # 1,000 tokens would take longer than the call: all of it counts as decode
        ("other", False),
        ("prefill", False),
        ("decode", True),
    ]
    page = Parsed(profile_html([("a.json", profile)], []))
    assert any(attrs.get("class") == "k-decode est" for tag, attrs in page.tags if tag == "rect")
    assert page.texts.count("decode, estimated") == 2  # a bar and the legend
    assert "m0 (decode, estimated)" in page.texts
    assert "for 1 of them that is longer than the call took, and is cut to that" in page.text
    seen = profile_task(trace(span("root", 0, 10 * S), call("llm", 0, 1, 6)))
    page = Parsed(profile_html([("a.json", seen)], []))
    assert not any("est" in (attrs.get("class") or "").split() for _, attrs in page.tags)
    assert "cut to" not in page.text


def test_a_question_about_tools_does_not_speak_of_token_rates() -> None:
    tool = span("tool", 2 * S, 4 * S, parent="root", kind="tool")
    spans = (span("root", 0, 4 * S), counted(0, 2, 10), tool)
    assert "token rate" not in told("tool=2", *spans)
    assert "token rate" in told("decode=2", *spans)


@pytest.mark.parametrize("value", ["0.5", "0.9"])
def test_a_slow_down_reads_as_a_cost(value: str) -> None:
    spans = (span("root", 0, 10 * S), call("llm", 0, 1, 6, gen_ai__usage__output_tokens=5))
    profile = profile_task(trace(*spans), what_if=WhatIf((Change.parse(f"prefill={value}"),)))
    text = Parsed(profile_html([("a.json", profile)], [])).text
    assert "Costs" in text
    assert "the speed costs" in text


@pytest.mark.parametrize(
    ("basis", "words"),
    [
        (
            MEASURED,
            "had no person been waited for, the task would take 3.000 s, and this would save 0.600 s",
        ),
        (
            BOUND,
            "the task would take at least 3.000 s, and this would save 0.600 s (20.0 %) of that: ",
        ),
    ],
)
def test_what_is_left_without_a_persons_wait_is_said_in_words(basis: str, words: str) -> None:
    found: Any = SimpleNamespace(
        task=SimpleNamespace(wall_ns=5 * 10**9),
        without_waiting=WithoutWaiting(basis, Fraction(3 * 10**9), Fraction(6 * 10**8)),
    )
    assert str(waiting_sentence(found)).startswith(words)
