"""Structured logs and the server's own metrics."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client import Metric

__all__ = ["Metrics", "configure_logging"]


def configure_logging(*, json: bool = False, level: int = logging.INFO) -> None:
    """Send structured logs to standard error: lines for people, or JSON."""
    renderer = (
        structlog.processors.JSONRenderer()
        if json
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        # looked up at each line: whoever replaces standard error later still gets the log
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )


@dataclass(frozen=True)
class Metrics:
    """One server's metrics on their own registry, so that two servers in a process stay apart."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    requests: Counter = field(init=False)
    latency: Histogram = field(init=False)
    decisions: Counter = field(init=False)
    evidence_bytes: Counter = field(init=False)
    spans: Counter = field(init=False)
    redacted: Counter = field(init=False)
    rounds: Counter = field(init=False)
    notices: Counter = field(init=False)

    def __post_init__(self) -> None:
        def put(name: str, metric: object) -> None:
            object.__setattr__(self, name, metric)  # the dataclass is frozen for its users

        put(
            "requests",
            Counter(
                "gatekeeper_http_requests",
                "HTTP requests answered",
                ["method", "path", "status"],
                registry=self.registry,
            ),
        )
        put(
            "latency",
            Histogram(
                "gatekeeper_http_request_seconds",
                "Time to answer an HTTP request",
                ["method", "path"],
                registry=self.registry,
            ),
        )
        put(
            "decisions",
            Counter(
                "gatekeeper_decisions",
                "Decisions handed out",
                ["route", "action", "reason"],
                registry=self.registry,
            ),
        )
        put(
            "evidence_bytes",
            Counter(
                "gatekeeper_evidence_bytes",
                "Bytes of evidence received",
                registry=self.registry,
            ),
        )
        put(
            "spans",
            Counter(
                "gatekeeper_spans",
                "Spans received: new, known already, or rejected",
                ["fate"],
                registry=self.registry,
            ),
        )

        put(
            "redacted",
            Counter(
                "gatekeeper_redacted_attributes",
                "Attributes of spans dropped or hashed before they were stored, by rule",
                ["rule"],
                registry=self.registry,
            ),
        )

        put(
            "rounds",
            Counter(
                "gatekeeper_live_rounds",
                "Rounds of live traffic received",
                registry=self.registry,
            ),
        )
        put(
            "notices",
            Counter(
                "gatekeeper_webhook_tries",
                "Tries to deliver a webhook: delivered, failed, or dead after the last one",
                ["outcome"],
                registry=self.registry,
            ),
        )

    def count_notice(self, outcome: str) -> None:
        """Count a try to deliver a webhook."""
        self.notices.labels(outcome).inc()

    def render(self, figures: Iterable[Metric] = ()) -> bytes:
        """Return the Prometheus text format: what was counted here, and ``figures`` read just now."""
        return generate_latest(_Together(self.registry, figures))


@dataclass(frozen=True)
class _Together(Collector):
    registry: CollectorRegistry
    figures: Iterable[Metric]

    def collect(self) -> Iterator[Metric]:
        yield from self.registry.collect()
        yield from self.figures
