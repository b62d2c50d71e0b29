"""The battery before a tiny real engine that speculates: nothing red, and each fault its own item."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from battery_proxy import CHAT, FAULTS, TEXT, Fault, ProxiedServer, Proxy
from byte_models import write_byte_llama
from engine_server import serving_model
from gatekeeper_adapters.engines.openai_http.battery import Examined, examine

from gatekeeper.gates.battery.catalog import ITEMS
from gatekeeper.gates.battery.item import State

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gatekeeper.gates.battery.exchange import Reply
    from gatekeeper.gates.battery.item import Item

# tiny, but every item and every fault: not among the fast tests
pytestmark = [pytest.mark.torch, pytest.mark.model]


def examined(proxy: Proxy, items: tuple[Item, ...] = ITEMS) -> Examined:
    return asyncio.run(examine(ProxiedServer(proxy), None, items, note=lambda _: None))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, Examined]]:
    """Every item put to the server once; drafts are the target's own, so whole windows are accepted."""
    folder = write_byte_llama(tmp_path_factory.mktemp("battery") / "target", num_hidden_layers=1)
    draft = f"draft_lm=file:{folder}"
    with serving_model(folder, draft, context=1024, slots=12, waiting=32) as (url, _):
        proxy = Proxy(url, {})
        yield proxy, examined(proxy)


def test_no_item_of_a_sound_server_is_red(sound: tuple[Proxy, Examined]) -> None:
    for finding in sound[1].findings:
        assert finding.verdict.state is State.PASS, (finding.item.id, finding.verdict)
        assert finding.verdict.shown
        if finding.item.windowed:
            assert finding.drafts is not None
            assert finding.drafts[1] > 0


def test_every_item_has_a_fault() -> None:
    assert {item for item, _ in FAULTS.values()} == {item.id for item in ITEMS}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_turns_exactly_its_item_red(sound: tuple[Proxy, Examined], name: str) -> None:
    before, found = sound
    wanted, fault = FAULTS[name]
    items = asyncio.run(touched(before, found, fault))
    assert wanted in {item.id for item in items}
    now = examined(Proxy(before.url, before.kept, fault), items)
    red = {f.item.id: f.verdict for f in now.findings if f.verdict.state is State.FAIL}
    assert red.keys() == {wanted}
    request, answer = red[wanted].shown[0]
    assert request.body is not None
    assert answer


async def touched(before: Proxy, found: Examined, fault: Fault) -> tuple[Item, ...]:
    """Items one of whose answers a fault changes: the others are judged on the same replies as before.

    Whatever depends on company is taken for touched.
    """

    proxy = Proxy(before.url, before.kept, fault)
    items = []
    for finding in found.findings:
        for reply in finding.replies:
            if reply.ask.path in {CHAT, TEXT} and await proxy.changes(reply.ask.path, _body(reply)):
                items.append(finding.item)
                break
    await proxy.server.aclose()
    return tuple(items)


def _body(reply: Reply) -> dict[str, Any]:
    assert reply.ask.body is not None
    return dict(reply.ask.body)
