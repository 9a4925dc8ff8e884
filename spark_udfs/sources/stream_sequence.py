"""The sequence of files that a stream reads: its offsets, and the checks that the files stay as they were."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from pgdecode.files.file_metadata import accepted_gaps, catalog_of, source_of, user_types_of
from pgdecode.types.user_types import UserType
from spark_udfs.jobs.job_config import ChangeJob
from spark_udfs.sources.payload_folder import FilesChanged, PayloadFolder, PositionedFile
from spark_udfs.sources.sequence_index import SequenceIndex
from spark_udfs.sources.source_options import SourceOptions

_FORMAT_VERSION = 1


@dataclass(frozen=True)
class Offset:
    """The end of a file.

    Attributes
    ----------
    position : int
        Last position of the file; -1 before the first file.
    open : int
        Where the oldest transaction without an outcome began; -1 without one.
    start : int
        First position of the first file that a restart must read, to know relations and open transactions.
    files : int
        Number of files from there to the end.
    digest : int
        Of these files, in 64 bits. It does not depend on their order.
    earlier : int
        Number of files before `start`.
    """

    position: int = -1
    open: int = -1
    start: int = -1
    files: int = 0
    digest: int = 0
    earlier: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the value that Spark stores in the checkpoint."""
        return {"version": _FORMAT_VERSION, **asdict(self), "digest": f"{self.digest:016x}"}

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Offset:
        """Read a value from a checkpoint.

        Raises
        ------
        ValueError
            If it is not an offset, or one of another version.
        """
        values = {name: value for name, value in plain.items() if name != "version"}
        if plain.get("version") != _FORMAT_VERSION or set(values) != set(cls.__dataclass_fields__):
            raise ValueError(
                f"the checkpoint has an offset of another source or version: {sorted(plain)}; this version of "
                f"pgdecode reads version {_FORMAT_VERSION}"
            )
        return cls(**{**values, "digest": int(values["digest"], 16)})

    def is_end_of_same(self, other: Offset) -> bool:
        """Whether the files up to another offset are the same. Files before `start` may have been removed."""
        return replace(self, earlier=0) == replace(other, earlier=0)


