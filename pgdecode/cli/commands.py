"""The command group."""

from __future__ import annotations

import click

from pgdecode.cli.capture_command import capture
from pgdecode.cli.cat_command import cat
from pgdecode.cli.clean_command import clean
from pgdecode.cli.decode_command import decode
from pgdecode.cli.demo_command import demo_command
from pgdecode.cli.inspect_command import inspect


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="pgdecode", message="%(prog)s %(version)s")
@click.pass_context
def pgdecode(context: click.Context) -> None:
    """Decode PostgreSQL logical replication messages (pgoutput) in Parquet files, one message per row.

    Exit codes: 0 done; 1 data cannot be decoded, or output cannot be written; 2 not possible as requested.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(2)


pgdecode.add_command(decode)
pgdecode.add_command(inspect)
pgdecode.add_command(cat)
pgdecode.add_command(capture)
pgdecode.add_command(clean)
pgdecode.add_command(demo_command)
