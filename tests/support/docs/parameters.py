"""Parameters on the reference pages: those of the signature with their defaults, and names that are listed together."""

from __future__ import annotations

import inspect
import pydoc
from itertools import groupby
from typing import Any

import griffe

SECTIONS = griffe.DocstringSectionParameters, griffe.DocstringSectionOtherParameters


class SharedItems(griffe.Extension):
    """Correct what griffe makes of an item `a, b : type`: both names have the type and the default of the first."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        for item in documented(pkg):
            assert item.docstring
            # Before the docstring is parsed, which takes types from the signature.
            options = listed_options(item)
            sections = [section for section in item.docstring.parsed if isinstance(section, SECTIONS)]
            for section in sections:
                section.value = corrected(section.value, item.parameters)
            described = {name for section in sections for one in section.value for name in one.name.split(", ")}
            for one in (one for section in sections for one in section.value if one.name == "**options" and options):
                one.name, one.annotation, one.value = ", ".join(sorted(options - described)), None, None
            if options:
                del item.parameters["options"]


def listed_options(owner: griffe.Class | griffe.Function) -> set[str]:
    """Add the options of `**options: Unpack[Keywords]` to a signature, as `help` shows them, and return their names."""
    function = owner.members.get("__init__") if isinstance(owner, griffe.Class) else owner
    if not isinstance(function, griffe.Function) or "Unpack" not in str([*function.parameters][-1:]):
        return set()
    parameters = inspect.signature(pydoc.locate(function.path)).parameters  # type: ignore[arg-type]
    options = {name: item for name, item in parameters.items() if name not in function.parameters}
    for name, item in options.items():
        kind, default = griffe.ParameterKind.keyword_only, repr(item.default)
        function.parameters.add(griffe.Parameter(name, kind=kind, annotation=item.annotation, default=default))
    return set(options)


def documented(owner: griffe.Object) -> list[griffe.Class | griffe.Function]:
    """All functions and classes with a docstring below an object."""
    found: list[griffe.Class | griffe.Function] = []
    for member in owner.members.values():
        if isinstance(member, griffe.Class | griffe.Function) and member.docstring:
            found.append(member)
        if isinstance(member, griffe.Module | griffe.Class):
            found += documented(member)
    return found


def corrected(items: list[griffe.DocstringParameter], signature: griffe.Parameters) -> list[griffe.DocstringParameter]:
    """Take each default from the signature, and show names without a type of their own as one item."""
    found = []
    for (text, annotation), group in groupby(items, key=lambda item: (item.description, item.annotation)):
        names = [item.name for item in group]
        known = [signature[name] for name in names if name in signature]
        if len(names) > 1 and known and annotation is known[0].annotation:
            found.append(griffe.DocstringParameter(", ".join(names), description=text))
            continue
        for name in names:
            default = signature[name].default if name in signature else None
            found.append(griffe.DocstringParameter(name, value=default, annotation=annotation, description=text))
    return found
