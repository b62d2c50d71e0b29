"""One task of the agent: plan, two calls beside a tool, summary, verification, persistence.

    plan ──┬── branch 1 ──┬── summary ── verify ── persist
           ├── branch 2 ──┤
           └── tool ──────┘

Both branches decode together in the engine while the tool runs in a thread. Every step is a span.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gatekeeper.cli.demo.agent_calls import Answer, decode_together
from gatekeeper.core.decoding import DecodeRequest, SamplingSettings, TokenPrompt
from gatekeeper.core.lease import gamma_at
from gatekeeper.core.routing import ROUTE_ATTRIBUTE
from gatekeeper.core.task_prediction import CONCURRENCY_ATTRIBUTE
from gatekeeper.errors import InputError
from gatekeeper.workloads import tokenised

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.trace import Span

    from gatekeeper.cli.demo.agent_spans import Spans
    from gatekeeper.cli.demo.agent_tools import Archive, Background
    from gatekeeper.protocols import Engine

__all__ = [
    "BRANCH",
    "CANDIDATE_ATTRIBUTE",
    "SLICE",
    "STEP_ATTRIBUTE",
    "Agent",
    "TaskRun",
    "TaskWork",
    "task_works",
]

SLICE = "tool_calls"
"""The agent's prompts are this slice's, so that acceptance is that of the gated route."""

CANDIDATE_ATTRIBUTE = "gatekeeper.candidate_of"
"""Names the route on the candidate's calls, which belong to no route and so are never priced."""

STEP_ATTRIBUTE = "gatekeeper.step"
BRANCH = "branch"
"""Value of ``gatekeeper.step`` on the two parallel calls."""

_TOOLS = 3
_STOP = "<|im_end|>"
_TOOL = re.compile(r'"tool"\s*:\s*"([a-z_]+)"')
_ARGUMENTS = re.compile(r'"(\w+)"\s*:\s*("[^"]*"|[\w.+-]+)')


@dataclass(frozen=True)
class TaskWork:
    """The work of one task, the same in both arms."""

    number: int
    tool: str
    plan: TokenPrompt
    branches: tuple[TokenPrompt, TokenPrompt]
    summary: TokenPrompt
    tool_s: float
    seed: int


@dataclass(frozen=True)
class TaskRun:
    """What a task in one arm did; times are in its spans. ``texts`` are the answers by step."""

    work: TaskWork
    arm: str
    trace_id: str
    texts: dict[str, str]
    verified: bool
    rounds: int
    output_tokens: int


def task_works(
    tokenize: Callable[[str], tuple[int, ...]],
    tasks: int,
    *,
    tool_s: Sequence[float],
    seed: int,
) -> tuple[TaskWork, ...]:
    """Return ``tasks`` tasks over the slice's prompts; ``tool_s`` repeats over them.

    Raises:
        InputError: no task, or no duration of the tool.
    """
    if tasks < 1 or not tool_s:
        raise InputError("must be at least one", field="tasks", value=tasks, remedy="use --tasks 6")
    prompts = {prompt.id: prompt for prompt in tokenised(SLICE, tokenize)}
    lengths: dict[str, int] = {}
    for name, prompt in prompts.items():
        tool = name.split("-")[0]
        lengths[tool] = lengths.get(tool, 0) + len(prompt.tokens)
    # Those with the shortest prompts: reading prompts gains nothing and takes half the time.
    tools = sorted(lengths, key=lambda tool: lengths[tool])[:_TOOLS]
    seeds = np.random.default_rng(seed).integers(0, 2**31, tasks).tolist()
    works = []
    for number in range(tasks):
        tool = tools[number % len(tools)]
        plan, *branches = (prompts[f"{tool}-next-{i}"] for i in (1, 2, 3))
        works.append(
            TaskWork(
                number,
                tool,
                plan,
                (branches[0], branches[1]),
                prompts[f"{tool}-collect-{1 + number // len(tools) % 2}"],
                tool_s[number % len(tool_s)],
                seeds[number],
            )
        )
    return tuple(works)


