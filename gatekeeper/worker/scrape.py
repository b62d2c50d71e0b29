"""Asking a running engine what it does: its metrics, and its own words on what it runs.

Only GET requests, none of which decodes anything.
"""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gatekeeper.core.running_pair import server_url
from gatekeeper.core.watch_metrics import Sample, Scrape, recognise, scrape
from gatekeeper.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Observed", "Target", "metrics_address", "samples"]

MAX_BYTES = 8 * 1024**2
"""Largest answer that is read: a busy engine's metrics have some hundred kilobytes."""

MAX_S = 10.0
"""Longest answer, from the question to its end."""

_LONGEST = 200


@dataclass(frozen=True)
class Observed:
    """One look: what the metrics told, None where they could not be read, and readings.

    ``problems`` are sentences on what could not be seen, those of the scrape among them.
    """

    scrape: Scrape | None
    readings: dict[str, str]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Target:
    """An engine by its root and the address of its metrics.

    ``engine`` None: whose metrics these are is recognised by their names. ``model`` is the one to
    watch where the server has several.
    """

    client: httpx.Client
    root: str
    metrics_url: str
    engine: str | None = None
    model: str | None = None

    def look(self) -> Observed:
        """Ask once. An engine that does not answer is a problem to report, not an error."""
        readings, problems = self._readings()
        text, trouble = self._get(self.metrics_url)
        if trouble is not None:
            return Observed(None, readings, (*problems, trouble))
        try:
            found = list(samples(text))
        except ValueError as error:
            said = f"the metrics cannot be read ({_brief(str(error))})"
            return Observed(None, readings, (*problems, said))
        engine = self.engine or recognise(found)
        if engine is None:
            said = "the metrics are of no engine known here: none begins with vllm:, sglang:, "
            return Observed(None, readings, (*problems, f"{said}llamacpp: or gatekeeper:"))
        seen = scrape(engine, found, model=self.model)
        return Observed(seen, {"engine": engine, **readings}, (*problems, *seen.problems))

    def _readings(self) -> tuple[dict[str, str], list[str]]:
        """Words of ``/v1/models`` and ``/version`` (llama.cpp: ``/props``)."""
        problems = []
        listed, trouble = self._document("/v1/models")
        if trouble is not None:
            problems.append(trouble)
        models = listed.get("data")
        known = [m for m in models if isinstance(m, dict)] if isinstance(models, list) else []
        mine = self._mine(known)
        if known and mine is None:
            names = ", ".join(_brief(str(m.get("id"))) for m in known)
            problems.append(f"the server has {names}: say which with --model")
        version = self._document("/version")[0].get("version")
        if not version:
            version = self._document("/props")[0].get("build_info")
        mine = mine or {}
        found = {
            "model": mine.get("id"),
            "owned_by": mine.get("owned_by"),
            "root": mine.get("root"),
            "version": version,
        }
        if mine.get("meta"):
            weights = json.dumps(mine["meta"], sort_keys=True)
            found["weights"] = hashlib.sha256(weights.encode()).hexdigest()
        return {name: _brief(str(value)) for name, value in found.items() if value}, problems

    def _mine(self, models: list[dict[str, Any]]) -> dict[str, Any] | None:
        if self.model is None:
            return models[0] if len(models) == 1 else None
        for model in models:
            aliases = model.get("aliases")
            names = [model.get("id"), *(aliases if isinstance(aliases, list) else [])]
            if self.model in names:
                return model
        return None

    def _document(self, path: str) -> tuple[dict[str, Any], str | None]:
        text, trouble = self._get(f"{self.root}{path}")
        if trouble is not None:
            return {}, trouble
        try:
            document = json.loads(text)
        except (ValueError, RecursionError):
            return {}, f"{path} is no JSON"
        return (document, None) if isinstance(document, dict) else ({}, f"{path} is no object")

    def _get(self, url: str) -> tuple[str, str | None]:
        """A page's text, or why there is none."""
        path, body, began = httpx.URL(url).path, bytearray(), time.monotonic()
        try:
            with self.client.stream(
                "GET", url, headers={"Accept-Encoding": "identity"}
            ) as response:
                if not response.is_success:
                    return "", f"{path} answers {response.status_code}"
                if response.headers.get("Content-Encoding", "identity") != "identity":
                    # a few packed bytes unpack to any size
                    return "", f"{path} is packed, which was not asked for"
                for part in response.iter_bytes():
                    body += part
                    if len(body) > MAX_BYTES:
                        return "", f"{path} has more than {MAX_BYTES} bytes"
                    if time.monotonic() - began > MAX_S:
                        return "", f"{path} takes longer than {MAX_S:g} s"
        except httpx.HTTPError as error:
            return "", f"{path} does not answer ({_brief(str(error) or type(error).__name__)})"
        return body.decode(errors="replace"), None


def samples(text: str) -> Iterator[Sample]:
    """Read Prometheus text.

    Raises:
        ValueError: it is none.
    """
    for family in text_string_to_metric_families(text):
        for found in family.samples:
            yield Sample(found.name, found.labels, float(found.value))


def metrics_address(url: str) -> tuple[str, str]:
    """(root of the server, address of its metrics) of either, as a person gives it.

    Raises:
        InputError: it is not http or https, names no host, or holds a user, query or fragment.
    """
    root = server_url(url.rstrip("/").removesuffix("/metrics"), field="url")
    if len(root) > _LONGEST:
        # it is the name under which the server keeps what this watch sees
        raise InputError(
            "is too long", field="url", value=root, remedy="use http://HOST:PORT, or --source"
        )
    return root, f"{root}/metrics"


def _brief(text: str) -> str:
    """One line of print, short enough to be sent."""
    line = "".join(c if c.isprintable() else " " for c in text)
    return " ".join(line.split())[:_LONGEST] or "?"
