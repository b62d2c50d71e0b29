"""One line of the doctor: what was looked at, how it stands, and what to do about it."""

from __future__ import annotations

import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from gatekeeper.cli.typed import program

if TYPE_CHECKING:
    from pathlib import Path

    from gatekeeper.errors import GatekeeperError

__all__ = ["FAIL", "OK", "WARN", "Check", "command", "failed", "unasked"]

OK, WARN, FAIL = "ok", "warn", "fail"


@dataclass(frozen=True)
class Check:
    """``status`` is ``ok``, ``warn`` (works, but look) or ``fail``; ``remedy`` where one is needed."""

    name: str
    status: str
    seen: str
    remedy: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able form."""
        return asdict(self)


def failed(name: str, error: GatekeeperError, remedy: str | None = None) -> Check:
    """Turn an error into a line; its own remedy unless a better one is given."""
    where = "" if error.field is None else f"{error.field} "
    value = "" if error.value is None else f"{error.value} "
    return Check(name, FAIL, f"{where}{value}{error.message}", remedy or error.remedy)


def command(text: str, home: Path | None = None) -> str:
    """A gatekeeper command that can be pasted into a shell, for the home at hand."""
    return f"{program()} {text}" + ("" if home is None else f" --home {shlex.quote(str(home))}")


def unasked(name: str, home: Path, *, answers: bool) -> Check:
    """Line of what nobody could be asked about: no server, or no token that it lets read."""
    if answers:
        remedy = f"export GATEKEEPER_TOKEN=$({command('token create --role reader', home)})"
        return Check(name, WARN, "not checked: there is no token that may read", remedy)
    seen = "not checked: no server answers, and no database is here"
    return Check(name, WARN, seen, command("serve", home))
