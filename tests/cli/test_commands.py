from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from look_up_artifact import look_up_artifact
from shipped_policies import shipped_policy

from gatekeeper.cli import audit
from gatekeeper.cli.show import counted
from gatekeeper.config import data_dir

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Any]
Live = Any  # gatekeeper's live server, see tests/live.py

ARTIFACT = look_up_artifact("reference")


@pytest.fixture
def admin(gatekeeper: Run, live_server: Live) -> Run:
    def run(*arguments: object, **settings: object) -> Any:
        known = {"URL": live_server.url, "TOKEN": live_server.tokens["admin"]}
        return gatekeeper(*arguments, **{**known, **settings})

    return run


@pytest.fixture
def routed(admin: Run, tmp_path: Path) -> Run:
    file = tmp_path / "artifact.yaml"
    file.write_text(yaml.safe_dump(ARTIFACT))
    assert admin("artifact", "register", file, "--alias", "current").status == 0
    options = ("--slice", "prose", "--artifact", "current", "--policy", "demo")
    assert admin("route", "set", "prose", *options).status == 0
    return admin


def test_from_artifact_to_decision(routed: Run) -> None:
    digest = routed("artifact", "show", "current", "--json").json["digest"]
    assert routed("artifact", "list").out.count(digest) == 1
    answer = routed("decide", "prose", "--json")
    assert answer.status == 1  # bypass: the answer is no
    assert answer.json["reason"] == "insufficient_evidence"
    setting = ("override", "set", "prose", "enable", "--reason", "trial", "--gamma", "3")
    assert routed(*setting).status == 0
    assert routed("decide", "prose").status == 0
    assert routed("override", "clear", "prose").status == 0
    assert routed("decide", "prose").status == 1
    assert "insufficient_evidence" in routed("route", "list").out


def test_a_run_is_planned_queued_listed_and_cancelled(routed: Run) -> None:
    plan = routed("gate", "run", "prose", "serving", "--plan", "--json")
    assert plan.status == 0
    assert plan.json["minutes"] is None
    assert routed("gate", "list", "--json").json["items"] == []
    queued = routed("gate", "run", "prose", "equivalence", "--json").json
    assert queued["state"] == "pending"
    shown = routed("gate", "run", "prose", "serving")
    assert "minutes: unknown" in shown.out
    assert len(routed("gate", "list", "--route", "prose", "--json").json["items"]) == 2
    assert routed("gate", "cancel", queued["id"]).status == 0
    assert routed("gate", "show", queued["id"], "--json").json["state"] == "cancelled"
    assert routed("gate", "cancel", queued["id"]).status == 2


def test_without_a_gate_all_that_the_policy_demands_is_run(routed: Run) -> None:
    plans = routed("gate", "run", "prose", "--plan", "--json").json["items"]
    assert [plan["gate"] for plan in plans] == ["equivalence", "serving", "outcome"]
    queued = routed("gate", "run", "prose", "--json").json["items"]
    assert [run["gate"] for run in queued] == ["equivalence", "serving", "outcome"]
    assert {run["id"] for run in queued} == {
        run["id"] for run in routed("gate", "list", "--json").json["items"]
    }


