"""Documentation that cannot rot: the CLI reference is generated, and checked here.

Run with GATEKEEPER_UPDATE_DOCS=1 to write docs/reference/cli.md anew.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gatekeeper.cli import cli

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference" / "cli.md"


def commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group, info_name=path[-1])
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        here = (*path, name)
        yield " ".join(here), command
        if isinstance(command, click.Group):
            yield from commands(command, here)


def render() -> str:
    lines = ["# Command line", "", "Generated from the commands themselves; do not edit.", ""]
    for name, command in commands(cli, ("gatekeeper",)):
        # the names that commands inherit from the group when they are really called
        inherited = cli.context_settings["help_option_names"]
        with click.Context(command, info_name=name, help_option_names=inherited) as context:
            lines += [f"## {name}", "", "```", command.get_help(context), "```", ""]
    return "\n".join(lines)


def test_the_reference_matches_the_commands() -> None:
    # A process of its own: click keeps the help option of a command's first call.
    text = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if os.environ.get("GATEKEEPER_UPDATE_DOCS"):
        REFERENCE.parent.mkdir(exist_ok=True)
        REFERENCE.write_text(text)
    assert REFERENCE.read_text() == text, "run GATEKEEPER_UPDATE_DOCS=1 pytest tests/test_docs.py"


@pytest.mark.parametrize("name", [name for name, _ in commands(cli, ("gatekeeper",))])
def test_every_command_says_what_it_does_and_takes_json(name: str) -> None:
    command = dict(commands(cli, ("gatekeeper",)))[name]
    assert command.help
    if not isinstance(command, click.Group):
        assert "--json" in {option for p in command.params for option in p.opts}


def test_links_between_pages_exist() -> None:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_commands_in_the_readme_exist() -> None:
    known = {name for name, _ in commands(cli, ("gatekeeper",))}
    text = (ROOT / "README.md").read_text()
    assert ".venv/bin/gatekeeper" not in text  # one form, whose place is said once
    for line in re.findall(r"^\s*gatekeeper ([a-z-]+(?: [a-z-]+)?)", text, re.MULTILINE):
        first, _, second = line.partition(" ")
        assert f"gatekeeper {first}" in known, line
        if isinstance(dict(commands(cli, ("gatekeeper",)))[f"gatekeeper {first}"], click.Group):
            assert f"gatekeeper {first} {second}" in known, line


if __name__ == "__main__":
    sys.stdout.write(render())
