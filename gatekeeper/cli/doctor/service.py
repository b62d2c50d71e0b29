"""What the server answers: readiness, the token, its clock, and whether it takes spans."""

from __future__ import annotations

import socket
from contextlib import closing
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING

import httpx

from gatekeeper.actions.identity import authenticate
from gatekeeper.cli.doctor.check import FAIL, OK, WARN, Check, command, failed
from gatekeeper.cli.http import client
from gatekeeper.core.addresses import why_silent, without_secrets
from gatekeeper.errors import Forbidden, GatekeeperError, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gatekeeper.config import OtlpExport, Settings
    from gatekeeper.store.database import Database

__all__ = ["clock", "otlp", "server", "token"]

_TIMEOUT_S = 5.0
_SKEW_WARN_S, _SKEW_FAIL_S = 2.0, 30.0
"""A Date header has whole seconds; beyond half a minute leases and traces are misdated."""

_NOT_ASKED = "not checked: no server answers"


def server(settings: Settings) -> tuple[httpx.Response | None, Check]:
    """Ask for readiness; the answer is None unless it came from a ready gatekeeper."""
    name, url = "server", settings.server_url
    start = command("serve", settings.home)
    try:
        answer = httpx.get(f"{url}/readyz", timeout=_TIMEOUT_S)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        remedy = "export GATEKEEPER_URL=http://127.0.0.1:8321"
        return None, Check(name, FAIL, f"{url} is not a URL ({error})", remedy)
    except httpx.TransportError as error:
        if settings.url is None:
            return None, _port(settings, start)
        seen = f"{url} does not answer ({why_silent(error)})"
        return None, Check(name, FAIL, seen, f"{start}   # there, or correct GATEKEEPER_URL")
    check = _readiness(url, answer, start)
    return (answer if check.status == OK else None), check


def _readiness(url: str, answer: httpx.Response, start: str) -> Check:
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not {"status", "detail"} & body.keys():
        remedy = f"{start} --port 0   # then export GATEKEEPER_URL to the address it prints"
        return Check("server", FAIL, f"{url} is answered by something else", remedy)
    if answer.status_code == httpx.codes.OK:
        return Check("server", OK, f"{url} is ready")
    remedy = str(body.get("remedy") or "read the server's log")
    return Check("server", FAIL, f"{url} is not ready: {body.get('detail')}", remedy)


def _port(settings: Settings, start: str) -> Check:
    """Nobody speaks HTTP there: is the port free for a server of ours?"""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
            probe.listen()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            seen = f"port {settings.port} of {settings.host} cannot be used ({reason})"
            return Check("server", FAIL, seen, f"{start} --port 0")
    seen = f"none runs; port {settings.port} of {settings.host} is free"
    return Check("server", WARN, seen, start)


def token(settings: Settings, db: Database | None, *, answers: bool) -> tuple[str | None, Check]:
    """Whose the token is: asked of the server, else of this machine's database."""
    name = "token"
    create = command("token create --role admin", settings.home)
    remedy = f"export GATEKEEPER_TOKEN=$({create})"
    if settings.token is None:
        return None, Check(name, WARN, "GATEKEEPER_TOKEN is not set", remedy)
    try:
        if answers:
            role = _role(settings)
        elif db is not None:
            role = authenticate(db, settings.token).role
        else:
            return None, Check(name, WARN, _NOT_ASKED, command("serve", settings.home))
    except Unauthorized as error:
        return None, failed(name, error, remedy)
    except GatekeeperError as error:
        return None, failed(name, error)
    return role, Check(name, OK, f"GATEKEEPER_TOKEN has role {role}")


def _role(settings: Settings) -> str:
    """Role of the token: only an admin may list tokens, and a refusal names the role."""
    with client(settings, timeout_s=_TIMEOUT_S) as http:
        try:
            http.get("/v1/tokens", params={"limit": 1})
        except Forbidden as error:
            return str(error.value)
    return "admin"


def clock(settings: Settings, answer: httpx.Response | None, now_s: float) -> Check:
    """Compare this machine's clock with the server's; ``now_s`` is when the answer arrived."""
    name = "clock"
    if answer is None:
        return Check(name, WARN, _NOT_ASKED, command("serve", settings.home))
    try:
        there = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (KeyError, ValueError):
        return Check(name, WARN, "the server sends no usable Date", "look at the proxy before it")
    # The header was cut to a second, and written somewhere between request and answer.
    skew = now_s - answer.elapsed.total_seconds() / 2 - (there + 0.5)
    seen = f"{abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} the server"
    remedy = "timedatectl set-ntp true   # on whichever machine is wrong"
    if abs(skew) > _SKEW_FAIL_S:
        return Check(name, FAIL, seen, remedy)
    if abs(skew) > _SKEW_WARN_S:
        return Check(name, WARN, seen, remedy)
    return Check(name, OK, "agrees with the server's to the second")


def otlp(settings: Settings, export: OtlpExport, *, answers: bool) -> Check:
    """Post an empty export with the headers that this environment's exporters would send."""
    name = "OTLP"
    target = export.endpoint or f"{settings.server_url}/v1/traces"
    ours = target.startswith(f"{settings.server_url}/")
    endpoint = without_secrets(target)
    if export.endpoint is None and not answers:
        return Check(name, WARN, _NOT_ASKED, command("serve", settings.home))
    create = command("token create --role ingester", settings.home)
    remedy = f"export OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20$({create})"
    headers: Mapping[str, str] = export.headers
    whose = "OTEL_EXPORTER_OTLP_HEADERS"
    if not headers and ours:  # our token is for our server and nobody else
        if settings.token is None:
            seen = f"{endpoint}: neither {whose} nor GATEKEEPER_TOKEN is set"
            return Check(name, WARN, seen, remedy)
        headers, whose = {"authorization": f"Bearer {settings.token}"}, "GATEKEEPER_TOKEN"
    try:
        answer = httpx.post(
            target,
            content=b"",  # an ExportTraceServiceRequest without spans has no bytes
            headers={**headers, "content-type": "application/x-protobuf"},
            timeout=_TIMEOUT_S,
        )
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a bad header
        seen = f"{endpoint} does not answer ({why_silent(error)})"
        where = f"export OTEL_EXPORTER_OTLP_ENDPOINT={settings.server_url}"
        return Check(name, FAIL, seen, where)
    if answer.status_code in {httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN}:
        seen = f"{endpoint} refuses {whose} ({answer.status_code})"
        return Check(name, FAIL, seen, remedy)
    if answer.status_code != httpx.codes.OK:
        where = f"export OTEL_EXPORTER_OTLP_ENDPOINT={settings.server_url}"
        return Check(name, FAIL, f"{endpoint} answered {answer.status_code}", where)
    return Check(name, OK, f"{endpoint} takes spans ({whose})")
