"""``gatekeeper doctor``: is everything in place here, and if not, what to do."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from gatekeeper.cli.show import as_json_option, home_option, print_document

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.cli.doctor.check import Check
    from gatekeeper.config import Settings

__all__ = ["doctor"]

_MAY_READ = frozenset({"reader", "worker", "operator", "admin"})


@click.command()
@home_option
@click.option("--url", help="Server to ask; GATEKEEPER_URL otherwise.")
@as_json_option
def doctor(home: Path | None, url: str | None, *, as_json: bool) -> int:
    """Check home, database, server, token, workers, engines, clock, OTLP, evidence and policies.

    Changes nothing. Each line is ok, warn or fail, with what was seen and a command that mends it.
    Exit status 1 when something failed.
    """
    from gatekeeper.cli.doctor.check import FAIL, WARN, failed
    from gatekeeper.config import Settings
    from gatekeeper.errors import GatekeeperError, printable

    try:
        settings = Settings.load(home=home).with_server(url=url and url.rstrip("/"))
        checks = _examine(settings)
    except GatekeeperError as error:  # settings that cannot be read at all
        checks = [failed("settings", error)]
    good = all(check.status != FAIL for check in checks)
    if as_json:
        print_document({"ok": good, "checks": [check.to_dict() for check in checks]})
        return 0 if good else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        colour = {FAIL: "red", WARN: "yellow"}.get(check.status, "green")
        mark = click.style(f"{check.status:<4}", fg=colour)
        click.echo(f"{mark}  {check.name:<{width}}  {printable(check.seen)}")
        if check.remedy and check.status != "ok":
            click.echo(f"{'':4}  {'':<{width}}  → {printable(check.remedy)}")
    return 0 if good else 1


def _examine(settings: Settings) -> list[Check]:
    from gatekeeper.cli.doctor import machine, service, storage
    from gatekeeper.cli.doctor.check import FAIL
    from gatekeeper.cli.doctor.workers import workers
    from gatekeeper.config import OtlpExport

    checks = [machine.home(settings)]
    broken = checks[0].status == FAIL
    if broken:  # advice then names a home that can work
        settings = replace(settings, home=machine.another_home())
    answer, served = service.server(settings)
    arrived = time.time()
    answers = answer is not None
    db, found = storage.database(settings, home_broken=broken, answers=answers)
    checks.append(found)
    try:
        if db is not None:
            checks.append(storage.served_by(db, settings, answers=answers))
        checks.append(served)
        role, known = service.token(settings, db, answers=answers)
        checks.append(known)
        may_read = answers and role in _MAY_READ
        asking = {"may_read": may_read, "answers": answers}
        checks.append(workers(settings, db, **asking, now_s=time.time()))
        checks += machine.engines()
        checks.append(service.clock(settings, answer, arrived))
        checks.append(service.otlp(settings, OtlpExport.load(), answers=answers))
        checks.append(storage.evidence(db, settings))
        checks.append(storage.policies(db, settings, **asking))
    finally:
        if db is not None:
            db.close()
    return checks
