"""Puts the contract battery to servers: sends each stage of an item, and reads what comes back."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import httpx

from gatekeeper.gates.battery.exchange import Reply
from gatekeeper.gates.battery.facts import learn
from gatekeeper.gates.battery.judging import beside, put
from gatekeeper_adapters.engines.openai_http.connection import CONNECT_S
from gatekeeper_adapters.engines.openai_http.wire import UNREADABLE, document_of, event_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence

    from gatekeeper.gates.battery.exchange import Ask, Stage
    from gatekeeper.gates.battery.facts import Facts
    from gatekeeper.gates.battery.item import Item
    from gatekeeper.gates.battery.judging import Finding
    from gatekeeper_adapters.engines.openai_http.connection import HttpServer

__all__ = ["ANSWER_S", "AT_MOST", "Examined", "examine"]

ANSWER_S = 180.0
"""An answer that takes longer is given up."""

AT_MOST = 16
"""Connections at a time; no stage has more requests."""

_DONE = "[DONE]"

_PATIENT = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
"""A whole answer is silent until its end, so silence says nothing here."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class Examined:
    """What was found at a server: what it offers, and a finding for each item."""

    facts: Facts
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return {
            "offers": asdict(self.facts),
            "items": [finding.to_dict() for finding in self.findings],
        }


async def examine(
    server: HttpServer,
    baseline: HttpServer | None,
    items: Sequence[Item],
    *,
    note: Callable[[Finding], None],
) -> Examined:
    """Put items to a server, one after the other; ``note`` hears each finding.

    With a baseline each is put to both, and the two are compared.
    """
    async with AsyncExitStack() as stack:
        asked = await stack.enter_async_context(server.connect(AT_MOST))
        facts = await _drive(learn(server.info.model), asked.client)
        other = None
        if baseline is not None:
            other = (await stack.enter_async_context(baseline.connect(AT_MOST))).client
            other_facts = await _drive(learn(baseline.info.model), other)
        findings = []
        for item in items:
            found = await _drive(put(item, facts), asked.client)
            if other is not None:
                base = await _drive(put(item, other_facts, speculates=False), other)
                found = await _drive(beside(found, base), other)
            findings.append(found)
            note(found)
    return Examined(facts, tuple(findings))


async def _drive(plan: Generator[Stage, tuple[Reply, ...], _T], client: httpx.AsyncClient) -> _T:
    """Send stage after stage until the plan returns."""
    try:
        stage = next(plan)
        while True:
            await asyncio.sleep(stage.pause_s)
            if stage.together:
                replies = await asyncio.gather(*(_send(client, ask) for ask in stage.asks))
            else:
                replies = [await _send(client, ask) for ask in stage.asks]
            stage = plan.send(tuple(replies))
    except StopIteration as done:
        found: _T = done.value
        return found


async def _send(client: httpx.AsyncClient, ask: Ask) -> Reply:
    try:
        async with asyncio.timeout(ANSWER_S):
            if ask.body is None:
                return _whole(ask, await client.get(ask.path, timeout=_PATIENT))
            body = dict(ask.body)
            if not ask.stream:
                return _whole(ask, await client.post(ask.path, json=body, timeout=_PATIENT))
            async with client.stream("POST", ask.path, json=body, timeout=_PATIENT) as response:
                if not response.is_success:
                    await response.aread()
                    return _whole(ask, response)
                return await _events(ask, response.status_code, response.aiter_lines())
    except (TimeoutError, httpx.TimeoutException):
        return Reply(ask, 0, trouble=f"timeout: no whole answer within {ANSWER_S:g} s")
    except (httpx.TransportError, *UNREADABLE) as error:
        return Reply(ask, 0, trouble=f"{type(error).__name__}: {error}"[:200])


def _whole(ask: Ask, response: httpx.Response) -> Reply:
    text = response.text
    try:
        document: Any = document_of(text)
    except ValueError:
        document = None
    return Reply(ask, response.status_code, document, text=text)


async def _events(ask: Ask, status: int, lines: AsyncIterator[str]) -> Reply:
    events: list[Mapping[str, Any]] = []
    closed, after = False, 0
    async for line in lines:
        if line.removeprefix("data:").strip() == _DONE:
            closed = True
            continue
        event = event_of(line)
        if event is None:
            continue
        after += closed
        events.append(event)
        if ask.leave_after is not None and len(events) >= ask.leave_after:
            break
    return Reply(ask, status, None, tuple(events), closed, after)
