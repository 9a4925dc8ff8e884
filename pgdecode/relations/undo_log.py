"""An undo log: a call that fails leaves the state unchanged, at a cost independent of the size of the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_ABSENT = object()


class UndoLog:
    """Makes changes and records how to undo each of them.

    What is recorded also undoes a change that was not made, because Ctrl-C may come between the two.
    """

    def __init__(self) -> None:
        self._undo: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def record(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """Record the call that undoes the next change."""
        self._undo.append((undo, arguments))

    def put(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        """Set an item of a dict."""
        self.record(_restore, mapping, key, mapping.get(key, _ABSENT))
        mapping[key] = value

    def pop(self, mapping: dict[Any, Any], key: Any) -> Any:
        """Remove an item of a dict and return it; None if the key is missing."""
        if key not in mapping:
            return None
        self.record(mapping.__setitem__, key, mapping[key])
        return mapping.pop(key)

    def set_attribute(self, item: Any, name: str, value: Any) -> None:
        """Set an attribute."""
        self.record(setattr, item, name, getattr(item, name))
        setattr(item, name, value)

    def append(self, items: list[Any], item: Any) -> None:
        """Append to a list."""
        self.record(_cut, items, len(items))
        items.append(item)

    def add(self, items: set[Any], item: Any) -> None:
        """Add to a set."""
        if item not in items:
            self.record(items.discard, item)
            items.add(item)

    def discard(self, items: set[Any], item: Any) -> None:
        """Remove from a set, if it is there."""
        if item in items:
            self.record(items.add, item)
            items.discard(item)

    def clear(self) -> None:
        """Keep the changes and forget how to undo them."""
        self._undo.clear()

    def rollback(self) -> None:
        """Undo all changes, the last one first."""
        while self._undo:
            undo, arguments = self._undo.pop()
            undo(*arguments)


class NoUndoLog(UndoLog):
    """Makes changes without recording how to undo them."""

    def record(self, undo: Callable[..., Any], *arguments: Any) -> None:
        """Do nothing."""


def _cut(items: list[Any], n: int) -> None:
    del items[n:]


def _restore(mapping: dict[Any, Any], key: Any, value: Any) -> None:
    if value is _ABSENT:
        mapping.pop(key, None)
    else:
        mapping[key] = value
