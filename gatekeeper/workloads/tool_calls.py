"""Slice ``tool_calls``: agents that repeat keys and values in JSON calls and results.

Earlier turns hold calls and results of the same shape as the answer, so a look-up in the prompt
finds long continuations: the friendliest kind of text for speculation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gatekeeper.workloads.chat import Prompt, chat, compact

__all__ = ["build"]


@dataclass(frozen=True)
class _Tool:
    """A tool, a system line, and rows of (arguments, result, how a person asks for it)."""

    name: str
    system: str
    collect: str
    rows: tuple[tuple[dict[str, Any], dict[str, Any], str], ...]


_TOOLS = (
    _Tool(
        "get_service_health",
        "You operate a payment platform. Answer only with a JSON tool call.",
        "List every service you checked as one JSON array with service_name, region, status and error_rate_percent.",
        (
            (
                {"service_name": "ledger-writer", "region": "eu-central-1", "window_minutes": 15},
                {"status": "degraded", "error_rate_percent": 4.2},
                "Is the ledger writer healthy in Frankfurt?",
            ),
            (
                {"service_name": "card-gateway", "region": "eu-central-1", "window_minutes": 15},
                {"status": "healthy", "error_rate_percent": 0.1},
                "And the card gateway there?",
            ),
            (
                {"service_name": "fraud-scorer", "region": "eu-central-1", "window_minutes": 15},
                {"status": "healthy", "error_rate_percent": 0.0},
                "Now the fraud scorer in the same region.",
            ),
            (
                {"service_name": "payout-batch", "region": "eu-central-1", "window_minutes": 15},
                {"status": "unknown", "error_rate_percent": 0.7},
                "What about the payout batch job?",
            ),
        ),
    ),
    _Tool(
        "move_inventory",
        "You manage a chain of bicycle workshops. Answer only with a JSON tool call.",
        "Write all transfers as one JSON array with part_number, from_workshop, to_workshop and transfer_id.",
        (
            (
                {
                    "part_number": "CH-11-118L",
                    "quantity": 20,
                    "from_workshop": "harbour",
                    "to_workshop": "old-mill",
                },
                {"accepted": True, "transfer_id": "TR-5501"},
                "Send twenty 11-speed chains from the harbour shop to the old mill.",
            ),
            (
                {
                    "part_number": "BP-RESIN-02",
                    "quantity": 48,
                    "from_workshop": "harbour",
                    "to_workshop": "old-mill",
                },
                {"accepted": True, "transfer_id": "TR-5502"},
                "Add forty-eight resin brake pads on the same route.",
            ),
            (
                {
                    "part_number": "TU-28-622",
                    "quantity": 60,
                    "from_workshop": "harbour",
                    "to_workshop": "old-mill",
                },
                {"accepted": True, "transfer_id": "TR-5503"},
                "Also sixty 28 mm tubes, please.",
            ),
            (
                {
                    "part_number": "CB-BOWDEN-19",
                    "quantity": 12,
                    "from_workshop": "harbour",
                    "to_workshop": "old-mill",
                },
                {"accepted": False, "transfer_id": "TR-5504"},
                "And a dozen bowden cables.",
            ),
        ),
    ),
    _Tool(
        "query_sensor",
        "You watch the climate of a seed vault. Answer only with a JSON tool call.",
        "Give the readings as one JSON array with sensor_id, hall, celsius and relative_humidity.",
        (
            (
                {"sensor_id": "vault-07-temp", "hall": "north-store", "aggregate": "hourly_mean"},
                {"celsius": -17.8, "relative_humidity": 31},
                "How cold is row seven of the north store?",
            ),
            (
                {"sensor_id": "vault-08-temp", "hall": "north-store", "aggregate": "hourly_mean"},
                {"celsius": -18.1, "relative_humidity": 30},
                "And row eight?",
            ),
            (
                {"sensor_id": "vault-09-temp", "hall": "north-store", "aggregate": "hourly_mean"},
                {"celsius": -16.2, "relative_humidity": 36},
                "Row nine sounded an alarm, read that one.",
            ),
            (
                {"sensor_id": "vault-10-temp", "hall": "north-store", "aggregate": "hourly_mean"},
                {"celsius": -18.0, "relative_humidity": 30},
                "Row ten as a comparison.",
            ),
        ),
    ),
    _Tool(
        "update_ticket",
        "You triage support tickets of a museum shop. Answer only with a JSON tool call.",
        "Summarise the updates as one JSON array with ticket_id, assigned_team, priority and revision.",
        (
            (
                {
                    "ticket_id": "SHOP-2210",
                    "assigned_team": "returns-desk",
                    "priority": "normal",
                    "labels": ["poster", "torn-on-arrival"],
                },
                {"saved": True, "revision": 3},
                "Ticket 2210 is a torn poster: normal priority, to the returns desk.",
            ),
            (
                {
                    "ticket_id": "SHOP-2214",
                    "assigned_team": "returns-desk",
                    "priority": "normal",
                    "labels": ["calendar", "torn-on-arrival"],
                },
                {"saved": True, "revision": 2},
                "2214 is the same story with a calendar.",
            ),
            (
                {
                    "ticket_id": "SHOP-2219",
                    "assigned_team": "returns-desk",
                    "priority": "high",
                    "labels": ["replica", "broken-on-arrival"],
                },
                {"saved": True, "revision": 5},
                "2219: a broken replica vase, make it high.",
            ),
            (
                {
                    "ticket_id": "SHOP-2223",
                    "assigned_team": "returns-desk",
                    "priority": "high",
                    "labels": ["lamp", "broken-on-arrival"],
                },
                {"saved": True, "revision": 2},
                "2223 is a broken lamp, treat it likewise.",
            ),
        ),
    ),
    _Tool(
        "search_timetable",
        "You plan journeys on a regional ferry network. Answer only with a JSON tool call.",
        "Collect the crossings as one JSON array with departure_port, arrival_port, first_departure and minutes.",
        (
            (
                {
                    "departure_port": "Skarvik",
                    "arrival_port": "Lillholm",
                    "travel_date": "2031-05-14",
                    "vehicle": "bicycle",
                },
                {"first_departure": "07:10", "minutes": 35},
                "First boat from Skarvik to Lillholm on 14 May with my bicycle?",
            ),
            (
                {
                    "departure_port": "Lillholm",
                    "arrival_port": "Storgrund",
                    "travel_date": "2031-05-14",
                    "vehicle": "bicycle",
                },
                {"first_departure": "08:05", "minutes": 50},
                "From there on to Storgrund, same day.",
            ),
            (
                {
                    "departure_port": "Storgrund",
                    "arrival_port": "Fyrudden",
                    "travel_date": "2031-05-14",
                    "vehicle": "bicycle",
                },
                {"first_departure": "10:20", "minutes": 40},
                "Then Storgrund to Fyrudden.",
            ),
            (
                {
                    "departure_port": "Fyrudden",
                    "arrival_port": "Skarvik",
                    "travel_date": "2031-05-14",
                    "vehicle": "bicycle",
                },
                {"first_departure": "15:45", "minutes": 70},
                "And the way home from Fyrudden to Skarvik.",
            ),
        ),
    ),
    _Tool(
        "run_sql",
        "You answer questions about a library's loans. Answer only with a JSON tool call.",
        "Put the answers into one JSON array with database, statement and rows.",
        (
            (
                {
                    "database": "loans_replica",
                    "statement": "SELECT count(*) FROM loans WHERE branch = 'riverside' AND returned_at IS NULL",
                    "read_only": True,
                },
                {"rows": [[418]], "elapsed_ms": 12},
                "How many loans are open at the riverside branch?",
            ),
            (
                {
                    "database": "loans_replica",
                    "statement": "SELECT count(*) FROM loans WHERE branch = 'castle' AND returned_at IS NULL",
                    "read_only": True,
                },
                {"rows": [[265]], "elapsed_ms": 11},
                "The same for the castle branch.",
            ),
            (
                {
                    "database": "loans_replica",
                    "statement": "SELECT count(*) FROM loans WHERE branch = 'station' AND returned_at IS NULL",
                    "read_only": True,
                },
                {"rows": [[731]], "elapsed_ms": 14},
                "And at the station?",
            ),
            (
                {
                    "database": "loans_replica",
                    "statement": "SELECT count(*) FROM loans WHERE branch = 'orchard' AND returned_at IS NULL",
                    "read_only": True,
                },
                {"rows": [[94]], "elapsed_ms": 10},
                "Last one: the orchard branch.",
            ),
        ),
    ),
)


def build() -> tuple[Prompt, ...]:
    """Return 42 prompts: per tool five that ask for the next call, two that collect results."""
    found = []
    for tool in _TOOLS:
        for number, (first, last) in enumerate(((0, 1), (1, 2), (2, 3), (0, 2), (1, 3)), start=1):
            text = _next(tool, first, last)
            found.append(Prompt(f"{tool.name}-next-{number}", "tool_calls", text))
        for number, first in enumerate((0, 1), start=1):
            text = _collect(tool, tool.rows[first : first + 3])
            found.append(Prompt(f"{tool.name}-collect-{number}", "tool_calls", text))
    return tuple(found)


def _call(tool: _Tool, arguments: dict[str, Any]) -> str:
    return compact({"tool": tool.name, "arguments": arguments})


def _next(tool: _Tool, first: int, last: int) -> str:
    """Ask for call ``last`` after a conversation with the calls from ``first`` on."""
    turns = [("system", tool.system)]
    for arguments, result, asked in tool.rows[first:last]:
        turns += [("user", asked), ("assistant", _call(tool, arguments))]
        turns += [("tool", compact({"tool": tool.name, "result": result}))]
    turns.append(("user", tool.rows[last][2]))
    return chat(turns)


def _collect(tool: _Tool, rows: tuple[tuple[dict[str, Any], dict[str, Any], str], ...]) -> str:
    """Show calls with their results and ask for all of them as one JSON array."""
    turns = [("system", "You repeat tool results as JSON, word for word, without comment.")]
    shown = "\n".join(compact({**arguments, **result}) for arguments, result, _ in rows)
    turns.append(("user", f"{shown}\n{tool.collect}"))
    return chat(turns)
