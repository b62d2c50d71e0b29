"""The report of a route: what it says, that it says nothing else, and who stands for it."""

from __future__ import annotations

import base64
import copy
import hashlib
import io
import json
import re
from collections import Counter
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from gatekeeper.actions.ledger import verify_ledger
from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.core.claims import Claim
from gatekeeper.core.equations import recompute
from gatekeeper.core.policies import Policy
from gatekeeper.core.running_pair import pair_document
from gatekeeper.reports.charts import Forest
from gatekeeper.reports.route_html import render_html
from gatekeeper.reports.route_markdown import render_markdown
from gatekeeper.reports.route_report import lay_out
from gatekeeper.reports.route_report_figures import Charts, Ledger, Paragraph, RunFigures, leaf
from gatekeeper.reports.route_report_terms import terms_section
from gatekeeper.reports.route_report_value import outcome_section
from gatekeeper.reports.route_terminal import render_terminal

if TYPE_CHECKING:
    from reported import Reported

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(2)>&\x1b[2J{{ 7 * 7 }}'
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Every figure with the claim it names, the tags used, and the text outside of them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.figures: list[dict[str, str]] = []
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self._figure: dict[str, str] | None = None
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "a" and found.get("class") == "fig" and found.get("title"):
            self._figure = {"claim": str(found["title"]), "href": str(found["href"]), "text": ""}
        if tag == "data":
            figure = self._figure or {"claim": "", "href": "", "text": ""}
            figure["value"] = str(found["value"])
            self._figure = figure

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        if tag in {"dt", "dd", "th", "td", "li", "p", "h1", "h2", "h3", "caption"}:
            self.text += " "
        if tag == "data" and self._figure is not None:
            self.figures.append(self._figure)
            self._figure = None

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
            return
        self.text += data
        if self._figure is not None and self._open[-1] == "data":
            self._figure["text"] += data

    def named(self, name: str) -> dict[str, str | None]:
        """Attributes of the element with this id."""
        return next(found for _, found in self.tags if found.get("id") == name)


def page(document: dict[str, Any]) -> Page:
    return Page(render_html(lay_out(document)))


def terminal(document: dict[str, Any], width: int = 100) -> str:
    console = Console(width=width, file=io.StringIO(), highlight=False, markup=False)
    console.print(render_terminal(lay_out(document), width=width - 2))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def shown(document: dict[str, Any]) -> str:
    """The page's text, spaces as one."""
    return " ".join(page(document).text.split())


SCALES = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86400, "%": 0.01, "KiB": 2**10}
SCALES |= {"MiB": 2**20, "GiB": 2**30}


def reads_as(text: str, value: float) -> bool:
    """Whether a printed figure is its exact value, rounded to the digits it shows."""
    text = text.replace("\u202f", "").replace("−", "-")
    if text[0] in "<>":
        limit = float(text[1:].split()[0]) / 100
        return value < limit if text[0] == "<" else value > limit
    match = re.fullmatch(r"([+-]?\d+(?:\.(\d+))?(?:e[+-]\d+)?)\s*(×|/s|\S*)", text)
    assert match, text
    scale = SCALES.get(match[3], 1)
    digits = len(match[2] or "")
    unit = 10.0**-digits * (1 if "e" not in match[1] else 10.0 ** int(match[1].split("e")[1]))
    printed = float(match[1])
    # four significant digits may end before the point
    slack = max(unit / 2, abs(printed) * 5e-4)
    return abs(printed - value / scale) <= slack * 1.0001


def test_every_figure_is_the_apis_and_its_claim_recomputes(reported_route: Reported) -> None:
    document, server = reported_route.full, reported_route.server
    claims = {claim["id"]: claim for claim in document["claims"]}
    assert len(claims) == len(document["claims"])
    found = page(document)
    assert len(found.figures) > 200
    verified = {row["id"]: row for row in verify_ledger(server.db, server.evidence)}
    assert [row for row in verified.values() if not row["agrees"]] == []
    sources = Sources(reported_route)
    kinds = set()
    for figure in found.figures:
        claim = claims[figure["claim"]]
        assert float(figure["value"]) == claim["value"], figure
        assert reads_as(figure["text"], claim["value"]), figure
        assert found.named(figure["href"].removeprefix("#"))
        kind, _, rest = claim["id"].partition("/")
        kinds.add(kind)
        if kind == "report":
            again = recompute(Claim.from_dict(claim))
        elif kind in {"value", "pricing"} or (kind == "run" and "/engine/" not in rest):
            assert verified[claim["id"]]["agrees"], claim
            again = verified[claim["id"]]["recomputed"]
        else:
            again = sources.says(claim["id"])
        assert again == pytest.approx(claim["value"], rel=1e-9), claim
    assert kinds == {"run", "value", "pricing", "decision", "artifact", "policy", "report", "tasks"}


