"""An equivalence run in plain words: nothing claimed that was not shown, no term of the trade."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import pytest
from plain_cases import ALL, case, policy
from plain_cases import document as answered
from reported import artifact as reference_artifact
from rich.console import Console

from gatekeeper import workloads
from gatekeeper.core.stats.power import REFERENCE
from gatekeeper.core.stats.tolerance import FEATURES
from gatekeeper.core.verdicts import GateResult, Outcome, Part
from gatekeeper.errors import InputError
from gatekeeper.gates import equivalence_context
from gatekeeper.gates.servers_missing import missing
from gatekeeper.reports import number_forms as forms
from gatekeeper.reports.plain_verdict import collect, lay_out
from gatekeeper.reports.plain_words import (
    FACTS,
    KNOWN_FAULTS,
    UNSEEN,
    chance,
    in_number,
    kind_of_token,
    prompt_words,
    setting_words,
    times_in,
)
from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_markdown import render_markdown
from gatekeeper.reports.route_report_figures import (
    Facts,
    Figure,
    Group,
    Items,
    Ledger,
    Paragraph,
    Table,
)
from gatekeeper.reports.route_report_gates import gate_groups
from gatekeeper.reports.route_terminal import render_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gatekeeper.reports.route_report_figures import Block, Line, Piece, Report

TERMS = re.compile(
    r"e-process|alpha|strat(um|a)\b|p-value|null hypothesis|logit|log-|likelihood|posterior|"
    r"confidence|significan|statistical|distribution|deficit|gamma|nats\b",
    re.IGNORECASE,
)
KNOWN_NUMBERS = re.compile(
    r"temperature \d(\.\d+)?|run-[01]|\d{4}-\d\d-\d\d \d\d:\d\d UTC|“[^”]*”|http://\S+|<\d+>"
)


def words(document: dict[str, Any]) -> str:
    """Everything the page says, without the list of claims at its end."""
    report = lay_out(document)
    return " ".join([report.headline, *("".join(map(piece_text, c)) for c in lines(report))])


def lines(report: Report) -> Iterator[Line]:
    yield report.explanation
    blocks: list[Block] = [report.facts, *(b for s in report.sections for b in s.blocks)]
    for block in blocks:
        if isinstance(block, Facts):
            yield from (content for _, content in block.rows)
        elif isinstance(block, Items):
            yield from block.items
        elif isinstance(block, Paragraph):
            yield block.content
        else:
            assert isinstance(block, Table)
            yield from (cell for row in block.rows for cell in row)


def piece_text(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.text


@pytest.mark.parametrize("name", ALL)
def test_no_number_without_its_claim_and_no_term_of_the_trade(name: str) -> None:
    document = case(name)
    report = lay_out(document)
    assert report.unclaimed == ()
    claims = {claim["id"]: claim["value"] for claim in document["claims"]}
    figures = [p for c in lines(report) for p in c if isinstance(p, Figure)]
    assert len(figures) > 7
    assert all(claims[str(figure.claim)] == figure.value for figure in figures)
    bare = " ".join(p for c in lines(report) for p in c if isinstance(p, str))
    for foreign in (document["artifact"]["target"]["source"], *known_prompts()):
        bare = bare.replace(foreign, "")
    assert re.search(r"\d", KNOWN_NUMBERS.sub("", bare)) is None, bare
    assert TERMS.search(words(document)) is None


def known_prompts() -> list[str]:
    return [prompt.id for prompt in workloads.prompts("prose")]


@pytest.mark.parametrize(
    ("name", "headline", "tone"),
    [
        ("pass", "Passed: no difference from the model alone was found", "good"),
        ("fail", "Failed: with the draft, the model does not write what it would alone", "bad"),
        ("strict fail", "Failed: with the draft, the model does not write", "bad"),
        ("open", "Undecided: what was compared is not enough to say", "warn"),
        ("approximate pass", "Passed: as an approximation, it stays inside the limits", "good"),
        ("approximate fail", "Failed: it departs further from the model alone than is", "bad"),
        ("servers fail", "Failed: the server with a draft does not write what", "bad"),
        ("servers open", "Undecided: no fault was seen, and from outside too little", "warn"),
        ("scored pass", "Passed: no difference from the model alone was found", "good"),
        ("scored fail", "Failed: with the draft, the model does not write what", "bad"),
        ("scored both", "No answer: there was nothing sound to compare with", "bad"),
    ],
)
def test_each_verdict_reads_as_what_it_is(name: str, headline: str, tone: str) -> None:
    document = case(name)
    report = lay_out(document)
    assert report.headline.startswith(headline)
    assert report.tone == tone
    page = " ".join(render_html(report).split())
    assert f'<span class="action {tone}">' in page
    assert "Does speculation change what <strong>prose</strong> writes?" in page
    for name_of_fact in ("Claimed", "Tested", "Tokens used", "Tokens still needed", "Run"):
        assert f"<dt>{name_of_fact}</dt>" in page
        assert f"- {name_of_fact}: " in render_markdown(report)
    console = Console(width=80, file=io.StringIO(), highlight=False, markup=False)
    console.print(render_terminal(report, width=78))
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert headline.partition(":")[0] in printed
    assert "\\u202f" not in printed


def test_a_fail_sticks_and_says_what_to_do() -> None:
    for name in ("fail", "strict fail", "servers fail", "approximate fail"):
        said = words(case(name))
        assert "Testing again does not lift this verdict." in said
        assert "Leave speculation off on this route." in said
        assert "none: the verdict stands, however many follow" in said
        assert "gatekeeper gate run prose equivalence" not in said


def test_the_first_difference_is_shown_with_the_words_that_were_written() -> None:
    document = case("fail")
    example = document["run"]["result"]["summary"]["counter_example"]
    assert (example["text"], example["expected_text"]) == (
        f"<{example['token']}>",
        f"<{example['expected']}>",
    )
    (prompt,) = (p for p in workloads.prompts("prose") if p.id == example["prompt"])
    said = words(document)
    assert f"“{prompt_words(prompt.text)}” ({prompt.id})" in said
    assert f"after {example['position']} tokens of the answer" in said
    assert f"wrote “<{example['token']}>” (token number {example['token']})" in said
    assert f"wrote “<{example['expected']}>”. Without chance it always takes its first" in said
    strict = case("strict fail")
    example = strict["run"]["result"]["summary"]["counter_example"]
    said = words(strict)
    assert f"with a chance of {forms.share(example['target_probability'])}" in said
    assert "One token proves nothing by itself." in said


def test_texts_that_nobody_stored_are_said_to_be_unknown() -> None:
    document = case("fail")
    document["prompt"] = None
    example = document["run"]["result"]["summary"]["counter_example"]
    example |= {"text": None, "expected_text": None}
    said = words(document)
    assert f"wrote token number {example['token']}; its text is not stored" in said
    assert f"wrote token number {example['expected']}" in said
    example |= {"token": -1, "expected": None, "deficit": None}
    said = words(document)
    assert "ended the answer" in said
    assert "How likely it finds the other token is unknown" in said


def test_two_servers_texts_are_quoted_and_what_they_hide_is_listed() -> None:
    said = words(case("servers fail"))
    assert "wrote “ black”" in said
    assert "wrote “ red”. It finds that at least 20.1 times as likely" in said
    said = words(case("servers open"))
    assert "two servers do not show enough of themselves" in said
    assert "unknown: tokens are not what is missing" in said
    for hidden in UNSEEN.values():
        assert hidden in said
    assert {one.name for one in missing({})} == set(UNSEEN)


def test_two_servers_whose_tokens_were_scored_say_by_what_and_what_that_misses() -> None:
    said = words(case("scored pass"))
    assert "Both are said to run the model file:/models/target." in said
    assert "against a separate calculation from the model's own files" in said
    assert "None of it shows a difference." in said
    assert "Which tokens were guesses." in said
    assert "Would so many tokens have shown it" not in said
    failed = words(case("scored fail"))
    assert "Server with a draft" not in failed or "chance of" in failed
    assert "tokens drawn at random. no difference" in failed
    both = words(case("scored both"))
    assert "So the draft is not to blame" in both


def test_an_open_run_says_how_much_more_it_takes() -> None:
    document = case("open")
    needed = document["run"]["result"]["summary"]["tokens_needed"]
    assert needed > 100
    said = words(document)
    assert f"It takes about {forms.count(needed)} more tokens to say." in said
    assert "up to 300 more tokens for each setting are drawn, none twice" in said
    document["run"]["result"]["summary"]["tokens_needed"] = None
    said = words(document)
    assert "How many more tokens it takes is unknown." in said
    assert (
        "Tokens alone may not settle it. What is open: how often kinds of tokens come up." in said
    )


def test_every_fact_of_a_test_has_its_plain_words() -> None:
    assert tuple(FACTS) == equivalence_context.FACTS


def test_a_run_that_goes_on_says_from_where_and_one_that_does_not_says_why() -> None:
    document = case("gone on")
    summary = document["run"]["result"]["summary"]
    before = summary["continues"][0]["tokens"]
    assert summary["tokens"] > before >= 300
    said = words(document)
    assert f"{forms.count(before)} of the tokens drawn at random were there before (run-0)" in said
    anew = words(case("begun anew"))
    assert "The undecided run before (run-0) does not count here: it differed in the way" in anew
    goes_on = f"run-0, with {forms.count(before)} sampled tokens"
    assert reported("gone on")["Goes on from"] == goes_on
    assert reported("begun anew")["Goes on from"].startswith("nothing: run-0 was another test (")
    assert "Goes on from" not in reported("pass")


def test_the_report_says_what_each_part_of_the_gate_took() -> None:
    cost = case("pass")["run"]["result"]["summary"]["cost"]
    assert list(cost) == ["generation", "scoring", "q_at_the_bonus", "bank"]
    shown = [f"{n.replace('_', ' ')} {forms.plain(c['ms_per_token'])}" for n, c in cost.items()]
    assert reported("pass")["Cost"] == f"{', '.join(shown)} ms a token, by the clock"


def reported(name: str) -> dict[str, str]:
    """The facts of the run in the report of its route."""
    run = case(name)["run"]
    entry = {**run, "run": run["id"], "outcome": run["result"]["outcome"], "expires_at": None}
    report = {"route": "prose", "decision": {"gates": []}, "gates": {"equivalence": entry}}
    (group,) = (g for g in gate_groups(report, Ledger.of([])) if isinstance(g, Group))
    (facts,) = (b for b in group.blocks if isinstance(b, Facts))
    return {title: "".join(map(piece_text, content)) for title, content in facts.rows}


def test_what_it_would_have_found_is_said_only_where_it_was_declared() -> None:
    silent = case("pass")
    silent["run"]["result"]["summary"]["design"]["declared_effect"] = None
    said = words(silent)
    assert "How small a difference it may have missed is unknown" in said
    assert "times in" not in said
    short = case("pass")
    effect = short["run"]["result"]["summary"]["design"]["declared_effect"]
    assert effect["tokens_needed"] > short["run"]["result"]["summary"]["tokens"]
    least = forms.count(effect["tokens_needed"])
    assert "Fewer were compared, so a fault of that size may have been missed" in words(short)
    assert (
        f"none for this verdict; to notice a fault in 30 in 100 tokens 9 times in 10, about {least} in all"
        in words(short)
    )
    assert "would have found it" not in words(short)
    effect["tokens_needed"] = short["run"]["result"]["summary"]["tokens"]
    assert "this test would have found it 9 times in 10 (an estimate" in words(short)
    assert "none for the difference that the plan sets out to find, 30 in 100 tokens" in words(
        short
    )


@pytest.mark.parametrize("name", ["approximate pass", "approximate fail"])
def test_an_approximation_is_never_called_exact(name: str) -> None:
    said = words(case(name))
    assert "exact" not in said
    assert "None of it shows a difference" not in said
    assert "may depart from what it would write alone" in said


def test_an_approximation_that_writes_another_fixed_text_still_gets_its_verdict() -> None:
    summary = case("approximate pass")["run"]["result"]["summary"]
    assert summary["greedy"]["mismatches"] > 0
    assert summary["tokens"] >= 120
    assert "An approximation may do this." in words(case("approximate pass"))


@pytest.mark.parametrize(
    ("state", "result", "expected"),
    [
        ("pending", None, "the run is pending"),
        ("running", None, "the run is running"),
        ("cancelled", None, "the run is cancelled"),
        ("failed", "ERROR", "the run ended before anything was compared"),
    ],
)
def test_no_evidence_is_never_a_success(state: str, result: str | None, expected: str) -> None:
    stored = None
    if result is not None:
        part = Part("run", Outcome.ERROR, "the device was lost")
        stored = GateResult("equivalence", Outcome.ERROR, (part,))
    rules = policy()
    waiting = "a worker" if state == "pending" else None
    empty = answered(
        reference_artifact(), rules, stored, [], state=state, waiting_for=waiting, finished_at=None
    )
    report = lay_out(empty)
    assert expected in report.headline
    assert report.tone != "good"
    said = words(empty)
    assert "Nothing has been compared, so nothing is known of the text." in said
    assert ("the device was lost" in said) == (result is not None)
    assert not re.search("no difference|none was found|passed", said, re.IGNORECASE)


def test_a_baseline_that_contradicts_itself_says_nothing_of_the_draft() -> None:
    document = case("pass")
    document["run"]["result"] |= {"outcome": "ERROR"}
    document["run"]["result"]["parts"][0] |= {"outcome": "ERROR"}
    said = words(document)
    assert said.startswith("No answer: there was nothing sound to compare with")
    assert "So nothing can be said of the draft." in said
    assert "None was found" not in said


def test_foreign_words_stay_words() -> None:
    hostile = "<script>alert(1)</script>\x1b[2J|*"
    document = case("fail")
    document["prompt"] = hostile
    document["artifact"]["target"]["source"] = hostile
    document["run"]["result"]["summary"]["counter_example"] |= {"text": hostile, "prompt": hostile}
    report = lay_out(document)
    assert "<script" not in render_html(report)
    assert "<script>" not in render_markdown(report).replace(r"\<script\>", "")
    console = Console(width=80, file=io.StringIO(), highlight=False, markup=False)
    console.print(render_terminal(report, width=78))
    assert "\x1b" not in console.file.getvalue()  # type: ignore[attr-defined]


def test_another_gates_run_is_refused() -> None:
    document = case("pass")
    with pytest.raises(InputError, match="only equivalence runs"):
        collect(
            {**document["run"], "gate": "serving"},
            document["artifact"],
            document["policy"],
            [],
            prompts={},
            written_at="",
        )


def test_words_for_numbers_and_names() -> None:
    assert [in_number(x) for x in (0.02, 0.001, 0.3)] == ["1 in 50", "1 in 1\u202f000", "30 in 100"]
    assert [times_in(x) for x in (0.9, 0.95, 0.5)] == [
        "9 times in 10",
        "95 times in 100",
        "5 times in 10",
    ]
    assert [chance(x) for x in (0.0, 0.25, 1.0)] == ["<0.1 %", "25 %", ">99.9 %"]
    assert setting_words("T=0.7 top_p=0.9") == "temperature 0.7, top p 0.9"
    assert set(KNOWN_FAULTS) == set(REFERENCE)
    named = {kind_of_token(feature) for feature in FEATURES}
    assert len(named) == len(FEATURES) - 2  # three halves of the vocabulary share their words
    long = prompt_words("<|im_start|>user\nread " + "on " * 500 + "to the end.<|im_end|>")
    assert len(long) < 300
    assert long.startswith("read on")
    assert long.endswith("to the end.")
    assert prompt_words("no roles\nat all") == "no roles at all"


def test_the_route_report_quotes_a_servers_token_and_names_this_page() -> None:
    run = case("servers fail")["run"]
    entry = {**run, "run": run["id"], "outcome": "FAIL", "expires_at": None}
    report = {"route": "prose", "decision": {"gates": []}, "gates": {"equivalence": entry}}
    (group,) = gate_groups(report, Ledger.of([]))
    assert isinstance(group, Group)
    said = " ".join(
        piece_text(p) for b in group.blocks if isinstance(b, Paragraph) for p in b.content
    )
    assert "token  ' black'" in said
    assert "gatekeeper gate explain run-1" in said
