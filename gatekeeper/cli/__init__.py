"""The command line: a click group whose commands are imported only when they are used."""

from __future__ import annotations

import importlib
import io
import sys
from typing import NoReturn

import click

from gatekeeper.errors import GatekeeperError

__all__ = ["COMMANDS", "cli", "main"]

COMMANDS = {
    "demo": ("gatekeeper.cli.demo:demo", "From artifacts to decisions on a real model."),
    "serve": ("gatekeeper.cli.serve:serve", "Run the API server."),
    "worker": ("gatekeeper.cli.worker:worker", "Claim gate runs and execute them."),
    "profile": ("gatekeeper.cli.profile:profile", "What would faster decoding save your tasks?"),
    "claims": ("gatekeeper.cli.claims:claims", "List every figure, or recompute it from evidence."),
    "artifact": ("gatekeeper.cli.artifact:artifact", "Register and inspect target-proposer pairs."),
    "route": ("gatekeeper.cli.route:route", "Say what each route serves, and under which policy."),
    "traces": ("gatekeeper.cli.traces:traces", "Send trace files, and list the tasks of them."),
    "policy": ("gatekeeper.cli.policy:policy", "Apply and inspect policies."),
    "gate": ("gatekeeper.cli.gate:gate", "Plan, start, follow and cancel gate runs."),
    "equivalence": (
        "gatekeeper.cli.equivalence:equivalence",
        "Check an EVIDENCE.npz for exactness.",
    ),
    "battery": ("gatekeeper.cli.battery:battery", "Does a server keep what its API promises?"),
    "outcome": ("gatekeeper.cli.outcome:outcome", "Check a PAIRS.csv of task outcomes."),
    "value": ("gatekeeper.cli.value:value", "What a second is worth, fitted from outcomes."),
    "decide": ("gatekeeper.cli.decide:decide", "Enable or bypass: decide a route now."),
    "report": ("gatekeeper.cli.report:report", "Why a route is decided so, figure by figure."),
    "delivered": (
        "gatekeeper.cli.delivered:delivered",
        "Has a rollout brought what was promised?",
    ),
    "watch": ("gatekeeper.cli.watch:watch", "Is what runs what was gated? Else bypass its routes."),
    "schedule": ("gatekeeper.cli.schedule:schedule", "Say when routes are gated again."),
    "webhook": ("gatekeeper.cli.webhook:webhook", "Tell other systems of decisions, signed."),
    "override": ("gatekeeper.cli.override:override", "Set or clear a manual override."),
    "token": ("gatekeeper.cli.token:token", "Create, list, rotate and revoke access tokens."),
    "apply": ("gatekeeper.cli.apply:apply", "Make the configuration what files say."),
    "export": ("gatekeeper.cli.export:export", "Write the configuration as files."),
    "audit": ("gatekeeper.cli.audit:audit", "Who changed what, and when?"),
    "db": ("gatekeeper.cli.db:db", "Upgrade, back up and prune the database."),
    "doctor": ("gatekeeper.cli.doctor:doctor", "Is everything in place, and if not, what to do?"),
}
"""Command name to its ``module:attribute`` and the line that ``--help`` prints for it.

The line stands here so that ``gatekeeper --help`` imports no command at all; commands of
installed extras join through the entry-point group ``gatekeeper.commands``.
"""


_EXTRAS = {
    "engine": "Serve the reference engine over OpenAI's API.",
    "train": "Train a drafter for one target.",
}
"""Lines for commands of the extras that are developed here."""


class LazyGroup(click.Group):
    """A click group that imports a command's module when that command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names of built-in and installed commands, built-in ones first."""
        from gatekeeper import plugins

        built_in = list(COMMANDS)
        return built_in + sorted(set(plugins.names("gatekeeper.commands")) - set(built_in))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """Import and return one command; None when there is none of that name."""
        if cmd_name in COMMANDS:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command
        from gatekeeper import plugins

        if cmd_name in plugins.names("gatekeeper.commands"):
            extra: click.Command = plugins.load("gatekeeper.commands", cmd_name)
            return extra
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command list of ``--help`` from the table, without importing commands."""
        another = "From an installed extra."
        rows = [
            (name, COMMANDS[name][1] if name in COMMANDS else _EXTRAS.get(name, another))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's callback signature
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"gatekeeper {version('gatekeeper')}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
def cli() -> None:
    """Decide, route by route, whether an LLM fleet should decode speculatively.

    Exit status: 0 done, 1 the answer is no, 2 usage or input error. Every command takes --json.
    """


def main(arguments: list[str] | None = None, *, command: click.Command = cli) -> NoReturn:
    """Run the command line and exit; every error of the user's is one line on stderr.

    ``command`` is for modules that are run by themselves (``python -m``).
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names come from foreign files; a terminal that cannot show one must not end us.
            stream.reconfigure(errors="backslashreplace")
    from gatekeeper.cli.typed import program, typed

    try:
        status = command.main(args=arguments, prog_name=program(), standalone_mode=False)
    except GatekeeperError as error:
        click.echo(f"gatekeeper: error: {typed(str(error))}", err=True)
        sys.exit(error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        remedy = f"; see {context.command_path} --help" if context is not None else ""
        line = " ".join(f"{error.format_message().rstrip('.')}{remedy}".split())
        click.echo(f"gatekeeper: error: {line}", err=True)
        sys.exit(error.exit_code)
    except click.Abort:
        click.echo("gatekeeper: interrupted", err=True)
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)
