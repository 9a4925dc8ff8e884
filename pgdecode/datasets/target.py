"""Targets: where a run writes. A data set in a local folder or in an object store, or a single local file.

The commit of run n is the creation of the manifest `_pgdecode/<n>.json`, which fails if it exists.

In a local folder, the files of a run are below `_pgdecode/new` until the commit. Then they get their names. If the
process ends in between, the next run renames them. It also removes what no manifest names. Only one run at a time has
the lock.

In an object store, files get names of their own at once, with the number of the run. A run that loses against another
one removes its files. What a killed run has left has a number that is not greater than that of the next commit, and is
removed after it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pgdecode.datasets.errors import RunError, RunFault
from pgdecode.datasets.file_digest import FileDigest, NewFile
from pgdecode.datasets.manifest import Manifest, OutputFile, parse_manifest
from pgdecode.datasets.single_file import check_target, spill_folder, staged
from pgdecode.datasets.state import LOG, State, parse_state
from pgdecode.protocol.options import Format
from pgdecode.storage.durable import locked, sync, write_durably
from pgdecode.storage.errors import PathError, StorageError, TargetExists, storage_errors
from pgdecode.storage.object_path import FilePath, Location, ObjectPath, file_path, real_path
from pgdecode.storage.object_store import create_object, delete_objects, listed, read_object

_MANIFEST = re.compile(r"(\d{10})\.json")
_STATE = re.compile(r"(?:state|payloads)-(\d{10})[-.].+")
_OBJECT = re.compile(r"part-(\d{10})-\d{5}-([0-9a-f]{8})[0-9a-f]{8}\.\w+")
# Names of files that pgdecode and Spark write. A folder with any other file is not replaced.
_OURS = (".parquet", ".jsonl", ".csv", ".crc", "_SUCCESS")
_LOCK, _NEW, _SPILL = "lock", "new", "spill"
# In an object store it says that a first run has begun. Then files without a manifest are what it has left.
_BEGUN = "begun"


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
            name = f"part-{self.number:010}-{task or 0:05}-{self.run}{_unique()}.{format}"
        else:
            has_number = not self.is_first if is_numbered is None else is_numbered
            number = f"-{self.number:010}" if has_number else ""
            of_task = "" if task is None else f"-{task:05}"
            name = f"{stem}{number}{of_task}{'' if nth == 1 else f'-{nth}'}.{format}"
        name = f"{folder}/{name}" if folder else name
        if isinstance(self.folder, ObjectPath):
            return NewOutput(self.folder / name, name)
        return NewOutput(self.file or self.folder / LOG / _NEW / _unique(), name)

    def payload_path(self, task: int = 0) -> FilePath:
        """Make the path of a file with payloads of undecided transactions, for `PayloadWriter`."""
        return self.folder / LOG / f"payloads-{self.number:010}-{task:05}-{self.run}{_unique()}.parquet"


@dataclass
class Run:
    """A run that has begun.

    Attributes
    ----------
    last : Manifest or None
        Of the last run; None if the data set begins with this run.
    state : State
        After the last run.
    files : NewFiles
    spill : Path
        A folder for temporary files. It may not exist yet.
    """

    target: Target
    last: Manifest | None
    state: State
    files: NewFiles
    spill: Path
    replaced: Sequence[str] = ()
    is_committed: bool = field(default=False, init=False)

    def accept(self, written: WrittenFile) -> OutputFile:
        """Take a complete file into the output, and describe it for the manifest.

        Raises
        ------
        StorageError
            If the file is missing or has another size.
        """
        self.target.accept(written)
        return written.file

    def begin_anew(self) -> None:
        """Begin the data set with this run, and replace the output of those before."""
        self.replaced = sorted(self.target.replaced(has_log=self.last is not None, overwrite=True))
        self.files = replace(self.files, is_first=True)
        self.last, self.state = None, State()

    def commit(self, manifest: Manifest, state: State) -> Manifest:
        """Commit the run. Its files then get their names, and what is not needed any more is removed.

        Parameters
        ----------
        manifest : Manifest
            Of the run. `files` are those that were accepted.
        state : State
            After the run. Its payload files are in the log's folder: `NewFiles.payload_path` has named them.

        Returns
        -------
        Manifest
            Complete.

        Raises
        ------
        RunError
            If another run has committed meanwhile.
        """
        payloads = [replace(item, name=f"{LOG}/{item.name}") for item in state.payload_files.values()]
        states = [self.target.write_state(self.files, state.to_bytes()), *payloads]
        complete = replace(
            manifest,
            number=self.files.number,
            is_first=self.files.is_first,
            replaced=[*self.replaced],
            state=states,
        )
        content = complete.to_bytes()
        self.target.create(self.files, content)
        self.is_committed = True
        complete = parse_manifest(content, self.target.path)
        self.target.finish(complete)
        return complete


class Target:
    """Where runs write. `target_at` makes it.

    Attributes
    ----------
    path : Path or ObjectPath
        The folder of a data set, or a single file, as the caller has named it.
    folder : Path or ObjectPath
        The same for tasks, which may have another working directory.
    has_log : bool
        Whether it is a data set.
    """

    path: FilePath
    folder: FilePath
    has_log = True

    def last(self) -> Manifest | None:
        """Read the manifest of the last run; None if there is no run.

        Raises
        ------
        RunFault
            If it is damaged.
        """
        numbers = self.numbers()
        return self.manifest(numbers[-1]) if numbers else None

    def manifests(self) -> list[Manifest]:
        """Read the manifests of all runs whose output belongs to the data set, in order.

        Raises
        ------
        RunFault
            If there is no run, or a manifest is missing or damaged.
        """
        found: list[Manifest] = []
        for number in reversed(self.numbers()):
            found.append(self.manifest(number))
            if found[-1].is_first:
                return found[::-1]
        why = (
            f"{LOG} has no manifest of the first run" if found else f"has no {LOG}: it is not the folder of a data set"
        )
        raise RunFault(f"{self.path}: {why}")

    def manifest(self, number: int) -> Manifest:
        """Read the manifest of a run.

        Raises
        ------
        RunFault
            If it is missing, damaged or of another version.
        """
        path = self.path / LOG / f"{number:010}.json"
        content = self.read(path.name)
        if content is None:
            raise RunFault(f"{path}: is missing")
        return parse_manifest(content, path)

    def state(self, manifest: Manifest) -> State:
        """Load the state after a run.

        Raises
        ------
        RunFault
            If it is missing or damaged.
        """
        file, *payloads = manifest.state
        path = self.path / file.name
        content = self.read(path.name)
        if content is None:
            raise RunFault(f"{path}: is missing: the manifest names it")
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise RunFault(f"{path}: has another SHA-256 than in the manifest: it was changed or is damaged")
        return parse_state(content, path, self.folder / LOG, payloads)

    @contextmanager
    def begin(
        self,
        what: Sequence[str],
        options: Mapping[str, Any],
        *,
        source: FilePath | None = None,
        overwrite: bool = False,
    ) -> Iterator[Run]:
        """Begin a run. A block that does not commit leaves the target as it was.

        Parameters
        ----------
        what : sequence of str
            The outputs. Empty if the caller writes the output in its own way.
        options : mapping
            Options that change the result, as JSON values.
        source : Path, ObjectPath or None
            The input, if it is a path.
        overwrite : bool
            Begin the data set anew, and replace the output of all runs before.

        Raises
        ------
        TargetExists
            If there are files, but no data set. It is a FileExistsError.
        PathError
            If the target cannot be a data set, or is not apart from the input.
        RunError
            If an option has another value than in the last run, or if another run has the lock or has committed
            meanwhile.
        RunFault
            If the manifest or the state of the last run is damaged.
        """
        check_apart(self.path, source)
        with self.opened() as spill:
            numbers = self.numbers()
            number = numbers[-1] + 1 if numbers else 1
            last = None
            with suppress(RunFault) if overwrite else nullcontext():
                last = self.last()
                if last is not None:
                    self.finish(last)
            replaced: Collection[str] = ()
            if overwrite or not numbers:
                replaced = self.replaced(has_log=bool(numbers), overwrite=overwrite)
                last = None
            if not numbers:
                # Only now, because the manifests of a data set that is refused may have been moved away.
                self.finish(None)
            if last is not None:
                check_options(self.path, last, what, options)
            state = State() if last is None else self.state(last)
            self.prepare()
            files = NewFiles(self.folder, number, last is None, _unique())
            run = Run(self, last, state, files, spill, sorted(replaced))
            try:
                yield run
            except Exception as error:
                # It may be due to the other run, which removes what this one reads.
                if isinstance(error, RunError) or run.is_committed or number not in self.numbers():
                    raise
                raise self.lost(number) from error
            finally:
                if not run.is_committed:
                    self.discard(run)

    def lost(self, number: int) -> RunError:
        """Make the error of a run that has lost against another one."""
        return RunError(f"{self.path}: another run has written {LOG}/{number:010}.json meanwhile")

    def _known_outputs(self) -> list[str] | None:
        """List the output files of all runs; None if a manifest is damaged."""
        try:
            return [file.name for item in self.manifests() for file in item.files]
        except RunFault:
            return None

    # What the kinds of targets do in different ways.

    def opened(self) -> AbstractContextManager[Path]:
        """Keep other local runs out, and yield a folder for temporary files."""
        raise NotImplementedError

    def numbers(self) -> list[int]:
        """List the numbers of all manifests, in order."""
        raise NotImplementedError

    def read(self, name: str) -> bytes | None:
        """Read a file of the log; None if it is missing."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Make the folder of new files."""

    def replaced(self, *, has_log: bool, overwrite: bool) -> Collection[str]:
        """List the files that a first run replaces, or raise TargetExists or PathError, as `begin` does."""
        raise NotImplementedError

    def accept(self, written: WrittenFile) -> None:
        """Take a complete file into the output of a run, as `Run.accept` does."""
        raise NotImplementedError

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Write the state of a run."""
        raise NotImplementedError

    def create(self, files: NewFiles, content: bytes) -> None:
        """Create the manifest of a run, or raise RunError."""
        raise NotImplementedError

    def finish(self, last: Manifest | None) -> None:
        """Complete the last run after its commit, and remove what no manifest names. It may be called again."""
        raise NotImplementedError

    def discard(self, run: Run) -> None:
        """Remove what a run has left that has not committed."""
        raise NotImplementedError


class LocalFolder(Target):
    """A data set in a local folder."""

    folder: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = path.absolute()
        self.log = self.folder / LOG

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Keep other local runs out, and yield a folder for temporary files."""
        if not self.folder.is_dir():
            if os.path.lexists(self.folder):
                raise PathError(f"{self.path}: is not a folder")
            if not real_path(self.folder).parent.is_dir():
                raise PathError(f"{self.path}: there is no folder {self.path.parent}")
        is_new = not self.folder.exists()
        with storage_errors(self.path):
            self.log.mkdir(parents=True, exist_ok=True)
            try:
                with locked(self.log / _LOCK, RunError(f"{self.path}: another process is writing it now"), remove=True):
                    yield self.log / _SPILL
            finally:
                with suppress(OSError):
                    # A first run that fails leaves nothing. The folder stays if it is not empty.
                    self.log.rmdir()
                    if is_new:
                        self.folder.rmdir()

    def numbers(self) -> list[int]:
        """List the numbers of all manifests, in order."""
        return _numbers(self._names())

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.log)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, name: str) -> bytes | None:
        """Read a file of the log; None if it is missing."""
        try:
            return (self.log / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def prepare(self) -> None:
        """Make the folder of new files."""
        (self.log / _NEW).mkdir()

    def replaced(self, *, has_log: bool, overwrite: bool) -> Collection[str]:
        """List the files that a first run replaces, or raise TargetExists or PathError, as `begin` does."""
        found = []
        for folder, below, names in os.walk(self.folder):
            below[:] = [name for name in below if not name.startswith(("_", ".")) or "=" in name]
            found += [Path(folder, name).relative_to(self.folder).as_posix() for name in names]
        # Names such as _SUCCESS and .DS_Store are no output.
        outputs = [name for name in found if not name.rpartition("/")[2].startswith(("_", "."))]
        if not overwrite and outputs:
            raise TargetExists(f"{self.path}: has files such as {min(outputs)}, but no {LOG}: it is not a data set")
        if has_log and (known := self._known_outputs()) is not None:
            return known
        foreign = next((name for name in sorted(outputs) if not name.endswith(_OURS)), None)
        if foreign is not None:
            raise PathError(f"{self.path}: not replaced, because it has a file that pgdecode did not write: {foreign}")
        return outputs

    def accept(self, written: WrittenFile) -> None:
        """Take a complete file into the output of a run, as `Run.accept` does."""
        assert isinstance(written.path, Path)
        n_bytes = written.path.stat().st_size if written.path.exists() else None
        if n_bytes != written.file.bytes:
            raise StorageError(
                self.path / written.file.name, f"has {n_bytes} bytes, its task wrote {written.file.bytes}"
            )
        new = self.log / _NEW / written.file.name
        new.parent.mkdir(parents=True, exist_ok=True)
        written.path.replace(new)

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Write the state of a run."""
        name = f"state-{files.number:010}.json.zst"
        write_durably(self.log / name, content)
        return _digest(name, content)

    def create(self, files: NewFiles, content: bytes) -> None:
        """Create the manifest of a run, or raise RunError."""
        for folder, _, _ in os.walk(self.log / _NEW):
            sync(Path(folder))
        try:
            write_durably(self.log / f"{files.number:010}.json", content, create=True)
        except FileExistsError:
            raise self.lost(files.number) from None

    def finish(self, last: Manifest | None) -> None:
        """Complete the last run after its commit, and remove what no manifest names. It may be called again."""
        kept = set()
        if last is not None:
            kept = {item.name.rpartition("/")[2] for item in last.state}
            if (self.log / _NEW).exists():
                self._rename(last)
            names = {file.name for file in last.files}
            for name in last.replaced:
                if name not in names:
                    _remove_file(self.folder, name)
        for name in self._names():
            found = _MANIFEST.fullmatch(name)
            is_before = found is not None and last is not None and last.is_first and int(found[1]) < last.number
            if is_before or (_STATE.fullmatch(name) and name not in kept) or name.endswith(".partial"):
                (self.log / name).unlink(missing_ok=True)
        self._remove_new()

    def _rename(self, last: Manifest) -> None:
        """Give the files of a committed run their names, unless they have them already."""
        folders = set()
        for file in last.files:
            new, path = self.log / _NEW / file.name, self.folder / file.name
            if new.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                new.replace(path)
                folders.add(path.parent)
        for folder in folders:
            sync(folder)

    def discard(self, run: Run) -> None:
        """Remove what a run has left that has not committed."""
        for name in self._names():
            found = _STATE.fullmatch(name)
            if found is not None and int(found[1]) == run.files.number:
                (self.log / name).unlink(missing_ok=True)
        self._remove_new()

    def _remove_new(self) -> None:
        # Renamed first, so that a task of a run that was killed cannot create a file while the folder is removed.
        if (self.log / _NEW).exists():
            (self.log / _NEW).rename(self.log / f"{_NEW}-{_unique()}")
        for name in self._names():
            if name.startswith((f"{_NEW}-", _SPILL)):
                shutil.rmtree(self.log / name, ignore_errors=True)


class ObjectFolder(Target):
    """A data set in an object store."""

    folder: ObjectPath

    def __init__(self, path: ObjectPath) -> None:
        self.path = self.folder = replace(path, size=-1, e_tag=None)

    @contextmanager
    def opened(self) -> Iterator[Path]:
        """Yield a folder for temporary files. Nothing keeps other runs out."""
        with tempfile.TemporaryDirectory(prefix=".pgdecode-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    def numbers(self) -> list[int]:
        """List the numbers of all manifests, in order."""
        return _numbers(item.name for item in self._log())

    def _log(self) -> list[ObjectPath]:
        return [item for item, _ in listed(self.folder / LOG)]

    def read(self, name: str) -> bytes | None:
        """Read an object of the log; None if it is missing."""
        found = read_object(self.folder / LOG / name)
        return None if found is None else found[0]

    def replaced(self, *, has_log: bool, overwrite: bool) -> Collection[str]:
        """List the objects that a first run replaces, or raise TargetExists or PathError, as `begin` does."""
        if has_log and (known := self._known_outputs()) is not None:
            return known
        found = [item.below(self.folder) for item, _ in listed(self.folder)]
        outputs = [name for name in found if not name.startswith(f"{LOG}/")]
        has_begun = len(outputs) < len(found)
        if outputs and not has_begun and not overwrite:
            raise TargetExists(f"{self.path}: has objects such as {min(outputs)}, but no {LOG}: it is not a data set")
        foreign = next((name for name in outputs if not _OBJECT.fullmatch(name.rpartition("/")[2])), None)
        if foreign is not None:
            raise PathError(
                f"{self.path}: not replaced, because it has an object that pgdecode did not write: {foreign}"
            )
        create_object(self.folder / LOG / _BEGUN, b"")
        return outputs if overwrite else ()

    def accept(self, written: WrittenFile) -> None:
        """Take a complete object into the output of a run, as `Run.accept` does."""
        # The store has confirmed its bytes when the upload was completed.

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Write the state of a run."""
        name = f"state-{files.number:010}-{files.run}.json.zst"
        create_object(self.folder / LOG / name, content)
        return _digest(name, content)

    def create(self, files: NewFiles, content: bytes) -> None:
        """Create the manifest of a run, or raise RunError."""
        name = f"{files.number:010}.json"
        # A request that was repeated after a lost response finds its own manifest.
        if not create_object(self.folder / LOG / name, content) and self.read(name) != content:
            raise self.lost(files.number)

    def finish(self, last: Manifest | None) -> None:
        """Remove what no manifest names, and whose number says that no later run may name it."""
        if last is None:
            return
        kept = {item.name.rpartition("/")[2] for item in last.state}
        manifests = [last]
        obsolete = []
        for item in self._log():
            found, number = _STATE.fullmatch(item.name), _MANIFEST.fullmatch(item.name)
            is_before = number is not None and last.is_first and int(number[1]) < last.number
            if is_before or item.name == _BEGUN or (found and int(found[1]) <= last.number and item.name not in kept):
                obsolete.append(item)
            elif number is not None and int(number[1]) == last.number - 1:
                manifests.append(self.manifest(last.number - 1))
        named = {file.name for manifest in manifests for file in manifest.files}
        obsolete += [self.folder / name for name in last.replaced if name not in named]
        # The runs of these two numbers; those before were looked at by the runs before.
        numbers = {manifest.number for manifest in manifests}
        for folder in {name.rpartition("/")[0] for name in named} or {""}:
            place = self.folder / folder if folder else self.folder
            for item, _ in listed(place, after=f"part-{min(numbers):010}"):
                found = _OBJECT.fullmatch(item.name)
                if found and int(found[1]) in numbers and item.below(self.folder) not in named:
                    obsolete.append(item)
        delete_objects(obsolete)

    def discard(self, run: Run) -> None:
        """Remove what a run has left that has not committed."""
        files = run.files
        ours = f"-{files.number:010}-"
        left = [item for item, _ in listed(self.folder) if ours in item.name and f"-{files.run}" in item.name]
        delete_objects(left)
        rest = [item for item, _ in listed(self.folder)]
        if [item.name for item in rest] == [_BEGUN]:
            delete_objects(rest)


class SingleFile(Target):
    """A local file, without a log and a state."""

    has_log = False

    def __init__(self, path: Path) -> None:
        self.path = self.folder = self.file = path

    @contextmanager
    def begin(
        self,
        what: Sequence[str],
        options: Mapping[str, Any],
        *,
        source: FilePath | None = None,
        overwrite: bool = False,
    ) -> Iterator[Run]:
        """Begin to write the file under a hidden name. It gets its name at the end of the block.

        Raises
        ------
        TargetExists, PathError, RunError
            As in `single_file.check_target` and `single_file.staged`.
        """
        check_target(self.file, source if isinstance(source, Path) else None, overwrite=overwrite)
        with staged(self.file, overwrite=overwrite) as hidden, spill_folder(self.file) as spill:
            yield Run(self, None, State(), NewFiles(self.path, 1, True, _unique(), hidden), spill)

    def accept(self, written: WrittenFile) -> None:
        """Take the file, which has its hidden name."""

    def write_state(self, files: NewFiles, content: bytes) -> FileDigest:
        """Describe the state, which is not written."""
        return _digest("", content)

    def create(self, files: NewFiles, content: bytes) -> None:
        """Do nothing, because there is no log."""

    def finish(self, last: Manifest | None) -> None:
        """Do nothing. The file gets its name at the end of the block."""


def target_at(path: FilePath, *, as_file: bool = False) -> Target:
    """Return the target at a path."""
    if isinstance(path, ObjectPath):
        return ObjectFolder(path)
    return SingleFile(path) if as_file else LocalFolder(path)


def read_manifests(location: Location, storage_options: Mapping[str, Any] | None = None) -> list[Manifest]:
    """Read the manifests of the runs of a data set, in order. They list its files.

    Parameters
    ----------
    location : path or URI
        The folder of the data set. Names of files are relative to it.
    storage_options : mapping, optional
        How to connect to an object store, as in `spark_udfs.decode_files`.

    Raises
    ------
    RunFault
        If it is not a data set, or a manifest is missing or damaged.
    AccessDenied, StoreUnreachable
        If an object store refuses the request, or does not answer.
    """
    return target_at(file_path(location, storage_options)).manifests()


def check_apart(target: FilePath, source: FilePath | None) -> None:
    """Check that neither of input and output contains the other.

    Raises
    ------
    PathError
        If one does.
    """
    if isinstance(target, ObjectPath) and isinstance(source, ObjectPath):
        is_inside, contains = source.contains(target), target.contains(source)
    elif isinstance(target, Path) and isinstance(source, Path):
        real, raw = real_path(target), real_path(source)
        if real == raw:
            raise PathError(f"{target}: is the input")
        is_inside, contains = raw in real.parents, real in raw.parents
    else:
        return
    if is_inside or contains:
        raise PathError(f"{target}: {'is inside' if is_inside else 'contains'} the input")


def check_options(path: FilePath, last: Manifest, what: Sequence[str], options: Mapping[str, Any]) -> None:
    """Check that a run writes what the last run wrote, with the same meaning. Empty outputs are of Python.

    Raises
    ------
    RunError
        If an option that both have has another value.
    """
    before, now = dict(last.options), json.loads(json.dumps(dict(options)))
    names = [name for name in now if name in before and before[name] != now[name]]
    differing = [f"{name} {_shown(before[name])}, not {_shown(now[name])}" for name in names]
    if last.what and what and sorted(last.what) != sorted(what):
        differing.insert(0, f"{', '.join(last.what)}, not {', '.join(what)}")
    if differing:
        raise RunError(
            f"{path}: was written with {'; '.join(differing)}: use the same options, or another folder, or decode "
            "everything again with overwrite=True"
        )


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name)))


def _digest(name: str, content: bytes) -> FileDigest:
    return FileDigest(f"{LOG}/{name}", 1, len(content), hashlib.sha256(content).hexdigest())


def _remove_file(folder: Path, name: str) -> None:
    """Remove a file, and the folders below `folder` that are then empty."""
    (folder / name).unlink(missing_ok=True)
    for parent in Path(name).parents[:-1]:
        with suppress(OSError):
            (folder / parent).rmdir()


def _unique() -> str:
    return secrets.token_hex(4)
