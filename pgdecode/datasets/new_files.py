"""The files that a run creates, also in tasks on other machines."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from pathlib import Path

from pgdecode.datasets.file_digest import NewFile
from pgdecode.datasets.manifest import OutputFile
from pgdecode.datasets.state import LOG
from pgdecode.protocol.options import Format
from pgdecode.storage.object_path import FilePath, ObjectPath

# The folder of new files in a local folder, below that of the log.
NEW = "new"


@dataclass(frozen=True)
class WrittenFile:
    """A complete file of a run that has not committed. A task returns it to the driver.

    Attributes
    ----------
    path : Path or ObjectPath
        Where it is now.
    file : OutputFile
        With its name after the commit.
    """

    path: FilePath
    file: OutputFile


class NewOutput(NewFile):
    """A new output file, from `NewFiles.open`. Closing it makes it complete; an exception in its block removes it."""

    def __init__(self, path: FilePath, name: str) -> None:
        super().__init__(path)
        self._name = name

    def written(self, n_rows: int) -> WrittenFile:
        """Describe the file, once it is closed."""
        return WrittenFile(self.path, OutputFile(**vars(self.digested(self._name, n_rows))))


@dataclass(frozen=True)
class NewFiles:
    """Creates the files of a run. It can be pickled, for tasks on other machines, which share the folder.

    Attributes
    ----------
    folder : Path or ObjectPath
        Of the data set.
    number : int
        Of the run.
    is_first : bool
    run : str
        Identifies the run.
    file : Path or None
        The hidden name of the file, if the target is a single file.
    """

    folder: FilePath
    number: int
    is_first: bool
    run: str
    file: Path | None = None

    def open(
        self,
        stem: str,
        format: Format,
        *,
        folder: str = "",
        task: int | None = None,
        nth: int = 1,
        is_numbered: bool | None = None,
    ) -> NewOutput:
        """Create an output file. Close it, or use it in a `with` block.

        Several attempts of a task may write the same file. The driver accepts one of them (`Run.accept`), and the
        others are removed.

        Parameters
        ----------
        stem : str
            The beginning of its name: "changes", the name of a table or of an input file, or "part" for tasks. In an
            object store the name is unique. In a local folder it also has the number of the run, from the second on.
        format : {"parquet", "jsonl", "csv"}
        folder : str
            Of the output, if the run has several.
        task : int, optional
            Number of the task.
        nth : int
            From 2, the number of a further file with this stem.
        is_numbered : bool, optional
            Whether a local file has the number of the run in its name. By default from the second run on.
        """
        if isinstance(self.folder, ObjectPath):
            name = f"part-{self.number:010}-{task or 0:05}-{self.run}{unique()}.{format}"
        else:
            has_number = not self.is_first if is_numbered is None else is_numbered
            number = f"-{self.number:010}" if has_number else ""
            of_task = "" if task is None else f"-{task:05}"
            name = f"{stem}{number}{of_task}{'' if nth == 1 else f'-{nth}'}.{format}"
        name = f"{folder}/{name}" if folder else name
        if isinstance(self.folder, ObjectPath):
            return NewOutput(self.folder / name, name)
        return NewOutput(self.file or self.folder / LOG / NEW / unique(), name)

    def as_first(self) -> NewFiles:
        """Let the data set begin with this run, whose manifest lists all files."""
        return replace(self, is_first=True)

    def payload_path(self, task: int = 0) -> FilePath:
        """Make the path of a file with payloads of undecided transactions, for `PayloadWriter`."""
        return self.folder / LOG / f"payloads-{self.number:010}-{task:05}-{self.run}{unique()}.parquet"


def unique() -> str:
    """Return a random text for the name of a file."""
    return secrets.token_hex(4)
