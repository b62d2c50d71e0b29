from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from gatekeeper_adapters.executors.local import EXECUTOR, LocalExecutor

if TYPE_CHECKING:
    from pathlib import Path

STAY = "import sys; sys.stdin.read(); open({out!r}, 'w').write('eof')"
SLEEP = "import time; time.sleep(60)"


def wait_for(condition: Any, seconds: Any = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def executor(code: Any) -> Any:
    return LocalExecutor((sys.executable, "-c", code), grace_s=5)


def process(local: Any, job: Any) -> Any:
    return local._jobs[job]


def test_the_entry_point_is_an_executor_for_this_interpreter() -> None:
    assert EXECUTOR.name == "local"
    assert EXECUTOR._command == (sys.executable, "-m", "gatekeeper")


def test_a_worker_is_asked_for_exactly_that_run(tmp_path: Path) -> None:
    out = tmp_path / "argv"
    code = f"import sys; open({str(out)!r}, 'w').write(' '.join(sys.argv[1:]))"
    local = executor(code)
    job = local.submit("run-9", 1, {})
    process(local, job).wait(30)
    assert out.read_text() == "worker --once --run run-9 --until-stdin-closes"


def test_the_same_attempt_starts_once_and_the_next_one_again() -> None:
    local = executor(SLEEP)
    first = local.submit("r", 1, {})
    running = process(local, first)
    assert local.submit("r", 1, {}) == first
    assert process(local, first) is running
    second = local.submit("r", 2, {})
    assert second != first
    assert len(local._jobs) == 2
    for job in (first, second):
        local.stop(job)


def test_stop_ends_the_process_and_forgets_unknown_jobs() -> None:
    local = executor(SLEEP)
    job = local.submit("r", 1, {})
    running = process(local, job)
    local.stop(job)
    assert running.returncode == -signal.SIGTERM
    local.stop(job)
    local.stop("nobody-1")


def test_a_worker_that_ignores_the_request_is_made_to_stop() -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('x'); time.sleep(60)"
    local = LocalExecutor((sys.executable, "-c", code), grace_s=0.5)
    job = local.submit("r", 1, {})
    running = process(local, job)
    time.sleep(0.3)
    local.stop(job)
    assert running.returncode in {-signal.SIGKILL, -signal.SIGTERM}


def test_ended_workers_leave_no_zombie() -> None:
    local = executor("pass")
    job = local.submit("r", 1, {})
    process(local, job).wait(30)
    local.submit("r", 2, {})
    assert job not in local._jobs
    local.stop("r-2")


def test_killing_the_server_ends_its_workers(tmp_path: Path) -> None:
    """The pipe closes however the server dies."""
    out = tmp_path / "noticed"
    server = (
        "import sys, time\n"
        "from gatekeeper_adapters.executors.local import LocalExecutor\n"
        f"LocalExecutor((sys.executable, '-c', {STAY.format(out=str(out))!r})).submit('r', 1, {{}})\n"
        "print('started', flush=True)\n"
        "time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True)
    assert parent.stdout.readline()
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    parent.stdout.close()
    wait_for(out.exists)
