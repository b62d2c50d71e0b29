"""The HTTP load on scripted connections: order, times, failures, and a client that is starved."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from gatekeeper.core.decoding import GREEDY
from gatekeeper.errors import InputError, Unavailable
from gatekeeper.load import serve_requests
from gatekeeper.protocols import Delta, Ending, ServerRequest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable


class Scripted:
    """Answers each request by what ``script`` yields for it: seconds to wait, or pieces."""

    def __init__(self, script: Callable[[str], list[Any]]) -> None:
        self.script = script
        self.open = self.most = 0

    async def stream(self, request: ServerRequest) -> AsyncGenerator[Delta | Ending, None]:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for item in self.script(request.request_id):
                if isinstance(item, float):
                    await asyncio.sleep(item)
                else:
                    yield item
        finally:
            self.open -= 1

    async def counters(self) -> None:
        return None

    async def count_tokens(self, text: str) -> None:
        return None


def requests(n: int) -> list[ServerRequest]:
    return [ServerRequest(f"r{i}", "text", 4, GREEDY) for i in range(n)]


def serve(connection: Scripted, n: int, concurrency: int, **options: Any) -> Any:
    return asyncio.run(
        serve_requests(connection, requests(n), concurrency, time.monotonic, **options)
    )


def sound(_: str) -> list[Any]:
    return [0.02, Delta("a"), 0.01, Delta("b"), 0.01, Delta("c"), Ending("stop", 5, 3)]


def test_answers_come_in_order_of_requests_with_so_many_in_flight() -> None:
    delays = {"r0": 0.05, "r1": 0.01}
    connection = Scripted(lambda name: [delays.get(name, 0.02), Delta(name), Ending("stop", 1, 1)])
    served = serve(connection, 5, 2)
    assert [answer.text for answer in served.answers] == ["r0", "r1", "r2", "r3", "r4"]
    assert connection.most == 2
    assert served.complete
    assert served.failed_on_end == 0


def test_times_run_from_sending_to_each_piece() -> None:
    (answer,) = serve(Scripted(sound), 1, 1).answers
    assert answer.first_s - answer.sent_s >= 0.019
    assert len(answer.gaps_s) == 2
    assert min(answer.gaps_s) >= 0.009
    assert answer.sent_s < answer.first_s < answer.last_s <= answer.ended_s


def test_a_failed_answer_is_kept_as_one() -> None:
    script = lambda name: [Delta("x"), Ending("dropped")] if name == "r1" else sound(name)  # noqa: E731
    served = serve(Scripted(script), 3, 1)
    assert [answer.ending.reason for answer in served.answers] == ["stop", "dropped", "stop"]
    assert served.complete


def test_an_answer_without_an_ending_was_dropped_and_a_silent_one_times_out() -> None:
    assert serve(Scripted(lambda _: [Delta("x")]), 1, 1).answers[0].ending.reason == "dropped"
    (answer,) = serve(Scripted(lambda _: [Delta("x"), 5.0]), 1, 1, limit_s=0.05).answers
    assert answer.ending.reason == "timeout"
    assert answer.ended_s - answer.sent_s < 2
    (silent,) = serve(Scripted(lambda _: [5.0]), 1, 1, limit_s=0.05).answers
    assert math.isnan(silent.first_s)


def test_a_server_that_is_gone_is_left_after_three_failures_on_end() -> None:
    connection = Scripted(lambda _: [Ending("http 503")])
    with pytest.raises(Unavailable, match="http 503"):
        serve(connection, 100, 1)
    assert serve(connection, 2, 1).failed_on_end == 2
    with pytest.raises(Unavailable):
        serve(connection, 1, 1, failed_before=2)


def test_cancelling_leaves_the_rest_unsent() -> None:
    seen: list[str] = []
    script = lambda name: [*(seen.append(name) or ()), *sound(name)]  # noqa: E731
    served = serve(Scripted(script), 10, 1, cancelled=lambda: len(seen) >= 3)
    assert not served.complete
    assert len(served.answers) == 3


def test_nothing_to_send_and_no_place_are_refused() -> None:
    with pytest.raises(InputError, match="requests"):
        serve(Scripted(sound), 0, 1)
    with pytest.raises(InputError, match="concurrency"):
        serve(Scripted(sound), 1, 0)


def test_a_starved_client_shows_in_its_own_lag() -> None:
    class Busy(Scripted):
        async def stream(self, request: ServerRequest) -> AsyncGenerator[Delta | Ending, None]:
            async for piece in super().stream(request):
                time.sleep(0.08)  # noqa: ASYNC251 - the very thing that must be noticed
                yield piece

    idle = serve(Scripted(lambda _: [0.3, Delta("x"), Ending("stop", 1, 1)]), 1, 1)
    starved = serve(Busy(lambda _: [*([0.001, Delta("x")] * 6), Ending("stop", 1, 6)]), 1, 1)
    assert len(idle.lags_s) >= 5
    assert np.quantile(starved.lags_s, 0.5) > 0.05
    assert np.quantile(starved.lags_s, 0.5) > 2 * np.quantile(idle.lags_s, 0.5)
