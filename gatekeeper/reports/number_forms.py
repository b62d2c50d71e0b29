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
    "digits",
    "duration",
    "fixed",
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
_NEXT_TO_NOTHING = 1e-6
"""Below a millionth – of a currency, of a second – the digits tell a reader nothing; claims keep them."""


def _minus(text: str) -> str:
    return text.replace("-", "−")


def _written(text: str) -> str:
    """True minus sign, narrow space between thousands."""
    return _minus(text).replace(",", "\u202f")


def digits(value: float, significant: int = 4) -> str:
    """So many significant digits, never a power of ten; what is next to nothing is said to be.

    0 stays 0, and what rounds beyond the decimal point keeps its thousands.
    """
    if 0 < abs(value) < _NEXT_TO_NOTHING:
        least = f"{Decimal(str(_NEXT_TO_NOTHING)):f}"
        return f"<{least}" if value > 0 else f">−{least}"
    return _written(f"{Decimal(f'{value:.{significant}g}'):,f}")


def plain(value: float) -> str:
    """Four significant digits."""
    return digits(value)


def count(value: float) -> str:
    """Whole number, thousands apart."""
    return _written(f"{value:,.0f}")


def ratio(value: float) -> str:
    """Factor."""
    return f"{value:.2f}×"


def fixed(value: float, decimals: int, *, signed: bool = False) -> str:
    """So many decimals, as figures that stand below one another need them."""
    return _minus(f"{value:{'+' if signed else ''}.{decimals}f}")


def share(value: float) -> str:
    """Probability or share in percent; what is not quite 0 or 1 never reads as that."""
    if 0 < value < _LEAST:
        return f"<{100 * _LEAST:g} %"
    if 1 - _LEAST < value < 1:
        return f">{100 - 100 * _LEAST:g} %"
    return _minus(f"{100 * value:.3g} %")


def signed_share(value: float) -> str:
    """Difference of shares, its sign always shown."""
    if 0 < abs(value) < _LEAST / 100:
        return f"{'+' if value > 0 else '−'}<{_LEAST:g} %"
    return f"{'' if value < 0 else '+'}{digits(100 * value, 3)} %"


def duration(seconds: float) -> str:
    """Time in the unit that suits it."""
    size = abs(seconds)
    if size >= 2 * _DAY:
        return _minus(f"{seconds / _DAY:.3g} d")
    if size >= 2 * _HOUR:
        return _minus(f"{seconds / _HOUR:.3g} h")
    if size >= 2 * _MINUTE:
        return _minus(f"{seconds / _MINUTE:.3g} min")
    if size >= _LONG_MS:
        return _minus(f"{seconds:.3g} s")
    return f"{digits(1000 * seconds)} ms"


def per_second(value: float) -> str:
    """Rate of tokens or requests."""
    return _written(f"{value:,.1f}/s")


def bytes_(value: float) -> str:
    """Memory in binary units."""
    for unit in ("B", "KiB", "MiB"):
        if abs(value) < _KIB:
            return f"{value:.4g} {unit}"
        value /= _KIB
    return f"{value:.2f} GiB"


def amount(value: float) -> str:
    """Money without its currency, where that stands beside it."""
    return digits(value)


def money(currency: str) -> Callable[[float], str]:
    """Return the form of amounts in a currency."""

    def form(value: float) -> str:
        return f"{amount(value)} {currency}"

    return form
