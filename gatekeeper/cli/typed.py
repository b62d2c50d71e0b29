"""How this command line was started: printed commands begin so, and work as they are printed."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

__all__ = ["program", "typed"]

_NAME = "gatekeeper"


def program() -> str:
    """What starts this command line in the caller's shell; the bare name where nobody typed one."""
    started = Path(sys.argv[0])
    if started.name == _NAME:
        return _NAME if _is_found(_NAME, started) else shlex.quote(sys.argv[0])
    if started.name == "__main__.py" and started.parent.name == _NAME:
        python = Path(sys.executable)
        name = python.name if _is_found(python.name, python) else shlex.quote(str(python))
        return f"{name} -m {_NAME}"
    return _NAME


def typed(text: str) -> str:
    """Return ``text`` with every command of ours begun as this one was."""
    started = program()
    if started == _NAME:
        return text
    from gatekeeper import plugins
    from gatekeeper.cli import COMMANDS

    names = "|".join(map(re.escape, (*COMMANDS, *plugins.names("gatekeeper.commands"))))
    # not the end of a path or a name, and not the name of a package or a server
    return re.sub(rf"(?<![\w./-]){_NAME}(?= (?:{names})(?![\w-]))", lambda _: started, text)


def _is_found(name: str, file: Path) -> bool:
    """Whether the shell finds this very file by its name; links to another home do not count."""
    found = shutil.which(name)
    return found is not None and Path(found).absolute() == file.absolute()
