"""Use cases that compute with pandas and scipy, each loaded when it is first asked for.

These libraries take 100 MiB and more, and a server that takes in spans or answers with leases needs
none of them. So whatever a server imports at its start reaches the modules named here through this
one, as ``on_demand.price``; the modules themselves import what they need as usual.

One import at a time: the libraries' own modules import one another in circles, and two threads that
enter such a circle from two sides may each see the other's half-made modules.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from gatekeeper.actions import (
        delivered,
        evidence_tables,
        finish,
        ledger,
        plan,
        price,
        report,
    )

__all__ = ["delivered", "evidence_tables", "finish", "ledger", "plan", "price", "report"]

_lock = threading.RLock()


def __getattr__(name: str) -> ModuleType:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _lock:
        module = import_module(f"gatekeeper.actions.{name}")
    globals()[name] = module  # from now on it is found without asking here
    return module
