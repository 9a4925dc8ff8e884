"""The command group."""

from __future__ import annotations

from importlib import import_module

import click

from pgdecode import __version__

# The module and the name of each command.
COMMANDS = {
    "apply": ("lake.apply_command", "apply_command"),
    "capture": ("capture_command", "capture"),
    "cat": ("cat_command", "cat"),
    "decode": ("decode_command", "decode"),
    "demo": ("demo_command", "demo_command"),
    "inspect": ("inspect_command", "inspect"),
    "sync": ("lake.sync_command", "sync_command"),
    "verify": ("lake.verify_command", "verify_command"),
}


def command_named(name: str) -> click.Command:
    """Import a command."""
    module, variable = COMMANDS[name]
    command: click.Command = getattr(import_module(f"pgdecode.cli.{module}"), variable)
    return command


class _Commands(click.Group):
    """A group that imports a command when it is called, because importing all takes longer."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        """Return a command."""
        return command_named(name) if name in COMMANDS else None


@click.group(
    cls=_Commands,
    commands={name: click.Command(name) for name in COMMANDS},  # only for their names, also in suggestions
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.pass_context
def pgdecode(context: click.Context) -> None:
    """Decode PostgreSQL logical replication messages (pgoutput) in Parquet files, one message per row.

    Exit codes: 0 done; 1 data cannot be decoded, or output cannot be written; 2 not possible as requested.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)
