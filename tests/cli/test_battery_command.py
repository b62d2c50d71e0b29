"""``gatekeeper battery`` against a real HTTP server around the fake engine."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from engine_server import service_around, serving
from gatekeeper_adapters.engines.reference.server import forms

from gatekeeper.cli import cli
from gatekeeper.errors import InputError, NotFound, Unavailable
from gatekeeper.testing import FakeEngine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

QUICK = ("--item", "max_tokens", "--item", "choices", "--item", "tool_calls")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(service_around(FakeEngine(agreement=1.0), gamma=4, waiting=16)) as where:
        yield where


def battery(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["battery", *arguments])


def test_a_table_says_what_became_of_each_item(url: str) -> None:
    done = battery(url, *QUICK)
    assert done.exit_code == 0, done.output
    lines = {line.split()[0]: line for line in done.output.splitlines() if line.strip()}
    assert "pass" in lines["max_tokens"]
    assert "24 answers of 1 to 12 tokens end at their cap" in lines["max_tokens"]
    first, *reached = done.stderr.splitlines()
    assert first == f"3 items to try at {url}"
    assert [line.partition(" after")[0] for line in reached] == ["1 of 3", "2 of 3", "3 of 3"]
    assert "s left" in reached[0]
    assert "s left" not in reached[-1]
    assert "not applicable" in lines["tool_calls"]
    assert "2 pass, 0 fail, 1 not applicable, 0 not verified" in done.output


def test_a_failed_item_is_shown_by_its_request(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(answer: Any) -> dict[str, int]:
        return {"prompt_tokens": 1, "completion_tokens": answer.tokens + 1}

    monkeypatch.setattr(forms, "_usage", too_many)
    done = battery(url, "--item", "max_tokens")
    assert done.exit_code == 1
    assert "max_tokens: No answer has more tokens than its cap." in done.output
    (line,) = [part for part in done.output.splitlines() if part.startswith("  request: ")]
    request = json.loads(line.partition(": ")[2])
    assert (request["path"], request["body"]["max_tokens"]) == ("/v1/completions", 1)
    assert "1 fail" in done.output


def test_the_document_holds_every_request_that_shows_an_item(url: str) -> None:
    done = battery(url, "--baseline-url", url, "--item", "max_tokens", "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert (document["url"], document["baseline_url"]) == (url, url)
    assert document["offers"]["completions"]
    (row,) = document["items"]
    assert (row["id"], row["state"]) == ("max_tokens", "pass")
    assert row["requests"] == 24
    assert row["accepted"] > 0
    assert "24 greedy answers are the baseline's" in row["detail"]
    (shown,) = row["shown"]
    assert shown["request"]["body"]["max_tokens"] == 12


def test_what_cannot_be_verified_is_no_success() -> None:
    with serving(service_around(FakeEngine(), gamma=0, waiting=16)) as where:
        done = battery(where, "--item", "max_tokens")
    assert done.exit_code == 1
    assert "no draft was accepted, so nothing was seen of windows" in done.output


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("--item", "max_token"), InputError),
        (("--model", "none"), InputError),
        (("--baseline-url", "http://a:b@c"), InputError),
    ],
)
def test_bad_input_is_told_before_anything_runs(
    url: str, arguments: tuple[str, ...], kind: type[Exception]
) -> None:
    done = battery(url, *arguments)
    assert isinstance(done.exception, kind)
    assert not isinstance(done.exception, NotFound)


def test_a_password_in_an_address_is_not_repeated() -> None:
    done = battery("http://me:secret@127.0.0.1:9")
    assert done.exception is not None
    assert "secret" not in done.output


def test_an_address_without_a_server_is_told() -> None:
    assert isinstance(battery("http://127.0.0.1:9").exception, Unavailable)
    assert isinstance(battery("no address").exception, InputError)
