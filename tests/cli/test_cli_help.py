"""The help of commands: the first page explains the usual options, and --help-all explains all."""

from __future__ import annotations

import re

import click
import pytest

from pgdecode.cli.commands import COMMANDS, command_named
from pgdecode.cli.parameters import GroupedCommand
from support.shell import Done, Shell

GROUPED = [name for name in COMMANDS if isinstance(command_named(name), GroupedCommand)]


def explained(done: Done) -> set[str]:
    """The options that a page explains."""
    return set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", done.out, re.MULTILINE))


def options_of(command: str) -> set[str]:
    return {item.opts[0] for item in command_named(command).params if isinstance(item, click.Option)}


@pytest.mark.parametrize("command", GROUPED)
def test_the_first_page_explains_at_most_twenty_parameters_and_names_the_others(command: str, run: Shell) -> None:
    page = run(command, "--help")
    assert page.code == 0
    assert len(explained(page)) <= 20
    assert set(re.findall(r"--[a-z][a-z-]+", page.out)) >= options_of(command)


@pytest.mark.parametrize("command", GROUPED)
def test_all_options_are_explained_on_request(command: str, run: Shell) -> None:
    page = run(command, "--help-all")
    assert page.code == 0
    assert explained(page) == options_of(command) | {"--help", "--help-all"}
    assert "More options" not in page.out


def test_each_group_of_the_help_is_named_once(run: Shell) -> None:
    headings = re.findall(r"^[A-Z][\w ,-]+:$", run("decode", "--help-all").out, re.MULTILINE)
    assert len(headings) == len(set(headings)) > 5
