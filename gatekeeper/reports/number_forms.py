"""How figures read: enough digits to act on, a unit on each, a true minus sign."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "amount",
    "bytes_",
    "count",
    "duration",
    "money",
    "per_second",
    "plain",
    "ratio",
    "share",
    "signed_share",
]

_MINUTE, _HOUR, _DAY = 60, 3600, 86400
_LONG_MS = 10.0
_KIB = 1024
_LEAST = 0.001


def _minus(text: str) -> str:
    return text.replace("-", "−")


def plain(value: float) -> str:
    """Four significant digits."""
    return _minus(f"{value:.4g}")


def count(value: float) -> str:
    """Whole number, thousands apart."""
    return _minus(f"{value:,.0f}").replace(",", "\u202f")


def ratio(value: float) -> str:
    """Factor."""
    return f"{value:.2f}×"


def share(value: float) -> str:
    """Probability or share in percent; what is not quite 0 or 1 never reads as that."""
    if 0 < value < _LEAST:
        return f"<{100 * _LEAST:g} %"
    if 1 - _LEAST < value < 1:
        return f">{100 - 100 * _LEAST:g} %"
    return _minus(f"{100 * value:.3g} %")


def signed_share(value: float) -> str:
    """Difference of shares, its sign always shown."""
    return _minus(f"{100 * value:+.3g} %")


def duration(seconds: float) -> str:
    """Time in the unit that suits it."""
    size = abs(seconds)
    if size >= 2 * _DAY:
        return f"{seconds / _DAY:.3g} d"
    if size >= 2 * _HOUR:
        return f"{seconds / _HOUR:.3g} h"
    if size >= 2 * _MINUTE:
        return f"{seconds / _MINUTE:.3g} min"
    if size >= _LONG_MS:
        return _minus(f"{seconds:.3g} s")
    return _minus(f"{1000 * seconds:.4g} ms")


def per_second(value: float) -> str:
    """Rate of tokens or requests."""
    return _minus(f"{value:.1f}/s")


def bytes_(value: float) -> str:
    """Memory in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < _KIB:
            return f"{value:.4g} {unit}"
        value /= _KIB
    return f"{value:.2f} GiB"


def amount(value: float) -> str:
    """Money without its currency, where that stands beside it; 0.00005 and not 5e-05."""
    return _minus(f"{Decimal(f'{value:.4g}'):f}")


def money(currency: str) -> Callable[[float], str]:
    """Return the form of amounts in a currency."""

    def form(value: float) -> str:
        return f"{amount(value)} {currency}"

    return form
