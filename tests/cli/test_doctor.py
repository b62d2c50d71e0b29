"""``gatekeeper doctor``: every line in its good and its bad state, and never a traceback."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gatekeeper import plugins
from gatekeeper.actions.identity import SYSTEM, create_token
from gatekeeper.cli.doctor import machine, service, storage
from gatekeeper.cli.doctor.workers import Seen, judge
from gatekeeper.cli.processes import free_port
from gatekeeper.config import OtlpExport, Settings, data_dir
from gatekeeper.errors import InputError, MissingExtra
from gatekeeper.store import schema
from gatekeeper.store.database import Database, open_database
from gatekeeper.store.lock import sole_server
from gatekeeper.store.migrate import upgrade

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from live import LiveServer

    from gatekeeper.cli.doctor.check import Check

Run = Callable[..., Any]


def status(done: Any) -> dict[str, str]:
    return {check["name"]: check["status"] for check in done.json["checks"]}


def remedy(done: Any, name: str) -> str:
    (found,) = [c["remedy"] for c in done.json["checks"] if c["name"] == name]
    return str(found)


@pytest.fixture
def home(tmp_path: Path, sqlite_template: Path) -> Path:
    """A home with an empty database of today's schema."""
    folder = tmp_path / "home"
    (folder / "evidence").mkdir(parents=True)
    shutil.copy(sqlite_template, folder / "gatekeeper.sqlite")
    return folder