def test_policies_from_a_folder(admin: Run, tmp_path: Path) -> None:
    document = shipped_policy("ci")
    (tmp_path / "ours.yaml").write_text(yaml.safe_dump({**document, "name": "ours"}))
    applied = admin("policy", "apply", tmp_path, "--json").json["items"]
    assert [(p["name"], p["changed"]) for p in applied] == [("ours", True)]
    assert admin("policy", "show", "ours").json["document"]["name"] == "ours"
    (tmp_path / "typo.yaml").write_text(yaml.safe_dump({**document, "evidence_tll_s": 1}))
    refused = admin("policy", "apply", tmp_path)
    assert refused.status == 2
    assert "evidence_tll_s" in refused.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("artifact", "show", "nowhere"), "artifact=nowhere"),
        (("artifact", "register", "missing.yaml"), "file=missing.yaml"),
        (("route", "show", "nowhere"), "route list"),
        (("route", "set", "x", "--slice", "prose"), "--artifact"),
        (("policy", "apply", "missing"), "holds no policy"),
        (("gate", "show", "nowhere"), "gate list"),
        (("decide", "nowhere"), "route=nowhere"),
        (("decide", "../../healthz"), "name=../../healthz"),
        (("decide", "a\nb"), "cannot be a name"),
        (("decide", "a?b"), "route=a?b"),
        (("decide",), "gatekeeper decide --help"),
        (("override", "set", "x", "bypass", "--reason", "r", "--ttl", "nan"), "not finite"),
    ],
)
def test_errors_are_one_line_with_a_remedy(
    admin: Run, arguments: tuple[str, ...], words: str
) -> None:
    done = admin(*arguments)
    assert done.status == 2
    assert done.err.startswith("gatekeeper: error: ")
    assert len(done.err.strip().splitlines()) == 1
    assert words in done.err


def test_route_test_explains_each_call(routed: Run, tmp_path: Path) -> None:
    file = tmp_path / "route.yaml"
    file.write_text(yaml.safe_dump({"rules": [{"service": "agent*"}, {"model": "small-*"}]}))
    options = ("--slice", "prose", "--artifact", "current", "--policy", "demo", "--file", file)
    assert routed("route", "set", "prose", *options).status == 0
    trace = {
        "resourceSpans": [
            {
                "resource": {
                    "attributes": [{"key": "service.name", "value": {"stringValue": "batch"}}]
                },
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "0" * 31 + "1",
                                "spanId": f"{index:016x}",
                                "name": f"chat {model}",
                                "startTimeUnixNano": "1000",
                                "endTimeUnixNano": "2000",
                                "attributes": [
                                    {"key": key, "value": {"stringValue": value}}
                                    for key, value in (
                                        ("gen_ai.operation.name", "chat"),
                                        ("gen_ai.request.model", model),
                                    )
                                ],
                            }
                            for index, model in ((1, "small-1"), (2, "large-1"))
                        ]
                    }
                ],
            }
        ]
    }
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    answer = routed("route", "test", path, "--json").json
    assert {c["span"]: c["route"] for c in answer["calls"]} == {
        f"{1:016x}": "prose",
        f"{2:016x}": None,
    }
    assert answer["unmatched"] == 1
    assert "service is batch" in answer["calls"][1]["why"]
    text = routed("route", "test", path)
    assert text.status == 0
    assert "1 of 2 calls belong to no route" in text.out


def test_without_server_or_token(gatekeeper: Run) -> None:
    no_token = gatekeeper("decide", "prose", URL="http://127.0.0.1:9")
    assert (no_token.status, "GATEKEEPER_TOKEN" in no_token.err) == (2, True)
    nobody = gatekeeper("decide", "prose", URL="http://127.0.0.1:9", TOKEN="x")
    assert nobody.status == 2
    assert "gatekeeper serve" in nobody.err
    assert gatekeeper("policy", "list", PORT="many", TOKEN="x").status == 2
    assert "is not a URL" in gatekeeper("policy", "list", URL="http://[::1", TOKEN="x").err
    assert "url=foo: is not a URL" in gatekeeper("policy", "list", URL="foo", TOKEN="x").err
    assert "GATEKEEPER_TOKEN" in gatekeeper("policy", "list", TOKEN="\u2603").err


def test_a_token_that_is_none_is_named_as_it_is_set(admin: Run, tmp_path: Path) -> None:
    refused = admin("policy", "list", TOKEN="wrong", HOME=tmp_path)
    assert refused.status == 2
    assert "GATEKEEPER_TOKEN: is unknown, expired or revoked" in refused.err
    assert "Authorization" not in refused.err
    assert f"gatekeeper token create --role reader --home {tmp_path}" in refused.err


