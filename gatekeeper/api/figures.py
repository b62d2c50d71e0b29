"""What is read at each scrape: the queue, the routes and the outbox as they are now.

Labels are routes and fixed words. What is not known is left out, never zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from gatekeeper.actions import queue, webhooks
from gatekeeper.core.bypass import ENABLE
from gatekeeper.errors import GatekeeperError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import Metric

    from gatekeeper.api.services import Services

__all__ = ["figures"]


def figures(services: Services) -> list[Metric]:
    """Return this moment's figures."""
    found: list[Metric] = [
        _one("gatekeeper_decision_streams", "Streams of decisions open now", services.feed.open),
        CounterMetricFamily(
            "gatekeeper_snapshots_built",
            "Snapshots built: one for each version, and for each cut of a lifetime",
            value=services.snapshots.built,
        ),
    ]
    try:
        found += _stored(services)
        up = 1
    except GatekeeperError:
        up = 0
    return [*found, _one("gatekeeper_database_up", "1 where the database answers", up)]


def _stored(services: Services) -> list[Metric]:
    snapshot = services.snapshots.current()
    at = services.snapshots.database_time()
    leases = {route: handed.lease for route, handed in snapshot.handed.items()}
    waited = queue.oldest_pending_s(services.db)
    return [
        _by("state", "gatekeeper_runs", "Gate runs", queue.count_by_state(services.db)),
        _one(
            "gatekeeper_queue_age_seconds",
            "How long the oldest pending gate run has waited; 0 where none waits",
            waited or 0.0,
        ),
        _by(
            "route",
            "gatekeeper_route_enabled",
            "1 where the route's decision is enable",
            {route: lease.action == ENABLE for route, lease in leases.items()},
        ),
        _by(
            "route",
            "gatekeeper_evidence_expires_seconds",
            "Seconds until the evidence of a route's decision lapses; absent where it rests on none",
            {
                route: lease.evidence_expires_at.timestamp() - at
                for route, lease in leases.items()
                if lease.evidence_expires_at is not None
            },
        ),
        _by(
            "state",
            "gatekeeper_webhook_notices",
            "Notices in the outbox",
            webhooks.count_by_state(services.db),
        ),
    ]


def _one(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _by(label: str, name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], float(value))
    return family