@dataclass(frozen=True)
class Agent:
    """Everything the agent works with; ``max_tokens`` is exact, since no end token stops a call."""

    engine: Engine
    spans: Spans
    background: Background
    archive: Archive
    now_ns: Callable[[], int]
    route: str
    model: str
    run: str
    sampling: tuple[SamplingSettings, ...]
    max_tokens: int

    def run_task(self, work: TaskWork, *, arm: str, gammas: Mapping[int, int]) -> TaskRun:
        """Run one task in one arm; ``gammas`` by concurrency, none in ordinary decoding.

        Raises:
            InputError: the engine refuses a prompt.
            Unavailable: it stopped making progress.
        """
        return _Running(self, work, arm, gammas).run()

    def warm_up(self, gammas: Sequence[int]) -> float:
        """Decode a pair of calls untraced with each gamma; seconds the last one took.

        First uses of a kernel are slow. The time tells how long a slow tool has to take here.
        """
        (work,) = task_works(self.engine.tokenize, 1, tool_s=(0.0,), seed=0)
        took = 0.0
        for gamma in gammas:
            began = self.now_ns()
            requests = [
                DecodeRequest(f"warm-{gamma}-{i}", p.tokens, self.max_tokens, gamma=gamma)
                for i, p in enumerate(work.branches)
            ]
            decode_together(self.engine, requests, self.now_ns)
            took = (self.now_ns() - began) / 1e9
        return took


