"""The server's API for commands: problems become the errors they came from."""

from __future__ import annotations

import shlex
from functools import partial
from typing import Any, NoReturn
from urllib.parse import quote

import httpx

from gatekeeper.config import Settings
from gatekeeper.core.addresses import why_silent
from gatekeeper.errors import GatekeeperError, InputError, NotFound, Unauthorized, Unavailable

__all__ = ["TIMEOUT_S", "client", "home_typed", "pages", "segment"]

TIMEOUT_S = 60.0
"""How long a command waits for an answer where it says nothing else."""

_SERVER_ERROR = 500


class _Transport(httpx.HTTPTransport):
    """Says what to do when nobody answers; ``home`` is the one to serve, as it is typed."""

    def __init__(self, home: str) -> None:
        super().__init__()
        self._home = home

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            return super().handle_request(request)
        except httpx.TransportError as error:
            raise self._silent(error, request.url) from error

    def _silent(self, error: httpx.TransportError, url: httpx.URL) -> Unavailable:
        if isinstance(error, (httpx.ReadTimeout, httpx.WriteTimeout)):
            message = f"the server there did not answer in time ({why_silent(error)})"
            remedy = "it is busy: look at its log, and try again"
        else:
            message = f"no server answers ({why_silent(error)})"
            remedy = f"start it with gatekeeper serve --home {self._home}, or set GATEKEEPER_URL"
        where = f"{url.scheme}://{url.netloc.decode()}"
        return Unavailable(message, field="url", value=where, remedy=remedy)


def client(settings: Settings | None = None, *, timeout_s: float = TIMEOUT_S) -> httpx.Client:
    """Open a client of ``GATEKEEPER_URL`` with ``GATEKEEPER_TOKEN``; the caller closes it.

    Every answer that is not a success raises the error of its problem.

    Raises:
        Unauthorized: no token is set, or what is set is none.
        InputError: ``GATEKEEPER_URL`` is not a URL.
    """
    settings = settings or Settings.load()
    if settings.token is None:
        raise Unauthorized(
            "is not set",
            field="GATEKEEPER_TOKEN",
            remedy="create one on the server's machine: gatekeeper token create --role admin "
            f"--home {home_typed(settings)}",
        )
    if not settings.token.isascii() or not settings.token.isprintable():
        raise Unauthorized(
            "holds what no token holds",
            field="GATEKEEPER_TOKEN",
            remedy="set it to the one line that gatekeeper token create printed",
        )
    return httpx.Client(
        base_url=_address(settings.server_url),
        headers={"Authorization": f"Bearer {settings.token}"},
        timeout=timeout_s,
        transport=_Transport(home_typed(settings)),
        event_hooks={"response": [partial(_check, home=home_typed(settings))]},
    )


def home_typed(settings: Settings) -> str:
    """The home as it is typed after ``--home``; HOME where nobody has chosen one."""
    return shlex.quote(str(settings.home)) if settings.home_given else "HOME"


def _address(url: str) -> httpx.URL:
    try:
        address = httpx.URL(url)
        why = "" if address.host else "it names no host"
    except httpx.InvalidURL as error:
        why = str(error)
    if why or address.scheme not in {"http", "https"}:
        raise InputError(
            f"is not a URL ({why or 'it begins with neither http:// nor https://'})",
            field="url",
            value=url,
            remedy="set GATEKEEPER_URL to the server's, such as http://127.0.0.1:8321",
        )
    return address


def segment(name: str) -> str:
    """Return a name or id as one segment of a path.

    Raises:
        NotFound: nothing on a server can have this name.
    """
    if name in {"", ".", ".."} or "/" in name or not name.isprintable():
        raise NotFound(
            "cannot be a name or id",
            field="name",
            value=name,
            remedy="use letters, digits, '.', '_' and '-'",
        )
    return quote(name, safe="")


def pages(http: httpx.Client, path: str, **params: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - query values
    """Return the items of every page."""
    items: list[dict[str, Any]] = []
    query = {name: value for name, value in params.items() if value is not None}
    while True:
        answer = http.get(path, params=query).json()
        items += answer["items"]
        if answer["next"] is None:
            return items
        query["after"] = answer["next"]


def _check(response: httpx.Response, *, home: str) -> None:
    if response.is_error:
        response.read()
        _raise(response, home)


def _raise(response: httpx.Response, home: str) -> NoReturn:
    try:
        problem = response.json()
    except ValueError:
        problem = {}
    if not isinstance(problem, dict) or "detail" not in problem:
        raise Unavailable(
            f"answered {response.status_code} without a problem document",
            field="url",
            value=str(response.request.url),
            remedy="check that GATEKEEPER_URL is a gatekeeper server",
        )
    kinds = {kind.title: kind for kind in _all_kinds(GatekeeperError)}
    default = Unavailable if response.status_code >= _SERVER_ERROR else InputError
    kind = kinds.get(str(problem.get("title")), default)
    field, remedy = problem.get("field"), problem.get("remedy")
    raise kind(
        problem["detail"],
        # what a header's name stands for here, and where the reader's own home is
        field="GATEKEEPER_TOKEN" if kind is Unauthorized else field,
        value=problem.get("value"),
        remedy=remedy and str(remedy).replace("--home HOME", f"--home {home}"),
    )


def _all_kinds(kind: type[GatekeeperError]) -> list[type[GatekeeperError]]:
    return [kind, *(k for sub in kind.__subclasses__() for k in _all_kinds(sub))]
