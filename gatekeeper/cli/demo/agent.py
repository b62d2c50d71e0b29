"""A small agent against a real engine in both arms, its spans exported to a running server.

    python -m gatekeeper.cli.demo.agent --url … --route … --artifact-file … --gamma … --speedup …

The token comes from GATEKEEPER_TOKEN (role ingester). Exit status: 0 where prediction and
observation agree, 1 where they do not or it cannot be said, 2 for an input error.
"""

from __future__ import annotations

import re
import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gatekeeper import plugins
from gatekeeper.cli import main
from gatekeeper.cli.demo.agent_report import lines
from gatekeeper.cli.show import as_json_option, home_option, print_document, read_document
from gatekeeper.config import Settings
from gatekeeper.core.artifacts import parse_artifact
from gatekeeper.core.lease import gamma_at
from gatekeeper.core.task_prediction import Speedup
from gatekeeper.errors import InputError, MissingExtra, Unauthorized

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from gatekeeper.core.artifacts import Artifact
    from gatekeeper.protocols import Engine

__all__ = ["agent"]

TOKENS = 18
"""Output tokens of each call: six tasks in both arms take a minute where a token takes 60 ms."""

TOOL_SHARES = (0.25, 0.25, 1.5)
"""How long the tool waits, repeated over the tasks, as a part of what the two calls beside it take
in ordinary decoding: every third tool outlasts them."""

_T = TypeVar("_T")

_BATCH = 2
_MODULES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")


class _Window(click.ParamType[tuple[int | None, int]]):
    """``[CONCURRENCY=]GAMMA``."""

    name = "window"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int | None, int]:
        """Read a concurrency, None for every one, and its window."""
        found = re.fullmatch(r"(?:([1-9]\d{0,3})=)?([1-9]\d?)", str(value))
        if found is None:
            self.fail(f"{value!r} is not CONCURRENCY=GAMMA, such as 1=4", param, ctx)
        return int(found[1]) if found[1] else None, int(found[2])