class Sources:
    """What was declared, decided and counted, as other endpoints have it."""

    def __init__(self, reported: Reported) -> None:
        route, document = reported.full["route"], reported.full
        with reported.server.client("reader") as reader:

            def get(where: str) -> Any:
                answer = reader.get(where)
                assert answer.is_success
                return answer.json()

            policy = get(f"/v1/policies/{document['policy']['digest']}")["document"]
            artifact = get(f"/v1/artifacts/{document['artifact']['digest']}")["document"]
            tasks = get(f"/v1/tasks?route={route}")
            runs = get(f"/v1/gate-runs?route={route}")["items"]
            self._documents = {f"decision/{route}": get(f"/v1/routes/{route}/decision")}
        self._documents |= {
            f"policy/{Policy.from_dict(policy).digest}": policy,
            f"artifact/{parse_artifact(artifact).digest}": artifact,
            f"tasks/{route}": {
                "complete": sum(t["state"] == "complete" for t in tasks["items"]),
                "open": sum(t["state"] == "open" for t in tasks["items"]),
                "unmatched_calls": tasks["unmatched_calls"],
                "grades": Counter(t["grade"] for t in tasks["items"]),
            },
        }
        self._documents |= {f"run/{run['id']}/engine": run["info"] for run in runs}

    def says(self, claim: str) -> Any:
        name = next(name for name in self._documents if claim.startswith(f"{name}/"))
        return leaf(self._documents[name], claim.removeprefix(f"{name}/"))


def test_the_claims_at_the_end_are_those_cited(reported_route: Reported) -> None:
    report = lay_out(reported_route.full)
    text = render_html(report)
    assert report.unclaimed == ()
    assert "†" not in text
    cited = {figure["claim"] for figure in Page(text).figures}
    listed = {claim["id"] for claim in report.claims}
    assert cited <= listed
    sentences = {c["id"] for c in report.claims if isinstance(c["value"], str)}
    assert listed - cited == sentences
    for claim in report.claims:
        assert str(claim["equation"]) in text