@pytest.fixture
def examine(gatekeeper: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the doctor where nothing but the given settings counts."""
    for name in ("ENDPOINT", "HEADERS", "TRACES_ENDPOINT", "TRACES_HEADERS"):
        monkeypatch.delenv(f"OTEL_EXPORTER_OTLP_{name}", raising=False)

    def run(*arguments: object, **settings: object) -> Any:
        done = gatekeeper("doctor", "--json", *arguments, **{"PORT": free_port(), **settings})
        assert done.err == ""
        good = all(line["status"] != "fail" for line in done.json["checks"])
        assert (done.status, done.json["ok"]) == (0 if good else 1, good)
        for line in done.json["checks"]:
            assert line["status"] == "ok" or line["remedy"], line
        return done

    return run


@pytest.mark.parametrize("arguments", [(), ("--json",)])
def test_a_healthy_server_passes(
    arguments: tuple[str, ...], live_server: LiveServer, gatekeeper: Run, tmp_path: Path
) -> None:
    done = gatekeeper(
        "doctor",
        *arguments,
        HOME=tmp_path,
        DATABASE_URL=live_server.db.engine.url.render_as_string(hide_password=False),
        EVIDENCE=tmp_path,
        URL=live_server.url,
        TOKEN=live_server.tokens["admin"],
    )
    assert done.status == 0, done.out
    if arguments:
        assert {name for name, found in status(done).items() if found != "ok"} <= {"workers"}
        assert {"home", "database", "server", "token", "OTLP", "policies"} <= status(done).keys()
    else:
        assert f"{live_server.url} is ready" in done.out
        assert "has role admin" in done.out


def test_without_a_server_it_warns_and_says_how_to_start_one(examine: Run, home: Path) -> None:
    done = examine("--home", home)
    found = status(done)
    assert found["server"] == found["clock"] == found["OTLP"] == found["token"] == "warn"
    assert found["home"] == found["database"] == found["server lock"] == "ok"
    assert remedy(done, "server") == f"gatekeeper serve --home {home}"
    assert f"gatekeeper token create --role admin --home {home}" in remedy(done, "token")


def test_a_home_that_is_not_there_is_no_failure_and_is_not_made(
    examine: Run, tmp_path: Path
) -> None:
    done = examine("--home", tmp_path / "new")
    assert done.status == 0
    assert status(done)["home"] == status(done)["database"] == "warn"
    assert remedy(done, "database") == f"gatekeeper db upgrade --home {tmp_path / 'new'}"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_a_home_that_is_a_file_fails(examine: Run, tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("x")
    done = examine("--home", tmp_path / "file" / inside)
    assert status(done)["home"] == "fail"
    assert "serve --home" in remedy(done, "home")
    assert str(tmp_path) not in remedy(done, "server")  # advice for a home that can work


def test_a_folder_that_may_not_be_written_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.os, "access", lambda *_: False)
    found = machine.home(Settings.load({}, home=tmp_path))
    assert (found.status, found.remedy) == ("fail", f"chmod u+rwx {tmp_path}")
    found = machine.home(Settings.load({}, home=tmp_path / "new"))
    assert found.status == "fail"
    assert "cannot be made under" in found.seen


def test_an_unreadable_place_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(tmp_path), "is_dir", refuse)
    found = machine.home(Settings.load({}, home=tmp_path))
    assert (found.status, found.seen) == (
        "fail",
        f"{tmp_path} cannot be looked at (permission denied)",
    )


@pytest.mark.parametrize(
    ("gib", "expected"), [(0.01, "fail"), (0.5, "warn"), (2.0, "ok"), (50, "ok")]
)
def test_free_space(
    gib: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=gib * 2**30))
    assert machine.home(Settings.load({}, home=tmp_path)).status == expected


def test_settings_that_cannot_be_read_are_a_line_too(gatekeeper: Run) -> None:
    done = gatekeeper("doctor", "--json", PORT="no")
    assert (done.status, done.err) == (1, "")
    assert status(done) == {"settings": "fail"}


@pytest.mark.parametrize(
    "url", ["mysql://h/x", "nonsense", "postgresql://nobody@127.0.0.1:1/none?connect_timeout=1"]
)
def test_a_database_that_cannot_be_used_fails(examine: Run, tmp_path: Path, url: str) -> None:
    done = examine(HOME=tmp_path, DATABASE_URL=url)
    assert status(done)["database"] == "fail"


def test_a_file_that_is_no_database_fails(examine: Run, home: Path) -> None:
    (home / "gatekeeper.sqlite").write_text("this is no database, however long it is" * 40)
    assert status(examine("--home", home))["database"] == "fail"


def test_a_folder_in_the_databases_place_fails(examine: Run, tmp_path: Path) -> None:
    (tmp_path / "gatekeeper.sqlite").mkdir()
    assert status(examine("--home", tmp_path))["database"] == "fail"


def test_an_older_schema_is_upgraded_by_the_remedy(
    examine: Run, gatekeeper: Run, tmp_path: Path
) -> None:
    db = open_database(f"sqlite:///{tmp_path / 'gatekeeper.sqlite'}")
    upgrade(db, data_dir("migrations"), target="0001")
    db.close()
    done = examine("--home", tmp_path)
    assert status(done)["database"] == "fail"
    program, *arguments = remedy(done, "database").split()
    assert program == "gatekeeper"
    assert gatekeeper(*arguments).status == 0
    after = examine("--home", tmp_path)
    assert status(after)["database"] == status(after)["policies"] == "ok"


def test_an_empty_file_has_no_schema(examine: Run, tmp_path: Path) -> None:
    (tmp_path / "gatekeeper.sqlite").touch()
    done = examine("--home", tmp_path)
    assert status(done)["database"] == "fail"
    assert "db upgrade" in remedy(done, "database")


def test_a_newer_schema_asks_for_a_newer_release(examine: Run, home: Path) -> None:
    db = open_database(f"sqlite:///{home / 'gatekeeper.sqlite'}")
    with db.write() as session:
        session.exec_driver_sql("UPDATE alembic_version SET version_num = 'tomorrow'")
    db.close()
    done = examine("--home", home)
    assert status(done)["database"] == "fail"
    assert "pip install --upgrade" in remedy(done, "database")


def test_policies_that_are_missing_fail(examine: Run, home: Path) -> None:
    done = examine("--home", home)
    assert status(done)["policies"] == "fail"
    assert "db upgrade" in remedy(done, "policies")  # which seeds them


@pytest.fixture
def database(home: Path) -> Iterator[Database]:
    db = open_database(f"sqlite:///{home / 'gatekeeper.sqlite'}")
    yield db
    db.close()


def test_a_database_that_somebody_serves_unseen_is_a_warning(
    examine: Run, home: Path, database: Database
) -> None:
    with sole_server(database):
        done = examine("--home", home)
        assert status(done)["server lock"] == "warn"
        assert "kill" in remedy(done, "server lock")
        settings = Settings.load({}, home=home)
        assert storage.served_by(database, settings, answers=True).status == "ok"
    assert status(examine("--home", home))["server lock"] == "ok"


def test_looking_at_the_lock_does_not_take_it(database: Database) -> None:
    settings = Settings.load({})
    storage.served_by(database, settings, answers=False)
    with sole_server(database):
        storage.served_by(database, settings, answers=False)
        assert "held by process" in storage.served_by(database, settings, answers=True).seen


def test_evidence_without_its_file_fails(examine: Run, home: Path, database: Database) -> None:
    columns = [c for c in schema.run.columns if not c.nullable]
    plain = {str: "x", int: 0, float: 0.0, bool: False}
    values: dict[str, Any] = {c.name: plain.get(c.type.python_type, {}) for c in columns}
    values |= {"id": "r1", "route": "my route", "state": "finished", "finished_at": 1.0}
    with database.engine.connect() as raw:
        raw.connection.execute("PRAGMA foreign_keys=OFF")  # no route, no artifact: two rows do
        with raw.begin():
            raw.execute(schema.run.insert().values(values))
            raw.execute(
                schema.evidence.insert().values(
                    run="r1", table="t", fence=1, sha256="0" * 64, path="r1/t.parquet",
                    rows=1, bytes=1, received_at=0.0,
                )
            )  # fmt: skip
    done = examine("--home", home)
    assert status(done)["evidence"] == "fail"
    assert remedy(done, "evidence").startswith("gatekeeper gate run 'my route'")
    (home / "evidence" / "r1").mkdir()
    (home / "evidence" / "r1" / "t.parquet").touch()
    assert status(examine("--home", home))["evidence"] == "ok"


@contextmanager
def answering(
    code: int, body: bytes = b"{}", headers: dict[str, str] | None = None
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            asked.append({"path": self.path, "body": self.rfile.read(length).decode()})
            asked[-1] |= {k.lower(): v for k, v in self.headers.items()}
            self.send_response_only(code)
            for name, value in (headers or {"Date": formatdate(usegmt=True)}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the base class's name

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()
        thread.join()


def test_a_port_that_somebody_else_holds_fails(examine: Run, home: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]  # bound but not listening: connections are refused
        done = examine("--home", home, PORT=port)
    assert status(done)["server"] == "fail"
    assert "--port 0" in remedy(done, "server")


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]"])
def test_another_program_behind_the_address_fails(examine: Run, home: Path, body: bytes) -> None:
    with answering(200, body) as (url, _):
        done = examine("--home", home, URL=url, TOKEN="t")
    assert status(done)["server"] == "fail"


def test_a_server_that_is_not_ready_fails_in_its_own_words(examine: Run, home: Path) -> None:
    problem = b'{"detail": "has schema 1", "remedy": "run gatekeeper db upgrade"}'
    with answering(503, problem) as (url, _):
        done = examine("--home", home, URL=url)
    assert status(done)["server"] == "fail"
    assert remedy(done, "server") == "run gatekeeper db upgrade"


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "nonsense", "ftp://x", "http://[::1"])
def test_an_address_that_does_not_answer_fails(examine: Run, home: Path, url: str) -> None:
    done = examine("--home", home, URL=url)
    assert status(done)["server"] == "fail"


def test_a_client_without_a_database_asks_the_server(
    examine: Run, live_server: LiveServer, tmp_path: Path
) -> None:
    client_home = tmp_path / "client"
    done = examine("--home", client_home, URL=live_server.url)
    assert status(done)["database"] == "ok"  # the server keeps its own
    assert status(done)["workers"] == status(done)["policies"] == "warn"
    assert "token create --role reader" in remedy(done, "policies")
    token = live_server.tokens["reader"]
    done = examine("--home", client_home, "--url", live_server.url, TOKEN=token)
    assert status(done)["policies"] == status(done)["token"] == "ok"
    assert status(done)["OTLP"] == "fail"  # a reader may not send


@pytest.mark.parametrize("role", ["reader", "ingester", "worker", "operator", "admin"])
def test_the_role_is_asked_of_the_server_and_of_the_database(
    role: str, live_server: LiveServer
) -> None:
    settings = Settings.load({"GATEKEEPER_URL": live_server.url})
    settings = settings.with_server(token=live_server.tokens[role])
    for answers in (True, False):
        found, line = service.token(settings, live_server.db, answers=answers)
        assert (found, line.status) == (role, "ok")


@pytest.mark.parametrize("token", ["gk_unknown", "ümlaut", "two\nlines"])
@pytest.mark.parametrize("answers", [True, False])
def test_a_token_that_is_none_fails(live_server: LiveServer, token: str, *, answers: bool) -> None:
    settings = Settings.load({"GATEKEEPER_URL": live_server.url}).with_server(token=token)
    found, check = service.token(settings, live_server.db, answers=answers)
    assert (found, check.status) == (None, "fail")
    assert "token create" in str(check.remedy)


@pytest.mark.parametrize(
    ("ahead_s", "expected"),
    [
        (0.0, "ok"),
        (1.4, "ok"),
        (-1.4, "ok"),
        (10, "warn"),
        (-10, "warn"),
        (90, "fail"),
        (-90, "fail"),
    ],
)
def test_clock_skew(ahead_s: float, expected: str) -> None:
    now = 1_800_000_000.0
    answer = httpx.Response(200, headers={"Date": formatdate(now, usegmt=True)})
    answer.elapsed = type(answer.elapsed)(0) if hasattr(answer, "_elapsed") else _zero()
    check = service.clock(Settings.load({}), answer, now + 0.5 + ahead_s)
    assert check.status == expected
    if expected != "ok":
        assert ("ahead of" if ahead_s > 0 else "behind") in check.seen


def _zero() -> Any:
    from datetime import timedelta

    return timedelta(0)


@pytest.mark.parametrize("headers", [{}, {"Date": "yesterday"}])
def test_a_server_without_a_date_is_a_warning(headers: dict[str, str]) -> None:
    answer = httpx.Response(200, headers=headers)
    answer.elapsed = _zero()
    assert service.clock(Settings.load({}), answer, 0.0).status == "warn"


def otlp(url: str, code_of: str = "", token: str | None = None, **environ: str) -> Check:
    settings = Settings.load({"GATEKEEPER_URL": url}).with_server(token=token)
    export = OtlpExport.load({f"OTEL_EXPORTER_OTLP_{k}": v for k, v in environ.items()})
    return service.otlp(settings, export, answers=True)


def test_an_empty_export_goes_out_with_the_configured_headers() -> None:
    with answering(200) as (url, asked):
        check = otlp("http://127.0.0.1:1", ENDPOINT=f"{url}/", HEADERS="authorization=Bearer%20abc")
        assert check.status == "ok"
        assert asked[0]["path"] == "/v1/traces"
        assert asked[0]["authorization"] == "Bearer abc"
        assert asked[0]["content-type"] == "application/x-protobuf"
        assert asked[0]["body"] == ""
        own = otlp(url, token="mine", TRACES_ENDPOINT=f"{url}/other", HEADERS="")
        assert own.status == "ok"
        assert (asked[1]["path"], asked[1]["authorization"]) == ("/other", "Bearer mine")


@pytest.mark.parametrize(
    ("code", "expected"), [(401, "refuses"), (403, "refuses"), (404, "404"), (500, "500")]
)
def test_an_export_that_is_refused_fails(code: int, expected: str) -> None:
    with answering(code) as (url, _):
        check = otlp(url, token="t")
    assert check.status == "fail"
    assert expected in check.seen
    assert "OTEL_EXPORTER_OTLP_" in str(check.remedy)


def test_an_export_that_reaches_nobody_fails_and_one_without_a_token_warns() -> None:
    assert otlp("http://127.0.0.1:1", token="t", ENDPOINT="http://127.0.0.1:1").status == "fail"
    assert otlp("http://127.0.0.1:1", token="t", ENDPOINT="nonsense").status == "fail"
    assert otlp("http://127.0.0.1:1", HEADERS="authorization=a%0Ab").status == "fail"
    assert otlp("http://127.0.0.1:1").status == "warn"


def test_spans_are_taken_by_a_real_server(live_server: LiveServer) -> None:
    for role, expected in (("ingester", "ok"), ("admin", "ok"), ("reader", "fail")):
        found = otlp(live_server.url, token=live_server.tokens[role])
        assert found.status == expected, found


NOW = 1_000_000.0


@pytest.mark.parametrize(
    ("runs", "expected", "said"),
    [
        ([], "warn", "no worker has finished"),
        ([Seen("pending", None, None, None)], "warn", "1 run pending and nobody at work"),
        ([Seen("running", "ann", NOW + 5, None)], "ok", "at work: ann"),
        ([Seen("running", "ann", NOW - 5, None)], "warn", "1 with a lapsed lease"),
        ([Seen("finished", "ann", None, NOW - 7200)], "ok", "last seen: ann, 2 h ago"),
        (
            [Seen("finished", "ann", None, NOW - 90), Seen("pending", None, None, None)],
            "warn",
            "last seen: ann, 2 min ago",
        ),
    ],
)
def test_workers_are_known_by_their_runs(runs: list[Seen], expected: str, said: str) -> None:
    check = judge(runs, Settings.load({}), NOW)
    assert check.status == expected
    assert said in check.seen
    assert expected == "ok" or "token create --role worker" in str(check.remedy)


def test_engines_are_listed_with_a_version_or_the_install_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Absent:
        def version(self) -> str:
            raise MissingExtra("is not installed", field="engine", remedy="pip install this[x]")

    def load(_: str, name: str) -> Any:
        if name == "broken":
            raise ImportError("no such symbol")
        return Absent() if name == "absent" else plugins_load("gatekeeper.engines", name)

    plugins_load = plugins.load
    monkeypatch.setattr(plugins, "names", lambda _: ("reference", "absent", "broken"))
    monkeypatch.setattr(plugins, "load", load)
    here, absent, broken = machine.engines()
    assert here.status in {"ok", "warn"}
    assert (absent.status, absent.remedy) == ("warn", "pip install this[x]")
    assert broken.status == "fail"
    monkeypatch.setattr(plugins, "names", lambda _: ())
    assert [check.status for check in machine.engines()] == ["fail"]


def test_a_revoked_token_of_this_machine_is_known_without_a_server(
    examine: Run, home: Path, database: Database
) -> None:
    _, secret = create_token(database, SYSTEM, name="n", role="operator", ttl_s=None)
    assert status(examine("--home", home, TOKEN=secret))["token"] == "ok"
    with database.write() as session:
        session.execute(schema.token.update().values(revoked_at=1.0))
    assert status(examine("--home", home, TOKEN=secret))["token"] == "fail"


def test_the_token_is_not_sent_to_somebody_elses_collector() -> None:
    with answering(200) as (url, asked):
        check = otlp("http://127.0.0.1:1", token="mine", ENDPOINT=url)
    assert check.status == "ok"
    assert "authorization" not in asked[0] or not asked[0]["authorization"]


def test_credentials_in_addresses_are_refused_or_not_shown() -> None:
    check = otlp("http://127.0.0.1:1", token="t", ENDPOINT="http://me:secret@127.0.0.1:1")
    assert "secret" not in check.seen
    with pytest.raises(InputError, match="token's place") as refused:
        Settings.load({"GATEKEEPER_URL": "http://me:secret@host"})
    assert "secret" not in str(refused.value)
