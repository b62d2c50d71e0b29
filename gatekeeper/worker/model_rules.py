"""Which model files a worker opens: from where they come, and that nothing in them is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from gatekeeper.core.running_pair import is_running_pair
from gatekeeper.errors import Forbidden, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ModelRules"]

_RUN_WHEN_READ = frozenset(
    {".bin", ".ckpt", ".dill", ".h5", ".joblib", ".keras", ".npy", ".pickle", ".pkl", ".pt", ".pth"}
    | {".pyc", ".py", ".so"}
)
"""Forms in which a model file may hold code that runs when it is read, or code itself."""

_ENDS = ":/@=#"


@dataclass(frozen=True)
class ModelRules:
    """What the owner of this machine lets artifacts open.

    ``sources`` are beginnings of sources (None: any), such as ``file:/srv/models``, ``hf:our-org`` or
    ``shipped:``; of a folder, all below it. ``pickles`` allows forms that may run code.
    """

    sources: tuple[str, ...] | None = None
    pickles: bool = False

    def check(self, artifact: Mapping[str, Any]) -> None:
        """Check the declared models, before the first of their files is looked at.

        Providers refuse a folder whose files are not exactly the declared ones, so that what is
        checked here is what will be read.

        Raises:
            Forbidden: a source or form that this worker does not open.
            InputError: a file's name is none.
        """
        if is_running_pair(artifact):
            return  # servers read their own files; weights that they declare are checked by themselves
        for side in ("target", "proposer"):
            section = artifact.get(side) or {}
            if section.get("source"):
                self._check_source(side, str(section["source"]))
            for name in section.get("files") or {}:
                _check_name(side, name)
                # a look-up's corpus is read as text, whatever its name
                if section.get("kind") != "ngram" and not self.pickles:
                    _check_form(side, name)

    def _check_source(self, side: str, source: str) -> None:
        if self.sources is not None and not any(_within(source, rule) for rule in self.sources):
            raise Forbidden(
                "is not a source that this worker opens",
                field=f"{side}.source",
                value=source,
                remedy=f"use one of {', '.join(self.sources)}, or start the worker with another "
                "--model-source",
            )


def _within(source: str, rule: str) -> bool:
    kind, _, place = source.partition(":")
    rule_kind, _, top = rule.partition(":")
    if kind != rule_kind:
        return False
    if kind == "file" and top:
        # links and .. are followed first: the text of a path says little about where it leads
        folder, allowed = (Path(p).expanduser().resolve() for p in (place, top))
        return folder == allowed or allowed in folder.parents
    rest = place.removeprefix(top)
    return place.startswith(top) and (not rest or not top or top[-1] in _ENDS or rest[0] in _ENDS)


def _check_name(side: str, name: str) -> None:
    if name in {"", ".", ".."} or "/" in name or "\\" in name or not name.isprintable():
        raise InputError(
            "is not the name of a file",
            field=f"{side}.files",
            value=name,
            remedy="name files of the source's own folder",
        )


def _check_form(side: str, name: str) -> None:
    if PurePosixPath(name).suffix.lower() in _RUN_WHEN_READ:
        raise Forbidden(
            "may run code when it is read",
            field=f"{side}.files",
            value=name,
            remedy="convert it to safetensors and remove it; or, where you trust whoever made it, "
            "start the worker with --allow-pickled-weights",
        )
