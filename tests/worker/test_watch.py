"""What is asked of an engine, and what is sent of it when things go away and come back."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import watch_samples as text

from gatekeeper.core.watch_metrics import Scrape, scrape
from gatekeeper.errors import InputError, NotFound, Unavailable
from gatekeeper.worker import scrape as asking
from gatekeeper.worker.scrape import Observed, Target, metrics_address
from gatekeeper.worker.watch import Watcher, WatchOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = "http://engine:8000"
Pages = dict[str, Any]


def target(pages: Pages, **options: Any) -> Target:
    def answer(request: httpx.Request) -> httpx.Response:
        found = pages.get(request.url.path)
        if found is None:
            return httpx.Response(404)
        if isinstance(found, httpx.Response):
            return found
        return httpx.Response(200, text=found if isinstance(found, str) else json.dumps(found))

    client = httpx.Client(transport=httpx.MockTransport(answer))
    return Target(client, ROOT, f"{ROOT}/metrics", **options)


def models(*names: str, **more: Any) -> dict[str, Any]:
    return {"data": [{"id": name, "owned_by": "vllm", "created": 7, **more} for name in names]}


def test_an_engine_says_what_it_runs() -> None:
    pages: Pages = {
        "/metrics": text.vllm(),
        "/v1/models": models("m", root="/models/m"),
        "/version": {"version": "0.32.0"},
    }
    seen = target(pages).look()
    said = {"owned_by": "vllm", "model": "m", "root": "/models/m", "version": "0.32.0"}
    assert (seen.readings, seen.problems) == ({"engine": "vllm", **said}, ())
    assert seen.scrape is not None
    assert seen.scrape.counters["drafted"] == 400
    meta = {"n_params": 5, "size": 7}
    pages = {
        "/metrics": text.llamacpp(),
        "/v1/models": models("m", meta=meta),
        "/props": {"build_info": "b1"},
    }
    seen = target(pages).look()
    digest = hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()
    assert seen.readings["weights"] == digest
    assert (seen.readings["version"], seen.problems) == ("b1", ())


def test_of_several_models_one_is_named() -> None:
    pages: Pages = {"/metrics": text.vllm(), "/v1/models": models("m", "n"), "/version": {}}
    assert "say which with --model" in target(pages).look().problems[0]
    assert target(pages, model="m").look().readings["model"] == "m"
    seen = target(pages, model="n").look()
    assert seen.readings["model"] == "n"
    assert len(seen.problems) == 6  # every series is m's


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("not { metrics\n", "cannot be read"),
        ("python_gc 3\n", "of no engine known here"),
        (httpx.Response(302, headers={"Location": "http://elsewhere"}), "answers 302"),
        (httpx.Response(503), "answers 503"),
        ("x" * 100, "more than 50 bytes"),
    ],
)
def test_metrics_that_are_none(page: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "MAX_BYTES", 50)
    seen = target({"/metrics": page, "/v1/models": {"data": []}}).look()
    assert seen.scrape is None
    assert words in seen.problems[-1]


def test_nobody_answers() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused\n", request=request)

    client = httpx.Client(transport=httpx.MockTransport(refuse))
    seen = Target(client, ROOT, f"{ROOT}/metrics").look()
    assert (seen.scrape, seen.readings) == (None, {})
    assert seen.problems[-1] == "/metrics does not answer (refused)"


def test_addresses() -> None:
    for given in (ROOT, f"{ROOT}/", f"{ROOT}/metrics", f"{ROOT}/v1"):
        assert metrics_address(given) == (ROOT, f"{ROOT}/metrics")
    for given in ("engine:8000", "http://me:secret@engine", f"{ROOT}/metrics?key=1"):
        with pytest.raises(InputError) as error:
            metrics_address(given)
        assert "secret" not in str(error.value)
    with pytest.raises(InputError, match="too long"):
        metrics_address(f"{ROOT}/{'x' * 200}")


def seen(drafts: int | None, *, accepted: float = 0.5) -> Observed:
    """A look at an engine with so many drafts of four tokens behind it; None: it does not answer."""
    if drafts is None:
        return Observed(None, {}, ("/metrics does not answer",))
    written = text.vllm(drafts=drafts, drafted=4 * drafts, accepted=int(4 * drafts * accepted))
    return Observed(scrape("vllm", text.read(written)), {"model": "m"}, ())


class Server:
    """Takes looks, and is away where it is told to."""

    def __init__(self, away: tuple[int, ...] = (), *, lost: bool = False) -> None:
        self.away, self.lost, self.calls = away, lost, 0
        self.taken: dict[str, Mapping[str, Any]] = {}
        self.said: list[Mapping[str, Any]] = []
        self.complaints: list[str] = []

    def send(self, body: Mapping[str, Any], key: str) -> dict[str, Any]:
        self.calls += 1
        away = self.calls in self.away
        if not away or self.lost:
            assert self.taken.setdefault(key, body) == body
        if away:
            raise Unavailable("does not answer", field="url")
        return {"outcome": "ok", **body}


def watch(looks: list[Observed], server: Server, *, routes: tuple[str, ...] = ("r",)) -> None:
    """Let a watcher have these looks, the first of which is its beginning."""
    waiting = iter(looks)

    class Over(Exception):
        pass

    def look() -> Observed:
        found = next(waiting, None)
        if found is None:
            raise Over
        return found

    options = WatchOptions(routes, "engine", 15.0, 0.2)
    sleep: Callable[[float], None] = lambda s: None  # noqa: E731 - typed
    say, complain = server.said.append, lambda route, why: server.complaints.append(why)
    with pytest.raises(Over):
        Watcher(look, server.send, say, complain, sleep, options).run()


def drafted(server: Server) -> list[Any]:
    return [body["drafted"] for body in server.taken.values()]


def test_what_is_sent_is_the_difference_of_two_looks() -> None:
    server = Server()
    watch([seen(100), seen(110), seen(110), seen(135)], server, routes=("r", "s"))
    assert drafted(server) == [40, 40, 0, 0, 100, 100]
    first = next(iter(server.taken.values()))
    assert (first["rounds"], first["accepted"], first["waiting"]) == (10, 20, 0)
    assert (first["interval_s"], first["readings"]) == (15.0, {"model": "m"})


@pytest.mark.parametrize("lost", [False, True])
def test_a_server_that_was_away_gets_everything_once(*, lost: bool) -> None:
    """Whether it had taken the look or not: the same key comes again, and then the rest."""
    server = Server((2, 3), lost=lost)
    watch([seen(n) for n in (100, 110, 120, 130, 140)], server)
    assert drafted(server) == [40, 40, 80]
    assert len(server.complaints) == 2


def test_totals_of_before_a_restart_are_never_subtracted() -> None:
    server = Server()
    watch([seen(100), seen(3), seen(5)], server)
    assert drafted(server) == [None, 8]
    assert [body["restarted"] for body in server.taken.values()] == [True, False]
    # an engine that did not answer may have been restarted, whatever it shows later
    server = Server()
    watch([seen(100), seen(None), seen(2000, accepted=0.03), seen(2010, accepted=0.03)], server)
    assert drafted(server) == [None, None, 40]
    # and a look that nobody has taken yet does not carry its totals over the restart
    server = Server((1, 2))
    watch([seen(100), seen(110), seen(5), seen(200), seen(210)], server)
    assert drafted(server) == [40, None, 40]


def test_once_is_two_looks_and_well_only_if_all_is_well() -> None:
    for outcome, well in (("ok", True), ("unknown", False), ("alarm", False)):
        waits: list[float] = []
        answers = iter(["alarm", outcome])
        options = WatchOptions(("r",), "engine", 15.0, 0.2, once=True)
        done = Watcher(
            lambda: seen(1),
            lambda body, key: {"outcome": next(answers)},  # noqa: B023 - used within the turn
            lambda answer: None,
            lambda route, why: None,
            waits.append,
            options,
        ).run()
        assert (done, waits) == (well, [7.5, 7.5])


def test_an_error_that_stays_ends_the_watch() -> None:
    def send(body: Mapping[str, Any], key: str) -> dict[str, Any]:
        raise NotFound("is not a route", field="route", value="r")

    options = WatchOptions(("r",), "engine", 15.0, 0.2)
    watcher = Watcher(
        lambda: seen(1), send, lambda a: None, lambda r, w: None, lambda s: None, options
    )
    with pytest.raises(NotFound):
        watcher.run()


def test_an_engine_that_has_no_name_is_no_zero() -> None:
    server = Server()
    empty = Observed(Scrape("vllm"), {}, ("vllm:spec_decode_num_drafts_total is missing",))
    watch([seen(100), empty, seen(120), seen(130)], server)
    assert drafted(server) == [None, None, 40]
