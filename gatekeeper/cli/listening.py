"""A server's address, taken before anything heavy or lasting is done: a busy port fails at once."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

from gatekeeper.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["listening", "url_of"]


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket that listens; port 0 takes a free one.

    Raises:
        Unavailable: the port is taken, or the address is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()  # now, so that a second server fails here and not later
        except OSError as error:
            raise Unavailable(
                f"cannot be listened on at {host} ({(error.strerror or str(error)).lower()})",
                field="port",
                value=port,
                remedy="stop whoever uses it, or choose another with --port (0 takes a free one)",
            ) from error
        yield listener


def url_of(listener: socket.socket) -> str:
    """Where the socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
