"""Runs, and the protocol of the targets to which they write.

The commit of run n is the creation of the manifest `_pgdecode/<n>.json`, which fails if it exists. Until then no reader
sees the files of the run. `LocalFolder`, `ObjectFolder` and `SingleFile` are the kinds of targets.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pgdecode.datasets.errors import OtherWriter, RunError, RunFault
from pgdecode.datasets.file_digest import FileDigest
from pgdecode.datasets.manifest import Manifest, OutputFile, parse_manifest
from pgdecode.datasets.new_files import NewFiles, WrittenFile, unique
from pgdecode.datasets.state import LOG, State, parse_state
from pgdecode.storage.errors import PathError
from pgdecode.storage.object_path import FilePath, ObjectPath, real_path

MANIFEST = re.compile(r"(\d{10})\.json")
STATE = re.compile(r"(?:state|payloads)-(\d{10})[-.].+")


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
        # Whatever interrupts the request, the manifest may exist. Then the files that it names must stay.
        self.is_committed = True
        try:
            self.target.create(self.files, content)
        except BaseException as error:
            self.is_committed = not isinstance(error, RunError) and self.target.may_have(self.files.number)
            raise
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
            try:
                state = State() if last is None else self.state(last)
            except RunFault as error:
                # Another run removes the state before its own.
                raise (self.lost(number) if number in self.numbers() else error) from None
            self.prepare()
            files = NewFiles(self.folder, number, last is None, unique())
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

    def lost(self, number: int) -> OtherWriter:
        """Make the error of a run that has lost against another one."""
        return OtherWriter(f"{self.path}: another run has written {LOG}/{number:010}.json meanwhile")

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

    def may_have(self, number: int) -> bool:
        """Whether the manifest of a run may exist, though `create` has failed."""
        return number in self.numbers()

    def finish(self, last: Manifest | None) -> None:
        """Complete the last run after its commit, and remove what no manifest names. It may be called again."""
        raise NotImplementedError

    def discard(self, run: Run) -> None:
        """Remove what a run has left that has not committed."""
        raise NotImplementedError


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


def numbers_in(names: Iterable[str]) -> list[int]:
    """Return the numbers of the manifests among the files of a log, in order."""
    return sorted(int(found[1]) for name in names if (found := MANIFEST.fullmatch(name)))


def state_digest(name: str, content: bytes) -> FileDigest:
    """Describe the file of a state."""
    return FileDigest(f"{LOG}/{name}", 1, len(content), hashlib.sha256(content).hexdigest())
