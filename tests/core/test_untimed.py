from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from gatekeeper.core.trace_documents import decode, read_traces
from gatekeeper.core.untimed import why_untimed
from gatekeeper.errors import TraceError

PROFILE = json.dumps({"traceEvents": [{"ph": "X", "name": "kernel", "ts": 1, "dur": 2}]}).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00,5,6\n", "arrival times"),
        (b'{"timestamp": 0, "input_length": 5, "output_length": 6}\n' * 2, "arrival times"),
        (b'[{"arrival_time": 1.5, "prompt_tokens": 5}]', "arrival times"),
        (b'{"spanName": "call", "attributes": {"gen_ai.usage.output_tokens": 5}}', "without its"),
        (PROFILE, "profiler's trace"),
        (gzip.compress(PROFILE, mtime=0), "profiler's trace"),
    ],
)
def test_file_that_cannot_give_timings_says_why_and_what_would_help(data: Any, reason: Any) -> None:
    with pytest.raises(TraceError, match=reason) as caught:
        read_traces(data, [])
    assert caught.value.remedy
    assert "export" in caught.value.remedy or "record" in caught.value.remedy


@pytest.mark.parametrize(
    "data",
    [
        b'{"timestamp": 0, "input_length": 5, "duration_ms": 6}',
        b'{"timestamp": 0, "finish_time": 9, "output_tokens": 6}',
        b"timestamp,latency,prompt_tokens\n1,2,3\n",
        b'{"spanName": "call", "startTime": 5, "attributes": {}}',
        b'{"attributes": {"color": "red"}}',
        b"\x1f\x8bbroken",
        gzip.compress(b"words", mtime=0),
        b"3",
        b"\x00\x01",
    ],
)
def test_other_files_are_left_to_the_general_refusal(data: Any) -> None:
    assert why_untimed(decode(data)) is None
    with pytest.raises(TraceError, match="not a trace"):
        read_traces(data, [])


def test_only_the_beginning_of_a_packed_file_is_unpacked() -> None:
    late = gzip.compress(b" " * (1 << 20) + PROFILE)
    assert why_untimed(decode(late)) is None
