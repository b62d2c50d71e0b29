"""Register → gates → decision in bf16 on a GPU, as its users would, in at most 8 minutes.

    python benchmarks/gpu_gate.py [--home DIR] [--json FILE]
    python benchmarks/gpu_gate.py --device cpu --dry-run [--target file:DIR]

Starts the product's own server and worker, registers the pair of ``gpu_gate.yaml``, runs the three
gates and reads the decision; prints what each step took. ``--dry-run`` stops before the worker: it
fetches and digests the model, applies the policy, registers, and asks the server for each gate's plan.

Exit status: 0 within the time, whatever was decided; 1 a gate could not be measured; 3 no CUDA
device; 4 too late.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gatekeeper.cli.demo.flow import Demo, ok
from gatekeeper.config import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import httpx

HERE = Path(__file__).resolve().parent
LIMIT_S = 480.0
POLL_S = 1.0
NO_DEVICE, LATE = 3, 4


class Steps:
    """Prints and keeps what each step took, in seconds of wall time."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = {}
        self._start = time.monotonic()

    @property
    def total(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        start = time.monotonic()
        yield
        self.add(name, time.monotonic() - start)

    def add(self, name: str, seconds: float) -> None:
        """Keep a step that was timed elsewhere."""
        self.taken[name] = seconds
        print(f"{name:28s} {seconds:7.1f} s", flush=True)


def has_cuda() -> bool:
    """Whether torch sees a CUDA device."""
    import torch  # noqa: PLC0415 - seconds, and --device cpu does not ask

    return bool(torch.cuda.is_available())


def read_setup(device: str, target: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is gated, as the demo describes it, and the policy that judges it."""
    setup: dict[str, Any] = yaml.safe_load((HERE / "gpu_gate.yaml").read_text())
    policy = setup.pop("policy")
    # the processor's arithmetic in bf16 is no subject here
    dtype = {} if device == "cuda" else {"dtype": "float32"}
    named = {} if target is None else {"target": target}
    return {**setup, **named, **dtype, "policy": policy["name"], "device": device}, policy


def plans(client: httpx.Client, route: str, gates: Sequence[str]) -> dict[str, Any]:
    """Each gate's own estimate; nothing is queued."""
    return {
        gate: ok(
            client.post(
                "/v1/gate-runs", params={"plan": "true"}, json={"route": route, "gate": gate}
            )
        )
        for gate in gates
    }


def follow(walk: Demo, client: httpx.Client, steps: Steps) -> dict[str, Any]:
    """Wait for all runs of the one route; time each as the server saw it."""
    seen: set[str] = set()
    while True:
        walk.check_alive()
        (row,) = walk.rows(client)
        for gate, run in row["runs"].items():
            if run is not None and run["finished_at"] and gate not in seen:
                seen.add(gate)
                steps.add(f"{gate}: {run['outcome'] or run['state']}", _seconds(run))
        if row["done"]:
            return row
        time.sleep(POLL_S)


def _seconds(run: dict[str, Any]) -> float:
    from datetime import datetime  # noqa: PLC0415 - beside its only use

    start, end = (datetime.fromisoformat(run[name]) for name in ("started_at", "finished_at"))
    return (end - start).total_seconds()


def run(setup: dict[str, Any], policy: dict[str, Any], home: Path, *, dry: bool) -> dict[str, Any]:
    """Walk all the way; what was found, with ``status``."""
    steps = Steps()
    settings = Settings.load(home=_fresh(home))
    settings.prepare()
    walk = Demo(settings, lambda line: print(f"  {line}", flush=True), setup)
    found: dict[str, Any] = {"device": setup["device"], "dtype": setup["dtype"]}
    with steps.step("model, digests"):
        walk.prepare()
    (route,) = walk.routes
    with walk.server() as client:
        with steps.step("policy, register"):
            ok(client.put(f"/v1/policies/{policy['name']}", json=policy))
            walk.register(client)
        found["plans"] = plans(client, route.name, policy["mandatory_gates"])
        if not dry:
            with steps.step("gates"), walk.worker():
                row = follow(walk, client, steps)
            with steps.step("decision"):
                found["decision"] = walk.decision(client, route)
            found["runs"] = {
                gate: {key: run[key] for key in ("state", "outcome")} if run else None
                for gate, run in row["runs"].items()
            }
    found |= {"seconds": steps.taken, "total_s": steps.total}
    return found | {"status": _status(found)}


def _fresh(home: Path) -> Path:
    """A home without former runs, which would be taken for this one's; the model cache is kept."""
    (home / "cache").mkdir(parents=True, exist_ok=True)
    state = Path(tempfile.mkdtemp(prefix="run-", dir=home))
    (state / "cache").symlink_to(home.resolve() / "cache")
    return state


def _status(found: dict[str, Any]) -> int:
    runs = [run for run in found.get("runs", {}).values() if run is not None]
    if any(run["outcome"] in {None, "ERROR"} for run in runs):
        return 1
    return LATE if found["total_s"] > LIMIT_S else 0


def main() -> None:
    """Check the device, walk, print, and leave with the status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dry-run", action="store_true", help="plans and inputs only, no worker")
    parser.add_argument("--target", help="another source than the model of the wheel")
    parser.add_argument("--home", type=Path, default=HERE.parent / ".cache" / "gpu-gate")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.device == "cuda" and not has_cuda():
        print("no CUDA device")
        sys.exit(NO_DEVICE)
    setup, policy = read_setup(chosen.device, chosen.target)
    found = run(setup, policy, chosen.home, dry=chosen.dry_run)
    for gate, plan in found["plans"].items():
        tokens = {name: value for name, value in plan.items() if "tokens" in name}
        print(f"plan of {gate}: {json.dumps(tokens)}")
    if "decision" in found:
        decision = found["decision"]
        print(f"decision: {decision['action']} ({decision['reason']}), gamma {decision['gamma']}")
    late = "in time" if found["total_s"] <= LIMIT_S else "TOO LATE"
    print(f"total {found['total_s']:.0f} s of {LIMIT_S:.0f} s: {late}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(found, indent=1))
    sys.exit(found["status"])


if __name__ == "__main__":
    main()