def test_the_page_asks_nothing_of_anybody(reported_route: Reported) -> None:
    text = render_html(lay_out(reported_route.full))
    found = Page(text)
    assert {tag for tag, _ in found.tags} & {"script", "img", "iframe", "form", "object"} == set()
    for tag, attributes in found.tags:
        assert not any(name.startswith("on") or name == "style" for name in attributes), tag
        for name in ("href", "src", "action", "srcset"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:,")), attributes
    assert "url(" not in found.style
    assert "@import" not in found.style
    policy = next(a["content"] for t, a in found.tags if a.get("http-equiv"))
    digest = base64.b64encode(hashlib.sha256(found.style.encode()).digest()).decode()
    assert policy is not None
    assert f"style-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "script-src" not in policy  # the default forbids it


def test_readers_of_screens_find_their_way(reported_route: Reported) -> None:
    found = page(reported_route.full)
    ids = [a["id"] for _, a in found.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    for tag, attributes in found.tags:
        if tag == "svg":
            assert attributes["role"] == "img"
            assert len(str(attributes["aria-label"])) > 20
        if tag == "th":
            assert attributes["scope"] in {"row", "col"}
        href = attributes.get("href") or ""
        assert not href.startswith("#") or href[1:] in ids
    assert sum(tag == "h1" for tag, _ in found.tags) == 1
    assert sum(tag == "svg" for tag, _ in found.tags) == 9


def test_foreign_words_stay_words(reported_route: Reported) -> None:
    text = json.dumps(reported_route.full)
    document = json.loads(text)

    def taint(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: taint(v) for k, v in value.items()}
        if isinstance(value, list):
            return [taint(v) for v in value]
        return HOSTILE if isinstance(value, str) and value.startswith("taint") else value

    document["decision"]["explanation"] = "taint"
    document["decision"]["reason"] = "taint"
    document["artifact"]["document"]["target"]["source"] = "taint"
    document["gates"]["equivalence"]["result"]["parts"][0]["detail"] = "taint"
    document["gates"]["equivalence"]["result"]["parts"][0]["name"] = "taint"
    document["gates"]["serving"]["result"]["summary"]["acceptance_matrix"][0]["slice"] = "taint"
    document["gates"]["outcome"]["engine"]["name"] = "taint"
    document["value"]["economics"]["name"] = "taint"
    document["value"]["what_would_change"].append("taint")
    document["overrides"] = [
        {
            "id": "taint", "route": "r", "action": "bypass", "gamma": 2, "reason": "taint",
            "actor": "taint", "created_at": "2030-01-01T00:00:00+00:00",
            "expires_at": "2031-01-01T00:00:00+00:00", "cleared_at": None, "cleared_by": None,
        }
    ]  # fmt: skip
    document["claims"].append({**document["claims"][0], "id": "decision/prose/explanation", "value": "taint", "source": "taint", "unit": "taint"})  # fmt: skip
    hostile = taint(document)
    hostile["route"] = hostile["decision"]["route"] = HOSTILE
    found = page(hostile)
    assert {tag for tag, _ in found.tags} & {"script", "img"} == set()
    assert found.text.count("<script>alert(1)</script>") > 8
    assert "{{ 7 * 7 }}" in found.text
    printed = terminal(hostile)
    assert "\x1b" not in printed
    assert r"\x1b[2J" in printed
    assert "<script>" not in render_markdown(lay_out(hostile)).replace(r"\<script\>", "")


def test_a_figure_that_no_claim_bears_out_is_marked(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    region = document["gates"]["serving"]["result"]["summary"]["regions"][0]
    region["speedup"]["ratio"] += 0.5
    report = lay_out(document)
    assert len(report.unclaimed) == 1
    text = shown(document)
    assert "†" in text
    assert "no claim reproduces" in text
    assert "†" in terminal(document)
    assert "†" in render_markdown(report)


def test_what_is_unknown_is_said_to_be(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    serving = document["gates"]["serving"]["result"]["summary"]
    serving["regions"][0]["times"]["draft_s"] = None
    serving["regions"][0]["predicted_speedup"] = None
    serving["memory"]["draft_kv"] = None
    serving["memory"]["unmeasured"] = ["draft_kv"]
    document["value"]["terms"]["expected_quality_loss"] = None
    document["value"]["total"] = None
    text = shown(document)
    assert text.count("unknown") >= 4
    assert "cannot measure draft kv" in text
    assert "= Value per task unknown" in text
    assert lay_out(document).unclaimed == ()


@pytest.mark.parametrize(
    ("drawn", "said"),
    [(True, "is drawn together with the speed-up"), (False, "off the least saved")],
)
def test_why_a_saving_can_price_below_zero_is_said(
    reported_route: Reported, *, drawn: bool, said: str
) -> None:
    document = copy.deepcopy(reported_route.full)
    assert document["value"]["first_token_drawn"]
    document["value"]["first_token_drawn"] = drawn
    document["value"]["first_token_s"]["high"] = 0.5
    text = shown(document)
    assert said in text
    assert "can still price below zero" in text
    assert "every call is taken to gain the speed-up used" in text
    document["value"]["first_token_s"]["high"] = 0.0
    assert "below zero" not in shown(document)


def test_kinds_of_tasks_have_their_pairs(reported_route: Reported) -> None:
    document = reported_route.full
    kinds = document["gates"]["outcome"]["result"]["summary"]["kinds"]
    assert [row["pairs"] for row in kinds] == [80, 80]
    assert "only all pairs together are judged" in shown(document)


def test_terms_are_explained_where_they_occur(reported_route: Reported) -> None:
    full = shown(reported_route.full)
    for meaning in ("time per output token after the first", "draft tokens proposed in one round"):
        assert full.count(meaning) == 1
    assert "requests per second that meet every objective" in full
    sections = lay_out(reported_route.steps["nothing"]).sections
    (terms,) = [one for one in sections if one.name == "terms"]
    assert "TPOT" not in str(terms)
    assert sections[-1] is terms


@pytest.mark.parametrize(
    ("used", "meaning"),
    [
        ("strict e-process", "the strict test: E is what bets against"),
        ("id bit", "one binary digit of the token's number"),
        ("slowdown spread", "slowdown of the load class that fares worst over"),
        ("E[P]·T₁ ÷ (Td + Tv + To)", "tokens that a round commits on average; time of an ordinary"),
        ("b=", "only the baseline (b) or only the candidate (c) succeeded"),
    ],
)
def test_signs_and_names_of_the_statistics_are_among_the_terms(
    reported_route: Reported, used: str, meaning: str
) -> None:
    full = shown(reported_route.full)
    assert used in full
    assert full.count(meaning) == 1
    assert meaning not in shown(reported_route.steps["nothing"])


def test_the_bank_is_explained_where_its_cost_is_shown() -> None:
    paragraph = Paragraph(("bank 0.5 ms a token",))
    assert "E is their average" in str(terms_section([paragraph]))
    assert terms_section([Paragraph(("nothing",))]) == ()


def test_a_bit_of_the_id_is_said_in_words(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    rows = document["gates"]["equivalence"]["result"]["summary"]["tolerance"]
    for row in rows:
        row["feature"] = "id bit 2"
    assert "tokens of one half of the vocabulary, id bit 2 (" in shown(document)


def test_the_axis_of_the_difference_counts_percent_as_its_label_does(
    reported_route: Reported,
) -> None:
    document = reported_route.full
    summary = document["gates"]["outcome"]["result"]["summary"]
    figures = RunFigures(Ledger.of(()), "run", "outcome", document["gates"]["outcome"]["result"])
    (charts,) = [one for one in outcome_section(figures).blocks if isinstance(one, Charts)]
    (forest,) = charts.charts
    assert isinstance(forest, Forest)
    assert forest.x_label.startswith("in percent")
    assert forest.rows[0].value == 100 * summary["difference"]
    assert forest.rows[0].low == 100 * summary["interval"][0]
    assert dict(forest.references) == {"margin": -100 * summary["margin"], "equal": 0.0}


def test_a_round_cheaper_than_a_step_is_explained(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    (first, *_) = [c for c in document["claims"] if "/break_even.c" in c["id"]]
    first["value"] = 1.5
    text = "verifying several rows together came out cheaper"
    others = [c for c in document["claims"] if "/break_even.c" in c["id"]]
    for claim in others:
        claim["value"] = 1.5
    assert text not in shown(document)
    first["value"] = 0.9
    assert text in shown(document)


def test_calls_without_a_route_have_their_reason(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    reason = "pricing them would count the saving twice"
    document["tasks"]["unmatched_calls"] = 0
    assert reason not in shown(document)
    document["tasks"]["unmatched_calls"] = 24
    assert reason in shown(document)


def test_servers_are_not_sent_to_a_gate_that_refuses_them(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.steps["two gates"])
    assert "gatekeeper gate run prose outcome" in shown(document)
    pair = pair_document("http://a:1", "http://b:2", model=None, gamma=None, version="1")
    document["artifact"]["document"] = pair
    document["route"] = "own-files"
    text = shown(document)
    assert "gatekeeper gate run own-files outcome" not in text
    assert "gatekeeper outcome check PAIRS.csv" in text
    assert "own-files-files" not in text


def test_a_pricing_that_lacks_something_names_the_next_command(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    command = "gatekeeper traces list --route prose"
    document["value"]["still_needed"] = []
    assert command not in shown(document)
    document["value"]["still_needed"] = ["one thing", "another"]
    assert shown(document).count(command) == 1


def test_an_unstated_window_is_why_no_speed_up_is_used(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    document["value"]["speedup"] = None
    assert "no level that passed the serving gate" in shown(document)
    summary = document["gates"]["serving"]["result"]["summary"]
    summary["gamma_by_concurrency"] = dict.fromkeys(summary["gamma_by_concurrency"])
    assert "the candidate's window (gamma) is not stated" in shown(document)


def test_what_weights_count_is_said_beside_them(reported_route: Reported) -> None:
    assert "Weights count every copy that the engine holds" in shown(reported_route.full)


@pytest.mark.parametrize(
    ("step", "sentences"),
    [
        (
            "nothing",
            [
                "Bypass: the evidence does not support enabling yet",
                "until the missing evidence is there",
                "gatekeeper gate run prose equivalence",
                "The serving gate has not run",
                "The policy demands it, so nothing is enabled",
                "No override has ever been set.",
            ],
        ),
        ("two gates", ["Bypass: the evidence", "gatekeeper gate run prose outcome", "NOT RUN"]),
        ("three gates", ["Bypass: the evidence", "Pricing needs", "Outcome PASS"]),
        (
            "priced",
            [
                "Enable: every mandatory gate passed",
                "Evidence grades A: 8",
                "Ceiling: infinitely fast decoding 1 200 ms a task",
                "Expiry of the evidence, a new artifact or a new policy version",
                "at the discordance seen",
            ],
        ),
    ],
)
def test_each_state_reads_well(reported_route: Reported, step: str, sentences: list[str]) -> None:
    text = shown(reported_route.steps[step])
    for sentence in sentences:
        assert sentence in text


def failed(document: dict[str, Any], gate: str, reason: str) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    changed["gates"][gate]["outcome"] = "FAIL"
    changed["decision"] |= {"action": "bypass", "reason": reason, "evidence_expires_at": None}
    return changed


def test_failures_say_what_failed_and_that_time_does_not_repair_it(
    reported_route: Reported,
) -> None:
    serving = shown(failed(reported_route.full, "serving", "serving_failed"))
    assert "Bypass: no load region showed a gain" in serving
    assert "a FAIL does not expire" in serving
    assert re.search(r"a round commits [\d.]+ tokens and must commit [\d.]+ to take no", serving)
    outcome = shown(failed(reported_route.full, "outcome", "outcome_failed"))
    assert "structured decoding: constraints applied" in outcome
    equivalence = shown(failed(reported_route.full, "equivalence", "equivalence_failed"))
    assert "Bypass: speculation does not keep the target's output" in equivalence
    approximate = copy.deepcopy(reported_route.full)
    approximate["decision"] |= {"action": "bypass", "reason": "equivalence_failed"}
    assert "the policy demands exact decoding" in shown(approximate)


def test_expired_evidence_and_an_error(reported_route: Reported) -> None:
    document = copy.deepcopy(reported_route.full)
    document["decision"] |= {"action": "bypass", "reason": "insufficient_evidence"}
    document["gates"]["serving"]["state"] = "expired"
    document["gates"]["equivalence"] |= {
        "outcome": "ERROR",
        "engine": None,
        "result": {
            "gate": "equivalence",
            "outcome": "ERROR",
            "parts": [{"name": "run", "outcome": "ERROR", "detail": "killed", "mandatory": True}],
            "summary": {},
            "still_needed": "a run that completes",
        },
    }
    text = shown(document)
    assert "Running the serving gate again: its evidence has expired." in text
    assert "Holds expired 20" in text
    assert "Equivalence is ERROR; it still needs a run that completes" in text
    assert "killed" in text


def test_the_same_document_is_the_same_page(reported_route: Reported) -> None:
    again = json.loads(json.dumps(reported_route.full))
    assert render_html(lay_out(again)) == render_html(lay_out(reported_route.full))


@pytest.mark.parametrize("width", [80, 140])
def test_the_terminal_gets_the_same_and_no_line_too_long(
    reported_route: Reported, width: int
) -> None:
    text = terminal(reported_route.full, width)
    assert "Enable: every mandatory gate passed" in text
    for title in ("Acceptance matrix", "Memory ledger", "Value per task", "What would change it"):
        assert title in text
    assert "├" in text
    assert "†" not in text
    assert max(map(len, text.splitlines())) <= width


def test_markdown_numbers_every_figure(reported_route: Reported) -> None:
    text = render_markdown(lay_out(reported_route.full))
    assert text.startswith("# prose: Enable: every mandatory gate passed\n")
    numbers = {int(n) for n in re.findall(r"\(c(\d+)\)", text)}
    listed = [int(n) for n in re.findall(r"^- c(\d+):", text, re.MULTILINE)]
    assert listed == list(range(1, len(listed) + 1))
    assert numbers == set(listed)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        columns = {len(re.findall(r"(?<!\\)\|", row)) for row in table.splitlines()}
        assert len(columns) == 1