class StreamSequence:
    """Follows the files of a folder in order.

    Parameters
    ----------
    options : SourceOptions
    start : Offset or None
        Where the query continues. None: not known, so all files are read from the first one.
    """

    def __init__(self, options: SourceOptions, start: Offset | None) -> None:
        self.options = options
        self.folder = PayloadFolder(options)
        self.index: SequenceIndex | None = None
        self.offsets = [Offset()]
        self.last_file: PositionedFile | None = None
        self.folder.refresh()
        if start is not None and start.position >= 0:
            self._restore(start)

    @property
    def end(self) -> Offset:
        """The end of the files that have been read."""
        return self.offsets[-1]

    def types_at(self, end: Offset) -> tuple[UserType, ...]:
        """Read the types in the footers of the files up to an offset."""
        return user_types_of(item.file for item in self._files_from(end.start) if item.first <= end.position)

    def next_offset(self, start: Offset, most_files: int | None, until: int | None = None) -> Offset:
        """Find where the next micro-batch ends.

        Parameters
        ----------
        start : Offset
            Where it begins.
        most_files : int, optional
            The greatest number of files.
        until : int, optional
            Do not go beyond this position.

        Raises
        ------
        FilesChanged, FileFault
        """
        self._refresh()
        left = [item for item in self.folder.files if item.first > self.end.position]
        for item in left:
            n_done = sum(offset.position > start.position for offset in self.offsets)
            if (until is not None and item.last > until) or (most_files is not None and n_done >= most_files):
                break
            self._add(item)
        found = [offset for offset in self.offsets if offset.position > start.position]
        if until is not None:
            found = [offset for offset in found if offset.position <= until]
        return found[:most_files][-1] if found else start

    def check(self, start: Offset, end: Offset) -> None:
        """Check that a micro-batch is about the files that were there when it was planned first. Read up to its end.

        Raises
        ------
        FilesChanged
        """
        if self.end.position < end.position:
            for item in [item for item in self.folder.files if item.first > self.end.position]:
                if item.first <= end.position:
                    self._add(item)
        for offset in (start, end):
            self._check_known(offset)

    def files_between(self, start: Offset, end: Offset) -> list[PositionedFile]:
        """List the files of a micro-batch."""
        return [item for item in self.folder.files if start.position < item.first <= end.position]

    def forget(self, end: Offset) -> None:
        """Forget what is not needed after an offset."""
        self.offsets = [offset for offset in self.offsets if offset.position >= end.position] or self.offsets[-1:]
        if self.index is not None:
            self.index.forget(end.position)

    def _refresh(self) -> None:
        known = {item.path for item in self.folder.files}
        for item in self.folder.refresh(self.end.start):
            if item.first <= self.end.position and item.path not in known:
                raise self._too_late(item)

    def _too_late(self, item: PositionedFile) -> FilesChanged:
        name = self.options.position
        return FilesChanged(
            f"{item.path}: came too late: it begins at {name} {item.first}, but the stream has read up to "
            f"{name} {self.end.position}"
        )

    def _files_from(self, position: int) -> Sequence[PositionedFile]:
        return [item for item in self.folder.files if item.first >= position]

    def _restore(self, start: Offset) -> None:
        """Read the messages of earlier files that the state at an offset needs."""
        for item in self._files_from(start.start):
            if item.first <= start.position:
                self._add(item)
        self.offsets[-1] = replace(self.end, earlier=start.earlier)
        self._check_known(start)

    def _add(self, item: PositionedFile) -> None:
        """Read the next file."""
        accepted_gaps([item.file], accept_gap=self.options.accept_gap)
        before = self.end
        job = self.options.job
        if isinstance(job, ChangeJob) and self.index is None:
            self.index = SequenceIndex(self.options, job.catalog or catalog_of([item.file]), item.first)
        if self.last_file is not None:
            source_of([self.last_file.file, item.file])
        if before.position < 0:
            earlier = sum(other.first < item.first for other in self.folder.files)
            before = Offset(start=item.first, earlier=earlier)
        elif (self.index is None or self.index.is_clear) and catalog_of([item.file]) is not None:
            # The footer has the visible relations, so that a restart need not read earlier files.
            before = Offset(before.position, start=item.first, earlier=before.earlier + before.files)
        if self.index is not None:
            self.index.know(catalog_of([item.file]), item.first)
            self.index.add([item.file])
        self.last_file = item
        self.offsets.append(
            replace(
                before,
                position=item.last,
                open=-1 if self.index is None else self.index.oldest_open,
                files=before.files + 1,
                digest=(before.digest + item.digest) % 2**64,
            )
        )

    def _check_known(self, offset: Offset) -> None:
        """Check that an offset of the checkpoint is the end of a file, and that the files up to it are the same."""
        if offset.position < 0:
            return
        earlier = sum(item.first < offset.start for item in self.folder.files)
        if earlier > offset.earlier:
            name = self.options.position
            raise FilesChanged(
                f"{self.options.path}: files came too late: the stream has read "
                f"{offset.earlier} files that begin before {name} {offset.start}, but now there are {earlier}"
            )
        place = bisect_right(self.offsets, offset.position, key=lambda item: item.position) - 1
        found = self.offsets[place]
        if found.position != offset.position or not found.is_end_of_same(offset):
            raise self._changed(offset)

    def _changed(self, offset: Offset) -> FilesChanged:
        """Describe how the files differ from those up to an offset."""
        name = self.options.position
        where = f"{self.options.path}: the stream has read {offset.files} files from {name} {offset.start} to "
        where += f"{offset.position}"
        present = [item for item in self._files_from(offset.start) if item.first <= offset.position]
        total = sum(item.digest for item in present) % 2**64
        if len(present) == offset.files and total == offset.digest:
            return FilesChanged(
                f"{where}, and they are the same, but the state after them is not: has an option changed, or a file "
                "before them been removed?"
            )
        extra = [item for item in present if item.digest == (total - offset.digest) % 2**64]
        if len(present) == offset.files + 1 and extra:
            return FilesChanged(f"{where}, but {extra[0].path} came later, and begins at {name} {extra[0].first}")
        if len(present) == offset.files:
            return FilesChanged(f"{where}, but one of them has changed")
        what = "were removed" if len(present) < offset.files else "came later"
        return FilesChanged(f"{where}, but now there are {len(present)}: files {what}")
