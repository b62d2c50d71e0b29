"""What no dialect owns: databases, HTTP, and names that people give their spans."""

from __future__ import annotations

from gatekeeper.core.dialects.base import Dialect, Named

__all__ = ["DIALECT"]

DIALECT = Dialect(
    name="common names",
    kind_by_name=(
        Named(r"(human|user)[ _.-]?(input|approval|confirmation|feedback|wait)\b", "human_wait"),
        Named(r"wait(ing)?[ _-]for[ _-](user|human|approval)\b", "human_wait"),
        Named(r"tool[.:]", "tool"),
        Named(r"(verify|verification|verifier)\b", "verification"),
    ),
    kind_by_presence={"db.system.name": "persistence", "db.system": "persistence"},
    resend_counts=("http.request.resend_count", "http.resend_count", "http.retry_count"),
    error_statuses=("http.response.status_code", "http.status_code", "error.type"),
)
