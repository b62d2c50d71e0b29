"""What the server counts, for Prometheus; names and meanings follow vLLM where it has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gatekeeper_adapters.engines.reference.server.answer import Answer
    from gatekeeper_adapters.engines.reference.server.bridge import Bridge, Progress

__all__ = ["ServerMetrics"]

_FIRST = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)
_WHOLE = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0)


class ServerMetrics:
    """One server's metrics on their own registry. Times are seconds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(f"gatekeeper:{name}", words, labels, registry=self.registry)

        def histogram(name: str, words: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(
                f"gatekeeper:{name}_seconds", words, registry=self.registry, buckets=buckets
            )

        self.drafts = counter("spec_decode_num_drafts", "Rounds in which tokens were drafted")
        self.drafted = counter("spec_decode_num_draft_tokens", "Draft tokens proposed")
        self.accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted")
        self.accepted_at = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted, by position",
            "position",
        )
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts that were begun")
        self.tokens = counter("generation_tokens", "Tokens generated")
        self.requests = counter(
            "request_success", "Choices that ended by themselves", "finished_reason"
        )
        self.broken = counter("request_broken", "Answers that ended early", "reason")
        self.errors = counter("http_errors", "Requests answered with an error", "status")
        self.spans_dropped = counter("spans_dropped", "Spans that the collector did not take")
        self.queue = histogram("request_queue_time", "Arrival to slot", _FIRST)
        self.ttft = histogram("time_to_first_token", "Arrival to first token", _FIRST)
        self.tpot = histogram("time_per_output_token", "(last - first token) / (tokens - 1)", _EACH)
        self.e2e = histogram("e2e_request_latency", "Arrival to last token", _WHOLE)

    def follow(self, bridge: Bridge) -> None:
        """Show how many requests hold a slot and how many wait, whenever somebody looks."""
        for name, words, count in (
            ("num_requests_running", "Requests that hold a slot", lambda: bridge.running),
            ("num_requests_waiting", "Requests that wait for a slot", lambda: bridge.waiting),
        ):
            gauge = Gauge(f"gatekeeper:{name}", words, registry=self.registry)
            gauge.set_function(count)

    def step(self, batch: Sequence[Progress]) -> None:
        """Count what one step did."""
        drafted = sum(one.drafted for one in batch)
        accepted = [one.accepted for one in batch if one.accepted]
        self.tokens.inc(sum(len(one.tokens) for one in batch))
        if drafted:
            self.drafts.inc(sum(1 for one in batch if one.drafted))
            self.drafted.inc(drafted)
        if accepted:
            self.accepted.inc(sum(accepted))
            for position in range(max(accepted)):
                count = sum(1 for length in accepted if length > position)
                self.accepted_at.labels(str(position)).inc(count)

    def ended(self, answer: Answer, problem: str | None) -> None:
        """Count an answer that has left, and its times as far as it came."""
        times = answer.times
        if problem is not None:
            self.broken.labels(problem).inc()
        if times.admitted is not None:
            self.prompt_tokens.inc(answer.prompt_tokens)
        for choice in answer.choices:
            if choice.finish is not None:
                self.requests.labels(choice.finish).inc()
        for histogram, value in ((self.queue, times.queue_s), (self.ttft, times.ttft_s)):
            if value is not None:
                histogram.observe(value)
        if answer.complete and times.last is not None and times.decode_s is not None:
            self.e2e.observe(times.last - times.arrived)
            if len(answer.choices) == 1 and answer.tokens > 1:
                self.tpot.observe(times.decode_s / (answer.tokens - 1))

    def render(self) -> bytes:
        """The Prometheus text format."""
        return generate_latest(self.registry)
