"""The command `clean`: removes what killed runs have left."""

from __future__ import annotations

import re
from datetime import timedelta

import click

from pgdecode.cli import parameters
from pgdecode.cli.terminal import counted, standard_output
from pgdecode.files.envelope_text import printable
from pgdecode.runs.leftovers import remove_leftovers
from pgdecode.storage.object_path import file_path

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _duration(context: click.Context, option: click.Parameter, value: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6})([smhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration such as 90m, 12h or 7d", context, option)
    # A hundred years are more than any file is old, and a date that long ago exists.
    return min(timedelta(**{_UNITS[found[2]]: int(found[1])}), timedelta(days=36_525))


@click.command(short_help="Remove what killed runs have left.")
@click.argument("location", type=parameters.location, metavar="PATH")
@click.option(
    "--older-than",
    default="1d",
    show_default=True,
    metavar="DURATION",
    callback=_duration,
    help="Only what was written longer ago, such as 90m, 12h or 7d. It must be longer than any run takes.",
)
@parameters.storage_options
def clean(location: str, older_than: timedelta, storage_options: dict[str, str]) -> None:
    """Remove what killed runs have left at PATH or below it, a folder or s3://, gs://, az:// or abfss://.

    In an object store: files that no manifest names, claims, and on S3 uploads that were not completed. In a local
    folder: hidden temporary files and folders beside outputs. Each is printed.
    """
    removed = remove_leftovers(file_path(location, storage_options), older_than)
    with standard_output() as write:
        for name in removed:
            write(f"{printable(name)}\n")
    click.echo(f"{counted(len(removed), 'leftover')} removed", err=True)
