"""Settings: the only reader of the environment."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from gatekeeper.core.addresses import has_credentials, without_secrets
from gatekeeper.errors import InputError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["OtlpExport", "Settings", "data_dir"]

PORT = 8321
"""The port served when none is asked for."""


@dataclass(frozen=True)
class Settings:
    """Where the state lives and where the server listens.

    ``home`` holds the SQLite file, caches and, unless ``evidence`` says otherwise, the evidence
    folder. ``home_given`` tells a home somebody chose from the default one. ``ingest`` is the
    document of limits and redaction for spans, ``rate_per_s`` the requests a second that a token
    without a rate of its own may make (None: any number), ``model_sources`` what a worker opens
    (None: any). ``url`` and ``token`` are for clients and workers, ``servers_key`` is what engines
    that are watched are sent, ``webhook_key`` what webhooks' secrets are derived from, and
    ``webhook_networks`` are those that they may reach beside the public ones.
    """

    home: Path
    home_given: bool
    database_url: str
    evidence: Path
    host: str = "127.0.0.1"
    port: int = PORT
    url: str | None = None
    token: str | None = None
    executor: str | None = None
    ingest: Path | None = None
    servers_key: str | None = None
    webhook_key: str | None = None
    webhook_networks: str | None = None
    rate_per_s: float | None = None
    model_sources: tuple[str, ...] | None = None

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str] | None = None,
        *,
        home: str | Path | None = None,
        port: int | None = None,
        host: str | None = None,
        executor: str | None = None,
        ingest: str | Path | None = None,
    ) -> Settings:
        """Read ``GATEKEEPER_*`` from ``environ`` (the process's own by default); options win.

        Raises:
            InputError: ``GATEKEEPER_PORT`` is not a port number, ``GATEKEEPER_RATE`` no rate, or
                ``GATEKEEPER_URL`` holds a user or password.
        """
        env = os.environ if environ is None else environ
        chosen = home if home is not None else env.get("GATEKEEPER_HOME") or None
        root = Path(chosen).expanduser().absolute() if chosen is not None else _default_home(env)
        # A home on the command line means that home's own database, whatever the environment says.
        url = None if home is not None else env.get("GATEKEEPER_DATABASE_URL")
        evidence = None if home is not None else env.get("GATEKEEPER_EVIDENCE")
        if home is not None and env.get("GATEKEEPER_DATABASE_URL", "").startswith("postgresql"):
            # PostgreSQL lives outside every home: --home then moves caches and evidence only.
            url = env["GATEKEEPER_DATABASE_URL"]
            evidence = env.get("GATEKEEPER_EVIDENCE")
        document = ingest or env.get("GATEKEEPER_INGEST") or None
        return cls(
            home=root,
            home_given=chosen is not None or bool(url),
            database_url=url or f"sqlite:///{root / 'gatekeeper.sqlite'}",
            evidence=Path(evidence).expanduser().absolute() if evidence else root / "evidence",
            host=host or env.get("GATEKEEPER_HOST") or cls.host,
            port=port if port is not None else _port(env.get("GATEKEEPER_PORT")),
            url=_server((env.get("GATEKEEPER_URL") or "").rstrip("/") or None),
            token=env.get("GATEKEEPER_TOKEN") or None,
            executor=executor or env.get("GATEKEEPER_EXECUTOR") or None,
            ingest=Path(document).expanduser().absolute() if document else None,
            servers_key=env.get("GATEKEEPER_SERVERS_KEY") or None,
            webhook_key=env.get("GATEKEEPER_WEBHOOK_KEY") or None,
            webhook_networks=env.get("GATEKEEPER_WEBHOOK_NETWORKS") or None,
            rate_per_s=_rate(env.get("GATEKEEPER_RATE")),
            model_sources=_list(env.get("GATEKEEPER_MODEL_SOURCES")),
        )

    @property
    def cache(self) -> Path:
        """Downloads and converted models."""
        return self.home / "cache"

    @property
    def server_url(self) -> str:
        """The server that clients talk to: ``GATEKEEPER_URL``, else the default loopback one."""
        return self.url or f"http://{self.host}:{self.port}"

    def with_server(self, *, url: str | None = None, token: str | None = None) -> Settings:
        """Return a copy for another server.

        Raises:
            InputError: the address holds a user or password.
        """
        return replace(self, url=(_server(url) or self.url), token=token or self.token)

    def prepare(self) -> None:
        """Create the home and evidence folders.

        Raises:
            Unavailable: one of them cannot be created or written.
        """
        for name, folder in (("home", self.home), ("evidence", self.evidence)):
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except FileExistsError as error:
                raise Unavailable(
                    "is a file, not a folder",
                    field=name,
                    value=str(folder),
                    remedy=_WRITABLE[name],
                ) from error
            except OSError as error:
                raise Unavailable(
                    f"cannot be created ({error.strerror})",
                    field=name,
                    value=str(folder),
                    remedy=_WRITABLE[name],
                ) from error
            if not os.access(folder, os.W_OK | os.X_OK):
                raise Unavailable(
                    "is not writable", field=name, value=str(folder), remedy=_WRITABLE[name]
                )


@dataclass(frozen=True)
class OtlpExport:
    """Where this environment's OpenTelemetry exporters send spans, None where it does not say.

    ``headers`` are decoded; ``OTEL_EXPORTER_OTLP_TRACES_…`` win, as in the OTLP specification.
    """

    endpoint: str | None
    headers: Mapping[str, str]

    @classmethod
    def load(cls, environ: Mapping[str, str] | None = None) -> OtlpExport:
        """Read ``OTEL_EXPORTER_OTLP_*``."""
        env = os.environ if environ is None else environ
        base = (env.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "").rstrip("/")
        own = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
        text = env.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or env.get(
            "OTEL_EXPORTER_OTLP_HEADERS", ""
        )
        pairs = [part.partition("=") for part in text.split(",") if "=" in part]
        return cls(
            endpoint=own or (f"{base}/v1/traces" if base else None),
            headers={name.strip().lower(): unquote(value.strip()) for name, _, value in pairs},
        )


_WRITABLE = {
    "home": "choose a writable folder with --home or GATEKEEPER_HOME",
    "evidence": "choose a writable folder with GATEKEEPER_EVIDENCE",
}


def data_dir(name: str) -> Path:
    """Folder of shipped data, ``migrations`` or ``policies``.

    In a wheel they lie under ``gatekeeper/_data``; in a checkout at the repository's root.

    Raises:
        Unavailable: neither place has it.
    """
    package = Path(__file__).resolve().parent
    for candidate in (package / "_data" / name, package.parent / name):
        if candidate.is_dir():
            return candidate
    raise Unavailable(
        "is missing from this installation", field="data", value=name, remedy="reinstall gatekeeper"
    )


def _default_home(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_STATE_HOME")
    state = Path(base) if base else Path(env.get("HOME") or "~").expanduser() / ".local" / "state"
    return state.absolute() / "gatekeeper"


def _server(url: str | None) -> str | None:
    if url is not None and has_credentials(url):
        raise InputError(
            "holds a user or password, which would be sent in the token's place",
            field="url",
            value=without_secrets(url),
            remedy="use http://HOST:PORT alone, and GATEKEEPER_TOKEN",
        )
    return url


def _list(text: str | None) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip()) or None


def _rate(text: str | None) -> float | None:
    if text is None or text == "":
        return None
    if not re.fullmatch(r"[0-9]{1,7}(\.[0-9]{1,6})?", text) or not float(text):
        raise InputError(
            "is not a rate", field="GATEKEEPER_RATE", value=text, remedy="use requests a second: 50"
        )
    return float(text)


def _port(text: str | None) -> int:
    if text is None or text == "":
        return PORT
    if not re.fullmatch("[0-9]{1,5}", text) or int(text) >= 2**16:
        raise InputError(
            "is not a port", field="GATEKEEPER_PORT", value=text, remedy="use 0 to 65535"
        )
    return int(text)
