"""Addresses of servers as people give them: hosts that can be ones, and secrets kept out of words."""

from __future__ import annotations

import re

__all__ = ["has_credentials", "is_host", "why_silent", "without_secrets"]

_HOST = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*\.?")
_NUMERIC = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")


def is_host(text: str | None) -> bool:
    """Whether a host can be one: a name of ASCII labels, or a numeric address without brackets."""
    return text is not None and bool((_NUMERIC if ":" in text else _HOST).fullmatch(text))


def has_credentials(url: str) -> bool:
    """Whether a user or a password stands before the host."""
    return "@" in url.rpartition("://")[2].partition("/")[0]


def without_secrets(url: str) -> str:
    """The address for an error or a log: what may be a password or a key is left out."""
    scheme, mark, rest = url.rpartition("://")
    place = rest.rpartition("@")[2].partition("?")[0].partition("#")[0]
    return f"{scheme}{mark}{'…@' if '@' in rest else ''}{place}{'?…' if '?' in rest else ''}"


_ERRNO = re.compile(r"\[(?:Errno|WinError) -?\d+\] ?")


def why_silent(error: Exception) -> str:
    """Why an address did not answer, without the numbers of the operating system."""
    text = _ERRNO.sub("", str(error)).strip() or type(error).__name__
    return text[0].lower() + text[1:]