class _Running:
    """One task on its way."""

    def __init__(self, agent: Agent, work: TaskWork, arm: str, gammas: Mapping[int, int]) -> None:
        self._agent = agent
        self._work = work
        self._arm = arm
        self._gammas = gammas
        self._texts: dict[str, str] = {}
        self._rounds = 0
        self._tokens = 0
        session = f"{agent.run}-{arm}-{work.number}"
        self._marks: dict[str, Any] = {
            "session.id": session,
            "gen_ai.conversation.id": session,
            "gatekeeper.arm": arm,
            "gatekeeper.task": work.number,
        }

    def run(self) -> TaskRun:
        agent, work = self._agent, self._work
        root = agent.spans.start(
            "invoke_agent clerk",
            agent.now_ns(),
            {
                **self._marks,
                "gen_ai.operation.name": "invoke_agent",
                "gen_ai.agent.name": "clerk",
            },
        )
        (plan,) = self._call(root, ("plan",), (work.plan,))
        waiting = self._start_tool(root, plan)
        branches = self._call(root, (BRANCH, BRANCH), work.branches, causes=(plan,))
        tool = waiting()
        (summary,) = self._call(root, ("summary",), (work.summary,), causes=(*branches, tool))
        checked, verified = self._verify(root, summary)
        self._persist(root, checked, verified=verified)
        root.set_attribute("gen_ai.usage.output_tokens", self._tokens)
        root.end(agent.now_ns())
        return TaskRun(
            work,
            self._arm,
            f"{root.get_span_context().trace_id:032x}",
            self._texts,
            verified,
            self._rounds,
            self._tokens,
        )

    def _call(
        self,
        root: Span,
        steps: Sequence[str],
        prompts: Sequence[TokenPrompt],
        *,
        causes: Sequence[Span] = (),
    ) -> list[Span]:
        """Decode the prompts together; a span for each, with what a streaming client sees."""
        agent, work = self._agent, self._work
        requests: list[DecodeRequest] = []
        for step, prompt in zip(steps, prompts, strict=True):
            place = len(self._texts) + len(requests)
            requests.append(
                DecodeRequest(
                    request_id=f"{work.number}-{self._arm}-{place}-{step}",
                    prompt=prompt.tokens,
                    max_tokens=agent.max_tokens,
                    sampling=agent.sampling[place % len(agent.sampling)],
                    seed=(work.seed + place) % 2**31,
                    gamma=gamma_at(self._gammas, len(prompts)),
                )
            )
        answers = decode_together(agent.engine, requests, agent.now_ns)
        spans = []
        for step, prompt, answer in zip(steps, prompts, answers, strict=True):
            self._texts[f"{step} {len(self._texts)}"] = _said(agent.engine, answer)
            self._tokens += len(answer.tokens)
            self._rounds += answer.rounds
            span = agent.spans.start(
                f"chat {agent.model}",
                answer.start_ns,
                self._call_marks(step, prompt, answer, len(requests)),
                parent=root,
                causes=causes,
            )
            span.end(answer.end_ns)
            spans.append(span)
        return spans

    def _call_marks(
        self, step: str, prompt: TokenPrompt, answer: Answer, together: int
    ) -> dict[str, Any]:
        return {
            **self._marks,
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._agent.engine.info.name,
            "gen_ai.request.model": self._agent.model,
            "gen_ai.request.stream": True,
            "gen_ai.request.max_tokens": answer.request.max_tokens,
            "gen_ai.request.temperature": answer.request.sampling.temperature,
            "gen_ai.usage.input_tokens": len(prompt.tokens),
            "gen_ai.usage.output_tokens": len(answer.tokens),
            "gen_ai.response.time_to_first_chunk": (answer.first_ns - answer.start_ns) / 1e9,
            "gen_ai.response.finish_reasons": [answer.reason],
            # A candidate's call is no sample of what speculation could still save: its decode is
            # faster already, and pricing it would count the saving twice.
            CANDIDATE_ATTRIBUTE if self._gammas else ROUTE_ATTRIBUTE: self._agent.route,
            CONCURRENCY_ATTRIBUTE: together,
            STEP_ATTRIBUTE: step,
            "gatekeeper.gamma": answer.request.gamma,
            "gatekeeper.prompt": prompt.id,
        }

    def _start_tool(self, root: Span, plan: Span) -> Callable[[], Span]:
        """Run the tool that the plan asked for beside the branches; returns how to wait for it."""
        agent, work = self._agent, self._work
        text = self._texts["plan 0"]
        named = _TOOL.search(text)
        arguments = dict(_ARGUMENTS.findall(text))
        span = agent.spans.start(
            f"execute_tool {work.tool}",
            agent.now_ns(),
            {
                **self._marks,
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": work.tool,
                "gen_ai.tool.call.id": f"call-{agent.run}-{self._arm}-{work.number}",
                # The model of the demo is small: the work has to be the same whatever it says.
                "gatekeeper.asked_for": named.group(1) if named else "nothing",
            },
            parent=root,
            causes=(plan,),
        )
        pending = agent.background.start(
            lambda wait: agent.archive.look_up(
                work.number, self._arm, work.tool, arguments, seconds=work.tool_s, wait=wait
            )
        )

        def finish() -> Span:
            digest, ended_ns = pending.result()
            span.set_attribute("gatekeeper.digest", digest)
            span.end(ended_ns)
            return span

        return finish

    def _verify(self, root: Span, summary: Span) -> tuple[Span, bool]:
        """Check by program that the plan named the tool that ran, and that its result is kept."""
        agent, work = self._agent, self._work
        span = agent.spans.start(
            "verify answers",
            agent.now_ns(),
            {**self._marks, "gatekeeper.kind": "verification"},
            parent=root,
            causes=(summary,),
        )
        named = _TOOL.search(self._texts["plan 0"])
        found = agent.archive.found(work.number, self._arm)
        verified = named is not None and named.group(1) == work.tool == found
        span.set_attribute("gatekeeper.verified", verified)
        span.end(agent.now_ns())
        return span, verified

    def _persist(self, root: Span, cause: Span, *, verified: bool) -> None:
        agent = self._agent
        span = agent.spans.start(
            "INSERT result",
            agent.now_ns(),
            {**self._marks, "db.system.name": "sqlite"},
            parent=root,
            causes=(cause,),
        )
        agent.archive.keep(self._work.number, self._arm, self._texts, verified=verified)
        span.end(agent.now_ns())


def _said(engine: Engine, answer: Answer) -> str:
    """Text of an answer up to where the model itself ended it."""
    return engine.detokenize(answer.tokens).partition(_STOP)[0]