def test_a_broken_trace_is_named(admin: Run, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    for content, words in ((b'{"a": 1}', "not a trace"), (b"", "the file is empty")):
        file.write_bytes(content)
        done = admin("route", "test", file)
        assert done.status == 2
        assert f"file={file}: {words}" in done.err


def test_all_that_a_route_still_needs_is_named_at_once(admin: Run) -> None:
    done = admin("route", "set", "x", "--slice", "prose")
    assert "artifact, policy: are missing; give --artifact ARTIFACT --policy POLICY" in done.err


def test_every_command_of_ours_has_its_line(gatekeeper: Run) -> None:
    shown = gatekeeper("--help").out
    assert "  engine " in shown
    assert "From an installed extra" not in shown


def test_counted_things_have_their_number() -> None:
    assert [counted(n, "span") for n in (0, 1, 2)] == ["0 spans", "1 span", "2 spans"]


def test_pairs_of_one_target_differ_in_the_list(admin: Run) -> None:
    baseline = "http://127.0.0.1:8000"
    for port in (8001, 8002):
        candidate = f"http://127.0.0.1:{port}"
        options = ("--baseline-url", baseline, "--candidate-url", candidate)
        assert admin("gate", "run", "--route", f"r{port}", *options).status == 0
    listed = admin("artifact", "list").out
    assert "undisclosed http://127.0.0.1:8001" in listed
    assert "undisclosed http://127.0.0.1:8002" in listed


@pytest.mark.parametrize(
    "content",
    [b"a: 2026-01-01", b"a: 2026-99-99", b"a: .nan", b"a: &a [*a]", b"[" * 5000, b'a: "\\uD800"'],
)
def test_documents_that_json_cannot_hold_are_refused(
    gatekeeper: Run, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "x.yaml").write_bytes(content)
    for command in (("artifact", "register"), ("policy", "apply")):
        done = gatekeeper(*command, tmp_path / "x.yaml", TOKEN="x", URL="http://127.0.0.1:9")
        assert done.status == 2
        assert "file=" in done.err


def test_the_essay_ledger_needs_no_database(gatekeeper: Run) -> None:
    listed = gatekeeper("claims", "--json")
    assert listed.status == 0
    printed = {c["id"]: c["recomputed"] for c in listed.json["claims"]}
    assert printed["essay.progress.high"] == pytest.approx(3.3616)
    assert all(c["agrees"] for c in listed.json["claims"])
    assert gatekeeper("claims", "verify").status == 0


def test_a_mistyped_home_is_no_empty_ledger(gatekeeper: Run, tmp_path: Path) -> None:
    done = gatekeeper("claims", "verify", "--home", tmp_path / "typo")
    assert done.status == 2
    assert "holds no database" in done.err
    assert not (tmp_path / "typo").exists()


def test_db_upgrade_and_restored(gatekeeper: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = gatekeeper("db", "upgrade", "--home", home, "--json").json
    assert first["revision"]
    assert gatekeeper("db", "upgrade", "--home", home).status == 0
    one = gatekeeper("db", "restored", "--home", home, "--json").json
    two = gatekeeper("db", "restored", "--home", home, "--json").json
    assert two["epoch"] > one["epoch"]


def test_serve_refuses_an_ingest_document_before_it_writes_anything(
    gatekeeper: Run, tmp_path: Path
) -> None:
    home, file = tmp_path / "home", tmp_path / "ingest.yaml"
    file.write_text("limits: {requets: 3}")
    for refused in (
        gatekeeper("serve", "--home", home, "--port", 0, "--ingest", file),
        gatekeeper("serve", "--home", home, "--port", 0, INGEST=file),
    ):
        assert refused.status == 2
        assert "limits.requets" in refused.err
    missing = gatekeeper("serve", "--home", home, "--ingest", tmp_path / "none.yaml")
    assert (missing.status, "GATEKEEPER_INGEST" in missing.err) == (2, True)
    assert not home.exists()


def test_db_prune_says_what_it_removed_and_refuses_what_is_no_age(
    gatekeeper: Run, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    gatekeeper("db", "upgrade", "--home", home)
    done = gatekeeper("db", "prune", "--spans-older-than", "30d", "--home", home, "--json").json
    assert (done["tasks"], done["spans"]) == (0, 0)
    assert 29.9 * 86_400 < time.time() - done["before"] < 30.1 * 86_400
    shown = gatekeeper("db", "prune", "--spans-older-than", "12h", "--home", home)
    assert "removed 0 spans of 0 tasks" in shown.out
    for age in ("30", "d", "-1d", "1w", ""):
        refused = gatekeeper("db", "prune", "--spans-older-than", age, "--home", home)
        assert refused.status == 2
        assert "30d" in refused.err
    cut_off, arriving = (home / "evidence" / "incoming" / name for name in ("old", "new"))
    cut_off.parent.mkdir(parents=True)
    for file in (cut_off, arriving):
        file.write_bytes(b"half")
    os.utime(cut_off, (0, 0))
    options = (
        "--fires-older-than",
        "90d",
        "--outcomes-older-than",
        "90d",
        "--tokens-ended-for",
        "0s",
    )
    gatekeeper("token", "create", "--role", "reader", "--ttl", "0.01", "--home", home)
    time.sleep(0.02)
    gone = gatekeeper("db", "prune", *options, "--home", home, "--json").json
    assert gone == {"fires": 0, "outcomes": 0, "tokens": 1, "uploads": 1}
    assert [cut_off.exists(), arriving.exists()] == [False, True]
    nothing = gatekeeper("db", "prune", "--home", home)
    assert (nothing.status, "--spans-older-than" in nothing.err) == (2, True)


def test_db_prune_says_that_there_was_nothing(gatekeeper: Run, tmp_path: Path) -> None:
    gatekeeper("db", "upgrade", "--home", tmp_path)
    done = gatekeeper("db", "prune", "--fires-older-than", "90d", "--home", tmp_path)
    assert (done.status, done.out) == (0, "nothing to remove: nothing is that old\n")


def test_a_token_for_a_route_that_is_not_there_yet_is_made_with_a_warning(
    gatekeeper: Run, tmp_path: Path
) -> None:
    made = gatekeeper("token", "create", "--role", "reader", "--route", "typo", "--home", tmp_path)
    assert (made.status, made.out[:3]) == (0, "gk_")
    assert made.err.startswith("gatekeeper: warning: route=typo: no such route yet")
    assert len(made.err.splitlines()) == 1
    unscoped = gatekeeper("token", "create", "--role", "reader", "--home", tmp_path)
    assert unscoped.err == ""


@pytest.mark.parametrize("db", ["sqlite"], indirect=True)
def test_a_token_for_a_route_that_there_is_needs_no_warning(
    routed: Run, live_server: Live, gatekeeper: Run
) -> None:
    url = live_server.db.engine.url.render_as_string(hide_password=False)
    options = ("--role", "reader", "--route", "prose")
    assert gatekeeper("token", "create", *options, DATABASE_URL=url).err == ""
    assert routed("route", "list").status == 0


def test_tables_show_times_to_the_minute(gatekeeper: Run, tmp_path: Path) -> None:
    options = ("--role", "reader", "--ttl", "3600", "--home", tmp_path)
    gatekeeper("token", "create", *options)
    shown = gatekeeper("token", "list", "--home", tmp_path)
    assert re.search(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", shown.out)
    assert "+00:00" not in shown.out
    (one,) = gatekeeper("token", "list", "--home", tmp_path, "--json").json["items"]
    assert one["expires_at"].endswith("+00:00")


def test_a_route_list_shortens_digests_and_keeps_aliases(routed: Run) -> None:
    digest = routed("artifact", "show", "current", "--json").json["digest"]
    options = ("--slice", "prose", "--artifact", digest, "--policy", "demo")
    assert routed("route", "set", "direct", *options).status == 0
    shown = routed("route", "list").out
    assert digest[:12] in shown
    assert digest[:13] not in shown
    assert " current " in shown
    artifacts = [one["artifact"] for one in routed("route", "list", "--json").json["items"]]
    assert digest in artifacts


def test_the_audit_shows_what_changed_and_not_whole_documents(routed: Run) -> None:
    options = ("--slice", "prose", "--artifact", "current", "--policy", "ci")
    assert routed("route", "set", "prose", *options).status == 0
    lines = routed("audit", "--object", "prose", "--limit", "1").out.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC  .+  route\.set  prose", lines[0])
    assert lines[1:] == ["    policy: demo → ci"]
    digest = routed("artifact", "show", "current", "--json").json["digest"]
    moved = routed("audit", "--action", "alias.move").out.splitlines()
    assert moved[1:] == [f"    none → {digest[:12]}"]
    registered = routed("audit", "--action", "artifact.register").out.splitlines()
    assert registered[0].endswith(f"  artifact.register  {digest[:12]}")
    assert registered[1:] == ["    contract: exact"]
    everything = routed("audit")
    assert "{" not in everything.out
    assert max(map(len, everything.out.splitlines())) < 110
    (full,) = routed("audit", "--object", "prose", "--limit", "1", "--json").json["items"]
    assert full["detail"]["from"]["policy"] == "demo"


def test_a_long_change_is_cut_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    fields = [{"field": f"f{i}", "before": None, "after": "x" * 100} for i in range(20)]
    item = {"at": "2026-12-01T13:34:31.945014+00:00", "actor": "a", "action": "policy.remove"}
    audit._print([{**item, "object": "old", "detail": {"fields": fields}}])
    head, first, *others = capsys.readouterr().out.splitlines()
    assert head == "2026-12-01 13:34 UTC  a  policy.remove  old"
    assert first == f"    f0: null → {'x' * 31}…"
    assert others[-1] == "    and 13 more (--json)"


def test_an_action_without_entries_names_the_actions_there_are(admin: Run) -> None:
    none = admin("audit", "--action", "policy.apply")
    assert none.status == 0
    assert none.out.startswith("no such change\n")
    assert "economics.apply" in none.out
    assert "policy.seed" in none.out
    assert admin("audit", "--actor", "nobody").out == "no such change\n"


def test_the_actions_named_are_those_that_the_code_records() -> None:
    folder = data_dir("migrations").parent / "gatekeeper" / "actions"
    told = {f"{thing}.{what}" for thing, done in audit.ACTIONS.items() for what in done}
    source = "".join(path.read_text() for path in folder.glob("*.py"))
    recorded = set(re.findall(r'action="([a-z]+\.[a-z]+)"', source))
    assert 'action=f"{change.kind}.remove"' in source
    recorded |= {f"{kind}.remove" for kind in ("policy", "economics", "alias")}
    assert told == recorded


def test_nobody_there_is_said_in_words(gatekeeper: Run, tmp_path: Path) -> None:
    nobody = gatekeeper("policy", "list", URL="http://127.0.0.1:9", TOKEN="x")
    assert "url=http://127.0.0.1:9: no server answers (connection refused)" in nobody.err
    assert "gatekeeper serve --home HOME, or set GATEKEEPER_URL" in nobody.err
    assert "Errno" not in nobody.err
    home = tmp_path / "my home"
    known = gatekeeper("policy", "list", URL="http://127.0.0.1:9", TOKEN="x", HOME=home)
    assert f"gatekeeper serve --home '{home}'" in known.err
    no_token = gatekeeper("policy", "list", HOME=home)
    assert f"gatekeeper token create --role admin --home '{home}'" in no_token.err


def test_a_decision_is_said_in_words(routed: Run) -> None:
    done = routed("decide", "prose")
    assert done.status == 1
    lease = routed("decide", "prose", "--json").json
    assert lease["evidence_expires_at"] is None
    epoch, counter = lease["version"]
    assert "null" not in done.out
    assert "None" not in done.out
    assert str(epoch) not in done.out
    assert f"decision {counter}; no evidence to expire" in done.out
    for gate in ("equivalence", "serving", "outcome"):
        assert f"gatekeeper gate run prose {gate} --wait" in done.out


def test_a_new_epoch_is_no_clock_number(gatekeeper: Run, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert gatekeeper("db", "upgrade", "--home", home).status == 0
    assert not any(c.isdigit() for c in gatekeeper("db", "restored", "--home", home).out)
