"""Every error gatekeeper raises on purpose.

    GatekeeperError
    ├── InputError             the caller's data is wrong               HTTP 422, exit 2
    │   ├── UnknownKey         a document has a key nobody reads        HTTP 422, exit 2
    │   ├── Incompatible       target and proposer do not fit           HTTP 422, exit 2
    │   ├── TraceError         a trace file cannot be read or trusted   HTTP 400, exit 2
    │   └── TooLarge           more data than is taken at once          HTTP 413, exit 2
    ├── NotFound               no such object                           HTTP 404, exit 2
    ├── Conflict               it contradicts what is stored            HTTP 409, exit 2
    │   └── FencedOut          another worker owns this run now         HTTP 409, exit 2
    ├── Unauthorized           no token, or one we do not know          HTTP 401, exit 2
    ├── Forbidden              the token's role does not allow it       HTTP 403, exit 2
    ├── Unavailable            a part we need is missing or busy        HTTP 503, exit 2
    │   ├── Busy               more requests at once than are taken     HTTP 429, exit 2
    │   │   └── RateLimited    more requests a second than a token may  HTTP 429, exit 2
    │   └── MissingExtra       an optional dependency is not installed  HTTP 503, exit 2
    └── EvidenceError          evidence does not support what it claims HTTP 422, exit 1

Each one names the field, the value and the remedy, so the same object prints as one
line on a terminal and as an RFC 9457 problem over HTTP.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "Busy",
    "Conflict",
    "EvidenceError",
    "FencedOut",
    "Forbidden",
    "GatekeeperError",
    "Incompatible",
    "InputError",
    "MissingExtra",
    "NotFound",
    "RateLimited",
    "TooLarge",
    "TraceError",
    "Unauthorized",
    "Unavailable",
    "UnknownKey",
]


class GatekeeperError(Exception):
    """Base class: a message, and where known the field, its value and the remedy."""

    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 2
    title: ClassVar[str] = "Internal error"

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        """One line: ``field=value: message; remedy``, leaving out what is not known.

        Values come from outside: what a terminal would obey is written as an escape.
        """
        shown = "" if self.value is None else f"={_short(self.value)}"
        return self._line(None if self.field is None else f"{self.field}{shown}")

    def about(self, subject: str) -> str:
        """The line for a list in which ``subject`` stands already: it is not named again."""
        return self._line(None) if self.value == subject else str(self)

    def unquoted(self) -> str:
        """The line without the value, of which only the kind is told: it may be a prompt."""
        kind = "" if self.value is None else f" ({_kind(self.value)})"
        return self._line(None if self.field is None else f"{self.field}{kind}")

    def _line(self, where: str | None) -> str:
        cure = f"; {self.remedy}" if self.remedy else ""
        return printable(f"{'' if where is None else f'{where}: '}{self.message}{cure}")


class InputError(GatekeeperError):
    """The caller's data is wrong."""

    status = 422
    title = "Invalid input"


class UnknownKey(InputError):
    """A document has a key that nothing reads; dropping it silently would hide a typo."""

    title = "Unknown key"


class Incompatible(InputError):
    """Target and proposer do not fit, or the declared contract cannot hold."""

    title = "Incompatible artifact"


class TraceError(InputError):
    """A trace file cannot be read, or its timings cannot be trusted."""

    status = 400
    title = "Unusable trace"


class TooLarge(InputError):
    """More data than is taken at once, as it travels or after unpacking."""

    status = 413
    title = "Too large"


class NotFound(GatekeeperError):
    """No such object."""

    status = 404
    title = "Not found"


class Conflict(GatekeeperError):
    """The request contradicts what is stored."""

    status = 409
    title = "Conflict"


class FencedOut(Conflict):
    """The run's lease went to another worker; this one must stop and write nothing more."""

    title = "Fenced out"


class Unauthorized(GatekeeperError):
    """No token was sent, or one that is unknown, expired or revoked."""

    status = 401
    title = "Unauthorized"


class Forbidden(GatekeeperError):
    """The token's role does not allow this."""

    status = 403
    title = "Forbidden"


class Unavailable(GatekeeperError):
    """Something the operation needs is missing, busy or not writable."""

    status = 503
    title = "Unavailable"


class Busy(Unavailable):
    """More requests are in flight than are taken at once; the same one will do in a moment."""

    status = 429
    title = "Too many requests"


class RateLimited(Busy):
    """The token makes more requests a second than it may; ``retry_after_s`` is when it may again."""

    title = "Rate limited"
    retry_after_s: int | None = None


class MissingExtra(Unavailable):
    """An optional dependency is not installed; the remedy is the install line."""

    title = "Missing extra"


class EvidenceError(GatekeeperError):
    """Stored evidence is absent, changed, or does not reproduce the figure it supports."""

    status = 422
    exit_code = 1
    title = "Evidence does not hold"


def printable(text: str) -> str:
    """Return foreign text as one line in which a terminal finds nothing to obey."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


_ABSENT = "absent"
"""What readers give as the value of a field that is not there."""


def _kind(value: object) -> str:
    """What a value is, and nothing of what it says."""
    if isinstance(value, str):
        return _ABSENT if value == _ABSENT else f"text of {len(value)} characters"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else "of another kind"


def _short(value: object, limit: int = 120) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
