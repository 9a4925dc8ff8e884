"""The options of the data source: strings, with the names and meanings of those of the functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from pgdecode import RelationCatalog
from pgdecode.files.file_metadata import encoding_of
from pgdecode.files.payload_file import PayloadFile
from pgdecode.jobs.decode_run import CHANGES, MESSAGES
from pgdecode.protocol.errors import unknown_names
from pgdecode.protocol.json_document import load_json
from pgdecode.protocol.options import MAX_VALUE_BYTES, Unwrap, check_option, limits_with, stream_option
from pgdecode.rows.options import OF_TABLES, Options, TableFrameKeywords
from pgdecode.storage.errors import PathError
from pgdecode.types.user_types import UserType, overridden
from spark_udfs.jobs.job_config import ChangeJob, MessageJob
from spark_udfs.runtime.storage import is_path
from spark_udfs.schema.years import any_year

# The options of `table_changes` that are not about columns of a DataFrame.
_TYPES = get_type_hints(TableFrameKeywords)
_OF_ALL = ("mode", "empty", "max_value_bytes")
_OF_MESSAGES = ("keep", "in_stream")
_OF_TABLES = (*OF_TABLES, "years")
_OF_CHANGES = ("session", "catalog", "years", *(name for name in _TYPES if name not in _OF_ALL))


@dataclass(frozen=True)
class SourceOptions:
    """The options of one read or stream.

    Attributes
    ----------
    path : Path
        A Parquet file, or a folder.
    what : str
        "messages", "changes" or "schema.table".
    payload, position : str
    unwrap : {"auto", "none", "hex", "base64", "xlogdata"}
    session : str or None
    job : MessageJob or ChangeJob
        What to decode. Its types are those of the option; `with_types` adds those of files.
    any_year : bool
        The option `years`.
    max_files : int or None
        The option `maxFilesPerTrigger`.
    accept_gap : bool
    relation_id : int or None
        The OID that the table had in an earlier query.
    """

    path: Path
    what: str
    payload: str
    position: str
    unwrap: Unwrap
    session: str | None
    job: MessageJob | ChangeJob
    any_year: bool
    max_files: int | None
    accept_gap: bool
    relation_id: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> SourceOptions:
        """Parse the options of a data source. Spark ignores the case of their names.

        Raises
        ------
        ValueError
            For an option that does not exist or does not apply, or a value that an option does not have.
        """
        names = {name.lower(): name for name in _PARSERS}
        unknown = sorted(name for name in given if name.lower() not in names)
        if unknown:
            raise ValueError(f"no such option: {unknown_names(unknown, [*_PARSERS])}")
        found = {names[name.lower()]: _parsed(names[name.lower()], text) for name, text in given.items()}
        if "path" not in found:
            raise ValueError('the path is missing: use load("folder")')
        what = found.get("what", MESSAGES)
        if what not in (MESSAGES, CHANGES) and "." not in what:
            raise ValueError(f'what is "messages", "changes" or a table as "schema.table", not {what!r}')
        unwrap = found.get("unwrap", "auto")
        check_option("unwrap", unwrap, Unwrap)
        return cls(
            found["path"],
            what,
            found.get("payload", "data"),
            found.get("position", "seq"),
            unwrap,
            found.get("session"),
            _message_job(found) if what == MESSAGES else _change_job(what, found),
            any_year(found.get("years", "1-9999")),
            found.get("maxFilesPerTrigger"),
            found.get("accept_gap", False),
        )

    @property
    def table(self) -> str | None:
        """The table, if one is decoded."""
        return None if self.what in (MESSAGES, CHANGES) else self.what

    @property
    def needed(self) -> tuple[str, ...]:
        """Columns of the files in addition to the payload column, without repetition."""
        if isinstance(self.job, MessageJob):
            return self.job.keep
        return (self.position,) if self.session is None else tuple(dict.fromkeys((self.position, self.session)))

    def with_types(self, types: tuple[UserType, ...], files: Iterable[PayloadFile]) -> ChangeJob:
        """Add the types and the encoding in the footers of files to the job. The options take precedence."""
        assert isinstance(self.job, ChangeJob)
        given = self.job.options
        encoding = encoding_of(files, given.encoding)
        own = given.types if not types and given.types is None else overridden(types, given.types)
        return replace(self.job, options=replace(given, types=own, encoding=encoding))


def _parsed(name: str, text: str) -> Any:
    try:
        return _PARSERS[name](text)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"option {name}: {error}") from None


def _message_job(found: Mapping[str, Any]) -> MessageJob:
    _refuse(found, _OF_CHANGES, "changes and tables")
    return MessageJob(
        found.get("fields"),
        found.get("in_stream", "auto"),
        found.get("mode", "FAILFAST"),
        found.get("empty", "null"),
        limits_with(found.get("max_value_bytes", MAX_VALUE_BYTES)),
        found.get("keep") or (),
    )


def _change_job(what: str, found: Mapping[str, Any]) -> ChangeJob:
    _refuse(found, _OF_MESSAGES, "messages")
    if what == CHANGES:
        _refuse(found, _OF_TABLES, "tables")
    given = {name: value for name, value in found.items() if name in _TYPES}
    options = Options.of(given, None if what == CHANGES else what)
    name = None if what == CHANGES else what
    return ChangeJob((name,), found.get("fields"), options, found.get("catalog"), "parquet")


def _refuse(found: Mapping[str, Any], names: tuple[str, ...], of: str) -> None:
    wrong = [name for name in names if name in found]
    if wrong:
        raise ValueError(f"{', '.join(wrong)}: only for {of}")


def _path(text: str) -> Path:
    if text.startswith("file:"):
        text = "/" + text.removeprefix("file:").lstrip("/")
    if not is_path(text):
        raise PathError(f"{text}: is a URI; the data source reads folders of a file system that all machines share")
    # Absolute, because tasks may have another working directory.
    return Path(text).absolute()


def _names(text: str) -> tuple[str, ...]:
    """Parse a list of names: separated by commas, or as JSON, which allows all names."""
    if not text.lstrip().startswith("["):
        return tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    found = load_json(text)
    if not all(isinstance(name, str) for name in found):
        raise ValueError("the list has something other than names")
    return tuple(dict.fromkeys(found))


def _types(text: str) -> dict[str | int, str]:
    """Parse a JSON object of types. JSON has no numbers as keys, so OIDs are strings of digits."""
    return {int(name) if name.isdecimal() else name: type for name, type in _object(text).items()}


def _object(text: str) -> dict[str, Any]:
    found = load_json(text)
    if not isinstance(found, dict):
        raise ValueError('it is a JSON object, such as {"price": "numeric(20,4)"}')
    return found


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f'it is "true" or "false", not {text!r}')
    return text.lower() == "true"


def _in_stream(text: str) -> Any:
    return stream_option(_flag(text) if text.lower() in ("true", "false") else text)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"it is a number from 1, not {text!r}")
    return int(text)


_PARSERS: dict[str, Callable[[str], Any]] = {
    "path": _path,
    "what": str,
    "payload": str,
    "unwrap": str,
    "position": str,
    "session": str,
    "keep": _names,
    "fields": _names,
    "in_stream": _in_stream,
    **{name: _flag if kind is bool else _count if kind is int else str for name, kind in _TYPES.items()},
    "types": _types,
    "columns": _object,
    "renames": load_json,
    "catalog": RelationCatalog.from_json,
    "years": str,
    "maxFilesPerTrigger": _count,
    "accept_gap": _flag,
}
