"""Runs: what a run leaves beside its output, so that the next run, on any engine, continues from there.

An output folder:

    part-00000.parquet ...     the output
    _manifest.json             written last: with it, the run is complete (`manifest`)
    _state/state.json          small: positions, last LSN, stream state (`state_files`)
    _state/catalog.parquet     versions of relations, and where each is visible
    _state/transactions.parquet    undecided transactions, with the ranges of their payloads
    _state/payloads-*.parquet  payloads of undecided transactions (`payload_ranges`)

The manifest has the SHA-256 of all these files, so the SHA-256 of a manifest identifies a run. A manifest names the run
before it. The next run links the payload files that are still needed into its own state, and adds new ones. So the
payloads of an undecided transaction are written once, and `state.json` does not depend on their number.

A run claims the run before it (`claim`), checks that its input follows (`continuity`), writes its output and its state,
and commits by writing its manifest. This package knows the files. `changes.stored_state` converts a `ReplicationState`
to their contents and back, and does not read payloads until their transaction ends.

An engine with tasks does the same: each task writes a payload file by `PayloadWriter`, named by its number, and returns
`ranges` and `file`, which are small. The driver adds them to those of the state before, links its files by `take_over`,
and writes the small files by `write_state`. To read, tasks take ranges, by `PayloadReader`.
"""
