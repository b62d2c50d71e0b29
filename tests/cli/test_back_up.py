"""Back up a server that runs, restore elsewhere, and go on in a new epoch."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from live import serving
from look_up_artifact import look_up_artifact

from gatekeeper.store.database import Database, open_database

if TYPE_CHECKING:
    from pathlib import Path

Run = Callable[..., Any]


def url_of(db: Database) -> str:
    whole = db.engine.url.set(drivername=db.engine.url.get_backend_name())
    return str(whole.render_as_string(hide_password=False))


def run_tool(*command: str) -> None:
    subprocess.run(command, check=True, timeout=240)


@pytest.fixture
def fresh_url(db: Database, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where to restore to."""
    if db.sqlite:
        return f"sqlite:///{tmp_path / 'restored.sqlite'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


def test_a_restored_server_knows_what_was_backed_up_and_outranks_what_came_after(
    db: Database, fresh_url: str, gatekeeper: Run, tmp_path: Path
) -> None:
    evidence, copied = tmp_path / "evidence", tmp_path / "copied"
    evidence.mkdir()
    (evidence / "runs").mkdir()
    file, settings = tmp_path / "backup", {"DATABASE_URL": url_of(db), "HOME": tmp_path}
    with serving(db, evidence) as server, server.client("admin") as admin:
        digest = admin.post("/v1/artifacts", json=look_up_artifact("reference")).json()["digest"]
        body = {"slice": "prose", "artifact": digest, "policy": "ci"}
        assert admin.put("/v1/routes/prose", json=body).is_success
        if db.sqlite:
            made = gatekeeper("db", "backup", file, "--json", **settings)
            assert made.status == 0, made.err
            assert file.stat().st_mode & 0o777 == 0o600
            assert made.json["bytes"] == file.stat().st_size > 0
            assert gatekeeper("db", "backup", file, **settings).status == 2  # never over another
        else:
            refused = gatekeeper("db", "backup", file, **settings)
            assert (refused.status, "pg_dump" in refused.err) == (2, True)
            run_tool("pg_dump", "--format", "custom", "--file", str(file), url_of(db))
        shutil.copytree(evidence, copied)
        # after the backup, and lost with this machine
        override = {"route": "prose", "action": "bypass", "reason": "later", "ttl_s": 600}
        assert admin.post("/v1/overrides", json=override).is_success
        lost = admin.get("/v1/routes/prose/decision").json()
    assert lost["reason"] == "override"
    if db.sqlite:
        shutil.copy(file, tmp_path / "restored.sqlite")
    else:
        run_tool("pg_restore", "--no-owner", "--exit-on-error", "--dbname", fresh_url, str(file))
    began = gatekeeper("db", "restored", "--json", DATABASE_URL=fresh_url, HOME=tmp_path)
    assert began.status == 0, began.err
    restored = open_database(fresh_url)
    try:
        with serving(restored, copied) as server, server.client("admin") as admin:
            lease = admin.get("/v1/routes/prose/decision").json()
            assert lease["artifact"] == digest
            assert lease["reason"] != "override"
            # a client that holds the lost decision takes this one for newer
            assert lease["version"] > lost["version"]
            assert lease["version"][0] == began.json["epoch"]
            known = {"URL": server.url, "TOKEN": server.tokens["reader"], "HOME": tmp_path}
            verified = gatekeeper("claims", "verify", DATABASE_URL=fresh_url, **known)
            assert verified.status == 0, verified.out + verified.err
    finally:
        restored.close()
