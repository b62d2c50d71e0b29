from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import trace_corpus
from click.testing import CliRunner

import gatekeeper
from gatekeeper.cli import cli, main

ESSAY = Path(gatekeeper.__file__).parent / "examples" / "essay-trace.json"
KINDS = ["queue", "prefill", "decode", "tool", "verification", "persistence", "human_wait", "other"]


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(cli, ["profile", *map(str, arguments)], catch_exceptions=False)


def test_json_is_the_documented_document() -> None:
    result = run(ESSAY, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    (task,) = document["tasks"]
    assert document["refused"] == []
    assert list(task) == [
        "task_id",
        "source_format",
        "file",
        "route",
        "wall_s",
        "segments_s",
        "critical_path_s",
        "saving_s",
        "decode_speedup",
        "evidence_grade",
        "reconciled",
        "residual_s",
        "completeness",
        "repairs",
        "model_calls",
        "what_if",
        "without_human_wait",
        "measured_saving_s",
        "calls",
    ]
    assert document["excluded"] == {}
    assert list(task["segments_s"]) == list(task["critical_path_s"]) == KINDS
    assert task["wall_s"] == 5.0
    assert task["critical_path_s"]["decode"] == 1.2
    assert task["saving_s"]["value"] == 0.6
    assert task["saving_s"]["low"] < 0.6 < task["saving_s"]["high"]
    assert task["decode_speedup"] == 2.0
    assert (task["evidence_grade"], task["reconciled"], task["residual_s"]) == ("A", True, 0.0)
    assert (task["source_format"], task["file"], task["model_calls"]) == ("otlp", str(ESSAY), 1)


def documented(heading: str) -> list[str]:
    """Keys in the first column of a table in the reference page."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "profile-json.md").read_text()
    (section,) = (part for part in page.split("\n## ") if part.startswith(heading))
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_every_key_is_documented_in_its_order() -> None:
    document = json.loads(run(ESSAY, "--json").stdout)
    (task,) = document["tasks"]
    assert documented("# The answer") == list(document)
    assert documented("A task") == list(task)
    (call,) = task["calls"]
    assert documented("A model call") == list(call)


def test_json_has_every_model_call_with_its_evidence_and_its_part_of_the_path() -> None:
    (task,) = json.loads(run(ESSAY, "--json").stdout)["tasks"]
    (call,) = task["calls"]
    assert (call["grade"], call["attempts"]) == ("A", 1)
    assert call["rule"].startswith("vLLM, SGLang: gen_ai.latency.time_in_model_prefill")
    assert call["on_path_s"]["decode"] == task["critical_path_s"]["decode"] == 1.2
    assert call["segments_s"]["decode"] == 1.2
    assert sum(call["segments_s"].values()) == pytest.approx(call["wall_s"])


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
def test_calls_of_real_files_add_up_to_their_tasks() -> None:
    for path in trace_corpus.files(readable=True):
        for task in json.loads(run(path, "--json").stdout)["tasks"]:
            calls = task["calls"]
            assert len(calls) == task["model_calls"]
            for kind in ("prefill", "decode"):
                for whole, part in (("segments_s", "segments_s"), ("critical_path_s", "on_path_s")):
                    known = sum(call[part][kind] or 0 for call in calls)
                    assert known == pytest.approx(task[whole][kind]), path
            on_path = [call["grade"] for call in calls if any(call["on_path_s"].values())]
            if on_path and "timings untrusted" not in " ".join(task["repairs"]):
                assert task["evidence_grade"] == max(on_path)


def test_terminal_report_says_the_sentence_and_marks_the_path() -> None:
    result = run(ESSAY)
    assert "Halving decode saves 0.600 s of 5.000 s (12.0 %)" in result.stdout
    ceiling = result.stdout.index("Ceiling")
    assert ceiling < result.stdout.index("Halving")
    marked = [line for line in result.stdout.splitlines() if line.strip().startswith("●")]
    assert any("decode" in line and "█" in line for line in marked)


def test_speedup_is_an_option() -> None:
    result = run(ESSAY, "--decode-speedup", "1.5", "--json")
    assert json.loads(result.stdout)["tasks"][0]["saving_s"]["value"] == pytest.approx(0.4)
    assert (
        "Decode at 1.5 times the speed saves 0.400 s"
        in run(ESSAY, "--decode-speedup", "1.5").stdout
    )


def saved(*arguments: Any) -> float:
    found: float = json.loads(run(*arguments, "--json").stdout)["tasks"][0]["saving_s"]["value"]
    return found


def test_any_work_can_become_faster_by_kind_and_by_name() -> None:
    assert saved(ESSAY, "--speedup", "decode=2") == saved(ESSAY) == 0.6
    assert saved(ESSAY, "--speedup", "tool:lookup_order=2") == 1.0
    assert saved(ESSAY, "--speedup", "prefill=0.5") == -0.4
    many = ("--speedup", "decode=2", "--speedup", "tool:look*=2", "--speedup", "prefill=0.5")
    assert saved(ESSAY, *many) == pytest.approx(1.2)
    shown = run(ESSAY, *many).stdout
    assert "what gets faster" in shown
    assert "tool:look*" in shown
    assert "what gets faster" not in run(ESSAY).stdout
    options = ("--speedup", "tool=2", "--decode-speedup", "2")
    assert saved(ESSAY, *options) == pytest.approx(1.6)


def test_a_route_takes_its_calls_by_attribute_or_by_rules(tmp_path: Path) -> None:
    rules = tmp_path / "chat.yaml"
    rules.write_text("slice: chat\nrules:\n  - {service: model-*}\n")
    never = tmp_path / "never.yaml"
    never.write_text("rules:\n  - {model: nothing}\n")
    assert saved(ESSAY, "--route", "order-desk/answer") == 0.6
    assert saved(ESSAY, "--route", "chat", "--route-file", rules) == 0.6
    assert "on route chat" in run(ESSAY, "--route", "chat", "--route-file", rules).stdout
    result = run(ESSAY, "--route", "chat", "--route-file", never)
    assert result.exit_code == 2
    assert "route=chat: no model call of these files belongs to it" in result.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--speedup", "fast"], ["speedup=fast", "names no work", "decode=2"]),
        (["--speedup", "tools=2"], ["speedup=tools", "use one of queue, prefill, decode, tool"]),
        (["--speedup", "tool=0"], ["speedup=0", "must be above 0"]),
        (["--speedup", "tool=1e99"], ["tool=1e99", "out of range", "1.5"]),
        (["--speedup", "tool:serch=2"], ["speedup=tool:serch", "use tool:", "tool:lookup_order"]),
        (["--speedup", "human_wait:x=2"], ["human_wait:x", "there is no human_wait in them"]),
        (["--speedup", "decode=2", "--decode-speedup", "3"], ["decode", "given twice"]),
        (["--speedup", "tool=2", "--route", "r"], ["speedup=tool", "leave --route out"]),
        (["--route", "nobody"], ["route=nobody", "--route-file"]),
        (["--route-file", "x"], ["--route-file needs --route"]),
        (["--route", "r", "--route-file", "absent"], ["file=absent", "no such file"]),
        (["--json", "--csv"], ["exclude each other"]),
        (["--concurrency", "2"], ["--concurrency needs --serving"]),
        (["--serving", "absent"], ["serving=absent", "Parquet", "/evidence/confirm"]),
        (["--serving", str(ESSAY)], ["cannot be read as Parquet"]),
        (["--html", "/nowhere/x.html"], ["file=/nowhere/x.html", "can be written"]),
    ],
)
def test_wrong_input_is_one_line_with_value_and_remedy(
    options: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["profile", str(ESSAY), *options])
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    for part in said:
        assert part in line


def test_several_files_make_one_task_in_any_order(tmp_path: Path) -> None:
    document = json.loads(ESSAY.read_text())
    files = []
    for i, resource in enumerate(document["resourceSpans"]):
        files.append(tmp_path / f"part-{i}.json")
        files[-1].write_text(json.dumps({"resourceSpans": [resource]}))
    assert len(files) == 2
    (whole,) = json.loads(run(ESSAY, "--json").stdout)["tasks"]
    for order in (files, files[::-1], [*files, files[0]]):
        (task,) = json.loads(run(*order, "--json").stdout)["tasks"]
        assert task["file"] == " + ".join(dict.fromkeys(map(str, order)))
        assert {**task, "file": ""} == {**whole, "file": ""}
    assert "orphan" in run(files[1]).stdout


def test_csv_is_one_line_for_each_segment() -> None:
    lines = run(ESSAY, "--csv").stdout.splitlines()
    assert lines[0].startswith("file,task,span,part,kind,name,start_s,end_s,on_path")
    assert [line.split(",")[4] for line in lines[1:]] == [
        "queue",
        "prefill",
        "decode",
        "tool",
        "verification",
    ]
    assert sum(float(line.split(",")[9]) for line in lines[1:]) == pytest.approx(5.0)


def test_html_is_written_beside_what_is_printed(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run(ESSAY, "--html", page)
    assert result.stdout == f"written: {page}\n"
    assert "Saves 12.0 %" not in result.stdout
    assert "Saves 12.0 %" in re.sub(r"<[^>]+>", "", page.read_text(encoding="utf-8"))
    both = run(ESSAY, "--html", page, "--json")
    assert json.loads(both.stdout)["tasks"][0]["wall_s"] == 5.0


@pytest.mark.parametrize("bad", ["0", "-2", "fast", "inf", "1e999", "1e-999999999", "1" * 50])
def test_impossible_speedup_is_a_usage_error(bad: Any) -> None:
    result = run(ESSAY, "--decode-speedup", bad)
    assert result.exit_code == 2
    assert "decode-speedup" in result.stderr


def test_refused_files_say_why_and_do_not_stop_the_others(tmp_path: Path) -> None:
    table = tmp_path / "requests.csv"
    table.write_text("TIMESTAMP,ContextTokens\n1,2\n")
    absent = tmp_path / "absent.json"
    result = run(ESSAY, table, absent, tmp_path, "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert len(document["tasks"]) == 1
    reasons = {one["file"]: one["reason"] for one in document["refused"]}
    assert "no time to attribute" in reasons[str(table)]
    assert reasons[str(absent)].startswith("no such file")  # its name stands beside it
    assert "directory" in reasons[str(tmp_path)]
    printed = run(ESSAY, absent)
    assert f"refused {absent}: no such file" in printed.stderr
    assert printed.stderr.count("absent.json") == 1


@pytest.mark.parametrize("content", ["", "  \n", "[]", "{}", "3", '{"resourceSpans": []}', "{"])
def test_nothing_to_profile_exits_two(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    result = run(path)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"gatekeeper: error: file={path}: ")


def test_broken_trace_id_names_field_value_and_remedy(tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_text(ESSAY.read_text().replace("0f1e2d3c4b5a69788796a5b4c3d2e1f0", "no-trace-id"))
    result = run(path, "--json")
    assert result.exit_code == 2
    (refused,) = json.loads(result.stdout)["refused"]
    for part in ("traceId", "no-trace-id", "32 hex digits"):
        assert part in refused["reason"]


def test_many_tasks_get_one_line_each_unless_asked_in_full(tmp_path: Path) -> None:
    files = []
    for i in range(12):
        path = tmp_path / f"trace-{i}.json"
        path.write_text(ESSAY.read_text().replace("0f1e2d3c", f"0f1e2d{i:02d}"))
        files.append(path)
    short = run(*files)
    assert "12 tasks, 12 priced; halving decode saves a median 12.0%" in short.stdout
    assert "critical path" not in short.stdout
    assert run(*files, "--full").stdout.count("on the critical path") == 12


def test_profile_needs_neither_database_nor_torch_nor_tables() -> None:
    code = (
        "import sys; from gatekeeper.cli import main\n"
        "try: main(['profile', sys.argv[1]])\n"
        "except SystemExit as e: assert e.code == 0\n"
        "bad = {'torch', 'pandas', 'numpy', 'sqlalchemy', 'fastapi', 'pydantic'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ESSAY)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_errors_raised_on_purpose_become_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gatekeeper import plugins
    from gatekeeper.errors import EvidenceError

    def broken(group: Any) -> None:
        raise EvidenceError("does not hold", field="claim", value="x")

    monkeypatch.setattr(plugins, "load_all", broken)
    with pytest.raises(SystemExit) as caught:
        main(["profile", str(ESSAY)])
    assert caught.value.code == 1
    assert capsys.readouterr().err == "gatekeeper: error: claim=x: does not hold\n"


def test_unknown_command_and_version() -> None:
    assert CliRunner().invoke(cli, ["nonsense"]).exit_code == 2
    assert CliRunner().invoke(cli, ["--version"]).output.startswith("gatekeeper ")


@pytest.mark.skipif(not trace_corpus.ROOT.is_dir(), reason=trace_corpus.ABSENT)
def test_every_readable_corpus_file_renders() -> None:
    result = run(*trace_corpus.files(readable=True), "--full")
    assert result.exit_code == 0
    assert result.stderr == ""


def confirm(tmp_path: Path, *levels: int) -> Path:
    """Pairs of blocks in which speculation halves the decoding and doubles the first token."""
    rows = [
        {
            "pair": pair,
            "arm": arm,
            "concurrency": level,
            "gamma": 3 if fast else 0,
            "load_class": "short",
            "prompt_tokens": 8,
            "arrival_s": 0.0,
            "first_s": first * (2 if fast else 1),
            "finish_s": first * (2 if fast else 1) + 10 * (0.01 if fast else 0.02),
            "tokens": 11,
            "first_tokens": 1,
            "reason": "length",
            "gaps_s": [0.01 if fast else 0.02] * 10,
        }
        for level in levels
        for pair, first in enumerate((0.1, 0.2, 0.3))
        for arm, fast in (("ordinary", False), ("speculative", True))
    ]
    file = tmp_path / "confirm.parquet"
    pd.DataFrame(rows).to_parquet(file)
    return file


def test_measured_ratios_of_first_token_and_decoding_are_drawn_together(tmp_path: Path) -> None:
    file = confirm(tmp_path, 4)
    (task,) = json.loads(run(ESSAY, "--serving", file, "--json").stdout)["tasks"]
    found = task["measured_saving_s"]
    assert (found["concurrency"], found["pairs"]) == (4, 3)
    # 1.2 s of decoding halved, 0.8 s to the first token, queue included, doubled.
    first = sum(task["critical_path_s"][kind] for kind in ("queue", "prefill"))
    assert found["mean"] == pytest.approx(0.6 - first, abs=1e-5)
    assert found["low"] == pytest.approx(found["high"], abs=1e-5)
    assert found["at_mean_ratios"] == pytest.approx(found["mean"], abs=1e-5)
    shown = " ".join(run(ESSAY, "--serving", file).stdout.split())
    assert "Measured" in shown
    assert "at concurrency 4, 3 block pairs" in shown
    assert json.loads(run(ESSAY, "--json").stdout)["tasks"][0]["measured_saving_s"] is None


def test_measured_ratios_change_only_the_calls_of_the_route_asked_about(tmp_path: Path) -> None:
    file = confirm(tmp_path, 2, 4)
    options = ("--serving", file, "--concurrency", 4, "--json")
    (task,) = json.loads(run(ESSAY, *options, "--route", "order-desk/answer").stdout)["tasks"]
    (whole,) = json.loads(run(ESSAY, *options).stdout)["tasks"]
    assert task["measured_saving_s"] == whole["measured_saving_s"]
    other = [*task["calls"]]
    assert [call["route"] for call in other] == ["order-desk/answer"]


def test_tasks_that_are_not_priced_have_no_measured_saving(tmp_path: Path) -> None:
    traces = tmp_path / "bare.json"
    document = json.loads(ESSAY.read_text())
    for group in document["resourceSpans"]:
        for one in group["scopeSpans"][0]["spans"]:
            one["attributes"] = [a for a in one["attributes"] if "latency" not in a["key"]]
            one["attributes"] = [a for a in one["attributes"] if "usage" not in a["key"]]
    traces.write_text(json.dumps(document))
    result = run(traces, "--serving", confirm(tmp_path, 4), "--json")
    (task,) = json.loads(result.stdout)["tasks"]
    assert task["evidence_grade"] == "D"
    assert task["measured_saving_s"]["mean"] is None
    assert "unknown, which is not zero" in run(traces, "--serving", confirm(tmp_path, 4)).stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], ["concurrency=absent", "is not named", "use one of 2, 4"]),
        (["--concurrency", "3"], ["concurrency=3", "use one of 2, 4"]),
    ],
)
def test_level_of_the_gate_has_to_be_one_of_its_table(
    options: list[str], said: list[str], tmp_path: Path
) -> None:
    result = run(ESSAY, "--serving", confirm(tmp_path, 2, 4), *options)
    assert result.exit_code == 2
    for part in said:
        assert part in result.stderr


def test_another_table_is_refused_by_the_columns_it_lacks(tmp_path: Path) -> None:
    file = tmp_path / "rounds.parquet"
    pd.DataFrame({"pair": [1], "accepted": [2]}).to_parquet(file)
    result = run(ESSAY, "--serving", file)
    assert result.exit_code == 2
    assert "is no confirm table: it lacks arm, arrival_s" in result.stderr


def test_the_speedup_in_the_readme_is_of_the_shipped_example() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (shown,) = re.findall(r"`--speedup (\S+)`", readme)
    assert run(ESSAY, "--speedup", shown).exit_code == 0