class _Ratio(click.ParamType[tuple[int | None, tuple[float, float, float]]]):
    """``[CONCURRENCY=]LOW,VALUE,HIGH``."""

    name = "speedup"

    def convert(
        self,
        value: Any,  # noqa: ANN401 - as click has it
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[int | None, tuple[float, float, float]]:
        """Read a concurrency, None for every one, and the measured speed-up there."""
        at, _, ends = str(value).rpartition("=")
        try:
            low, middle, high = (float(end) for end in ends.split(","))
            Speedup(int(at or 1), low, middle, high)
        except (ValueError, InputError):
            self.fail(
                f"{value!r} is not CONCURRENCY=LOW,VALUE,HIGH with 0 < LOW <= VALUE <= HIGH",
                param,
                ctx,
            )
        return int(at) if at else None, (low, middle, high)


@click.command()
@home_option
@click.option("--url", help="Server that takes the spans; GATEKEEPER_URL otherwise.")
@click.option("--route", required=True, help="Route that the model calls belong to.")
@click.option(
    "--artifact-file",
    required=True,
    type=click.Path(path_type=Path),
    help="Artifact document whose engine is opened.",
)
@click.option(
    "--gamma",
    "windows",
    required=True,
    multiple=True,
    type=_Window(),
    metavar="[C=]GAMMA",
    help="The candidate's gamma, at concurrency C where given; repeat for each.",
)
@click.option(
    "--speedup",
    "ratios",
    required=True,
    multiple=True,
    type=_Ratio(),
    metavar="[C=]LOW,VALUE,HIGH",
    help="Measured decode speed-up, at concurrency C where given; repeat for each.",
)
@click.option("--tasks", default=6, show_default=True, type=click.IntRange(1, 1000))
@click.option("--tokens", default=TOKENS, show_default=True, type=click.IntRange(2, 1000))
@click.option("--seed", default=20240229, show_default=True, type=click.IntRange(0))
@as_json_option
def agent(
    *,
    home: Path | None,
    url: str | None,
    route: str,
    artifact_file: Path,
    windows: tuple[tuple[int | None, int], ...],
    ratios: tuple[tuple[int | None, tuple[float, float, float]], ...],
    tasks: int,
    tokens: int,
    seed: int,
    as_json: bool,
) -> int:
    """Run a small agent in both arms, export its spans, and compare predicted with observed saving.

    Every task runs once with ordinary decoding and once with gamma, in random order. What the
    ordinary tasks' traces predict at the measured speed-up is set beside what was observed.
    """
    for module in _MODULES:
        if not _there(module):
            raise MissingExtra(
                "is not installed",
                field="agent",
                value=module,
                remedy="pip install gatekeeper[otel]",
            )
    settings = Settings.load(home=home).with_server(url=url)
    if settings.token is None:
        raise Unauthorized(
            "is not set",
            field="GATEKEEPER_TOKEN",
            remedy="create one with: gatekeeper token create --role ingester",
        )
    settings.prepare()
    artifact = parse_artifact(read_document(artifact_file))
    speedups = tuple(Speedup(c, *ends) for c, ends in _by_concurrency(ratios).items())
    measured = {s.concurrency for s in speedups}
    # A window whose speed-up nobody measured predicts nothing: those calls decode ordinarily.
    gammas = {c: gamma for c, gamma in _by_concurrency(windows).items() if c in measured}
    asked = _Asked(settings, artifact, route, secrets.token_hex(4), gammas, tasks, tokens, seed)
    with ExitStack() as stack:
        _say(f"opening engine {artifact.engine.name}")
        provider = plugins.load("gatekeeper.engines", artifact.engine.name)
        engine: Engine = provider.open(
            artifact.document,
            cache=settings.cache,
            max_batch=_BATCH,
            device=artifact.engine.device,
        )
        stack.callback(engine.close)
        document = _measure(stack, engine, asked, speedups)
    if as_json:
        print_document(document)
    else:
        click.echo("\n".join(lines(document)))
    return 0 if document["agrees"] else 1


@dataclass(frozen=True)
class _Asked:
    settings: Settings
    artifact: Artifact
    route: str
    run: str
    gammas: Mapping[int, int]
    tasks: int
    tokens: int
    seed: int


def _measure(
    stack: ExitStack, engine: Engine, asked: _Asked, speedups: tuple[Speedup, ...]
) -> dict[str, Any]:
    """Run the agent in both arms and return the result document."""
    from gatekeeper.cli.demo.agent_run import ARMS, evaluate, run_agent
    from gatekeeper.cli.demo.agent_spans import Spans, http_exporter
    from gatekeeper.cli.demo.agent_task import Agent, task_works
    from gatekeeper.cli.demo.agent_tools import Archive, Threads
    from gatekeeper.core.trace_documents import read_traces

    settings = asked.settings
    now_ns = _clock()
    exporter = http_exporter(settings.server_url, settings.token or "")
    spans = Spans(exporter, service="gatekeeper-demo-agent")
    stack.callback(spans.close)
    background = Threads(now_ns)
    stack.callback(background.close)
    agent = Agent(
        engine=engine,
        spans=spans,
        background=background,
        archive=Archive(settings.home / "agent.sqlite"),
        now_ns=now_ns,
        route=asked.route,
        model=_model(asked.artifact.target.source),
        run=asked.run,
        sampling=asked.artifact.sampling,
        max_tokens=asked.tokens,
    )
    _say("warming up")
    pair_s = agent.warm_up((gamma_at(asked.gammas, _BATCH), 0))
    tool_s = [share * pair_s for share in TOOL_SHARES]
    works = task_works(engine.tokenize, asked.tasks, tool_s=tool_s, seed=asked.seed)
    note = _progress(len(works) * len(ARMS))
    runs = run_agent(agent, works, gammas=asked.gammas, seed=asked.seed, note=note)
    traces = read_traces(spans.document(), [plugins.load("gatekeeper.traces", "otlp")])
    by_id = {trace.trace_id: trace for trace in traces}
    result = evaluate(by_id, runs, speedups, route=asked.route, run=asked.run)
    return {
        "route": asked.route,
        "run": asked.run,
        "artifact": asked.artifact.digest,
        "gamma_by_concurrency": {str(c): gamma for c, gamma in asked.gammas.items()},
        "seed": asked.seed,
        "tokens_per_call": asked.tokens,
        "engine": {"name": engine.info.name, "version": engine.info.version},
        "speedup": [asdict(one) for one in speedups],
        "exported": {"url": settings.server_url, "spans": spans.acknowledged},
        **result.to_dict(),
    }


def _by_concurrency(given: Iterable[tuple[int | None, _T]]) -> dict[int, _T]:
    """Values by concurrency; one without a concurrency counts wherever no other does."""
    found: dict[int, _T] = {}
    for at, value in given:
        for concurrency in range(1, _BATCH + 1) if at is None else (at,):
            if at is not None or concurrency not in found:
                found[concurrency] = value
    return dict(sorted(found.items()))


def _model(source: str) -> str:
    """Name of the target as a client would ask for it."""
    return re.split("[#/:]", source)[-1].removesuffix(".gguf")


def _clock() -> Callable[[], int]:
    """Nanoseconds since 1970 that never jump: spans of one run agree with each other."""
    offset = time.time_ns() - time.monotonic_ns()
    return lambda: time.monotonic_ns() + offset


def _progress(total: int) -> Callable[[int, str], None]:
    began = time.monotonic()

    def note(done: int, line: str) -> None:
        left = (time.monotonic() - began) / done * (total - done)
        _say(f"{line}, about {left:.0f} s left" if left else line)

    return note


def _say(line: str) -> None:
    click.echo(f"agent: {line}", err=True)
    sys.stderr.flush()


def _there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package above it
        return False


if __name__ == "__main__":
    main(command=agent)
