"""Random, mutated and misplaced payloads: never more than the faulty row is lost, and no memory is spent on claims."""

from __future__ import annotations

import random
import subprocess
import sys
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode.protocol.messages import MESSAGES, Message
from support import captures
from support.compare import (
    NULL_ROW,
    assert_verdicts,
    decode_verdict,
    failfast_verdict,
    fits_datetime,
    permissive_verdicts,
    reference_verdict,
    rows_of,
)
from support.generators import encoder
from support.generators.samples import SAMPLES, Sample, each_sample
from support.oracles.reference import is_well_formed, stream_states
from support.tiers import full

TAGS = "".join(message.tag for message in MESSAGES).encode()


# -- random and mutated ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_stream", [full(False, id="plain"), pytest.param(True, id="streamed")])
@pytest.mark.parametrize("tags", [bytes(range(256)), TAGS], ids=["any first byte", "a tag first"])
def test_0_to_64_random_bytes(tags: bytes, in_stream: bool, rng: random.Random) -> None:
    payloads = [(bytes([rng.choice(tags)]) + rng.randbytes(64))[: n % 65] for n in range(65 * 100)]
    assert permissive_verdicts(payloads, in_stream) == [reference_verdict(payload, in_stream) for payload in payloads]
    assert_verdicts(payloads[: 65 * 20], in_stream)


@pytest.mark.full
@pytest.mark.parametrize("in_stream", [False, True], ids=["plain", "streamed"])
def test_small_numbers_after_a_tag(in_stream: bool, rng: random.Random) -> None:
    # Random bytes rarely get past a length or a count; these do.
    likely = b"\0\0\0\0\0\0\1\1\1\2\3\4NKOntubdnfi\xff\xc3\xa9"
    payloads = [
        bytes([rng.choice(TAGS), *(rng.choice(likely) for _ in range(rng.randrange(65)))]) for _ in range(20_000)
    ]
    assert permissive_verdicts(payloads, in_stream) == [reference_verdict(payload, in_stream) for payload in payloads]


@each_sample
def test_every_byte_of_a_sample_changed(sample: Sample, rng: random.Random) -> None:
    telling = b"\x00\x01\x02\x3f\x40\x7f\x80\xffKNObntu"
    mutants = [
        sample.payload[:at] + bytes([byte]) + sample.payload[at + 1 :]
        for at in range(len(sample.payload))
        for byte in (*telling, rng.randrange(256))
    ]
    expected = [reference_verdict(mutant, sample.in_stream) for mutant in mutants]
    assert permissive_verdicts(mutants, sample.in_stream) == expected


@given(message=encoder.any_messages(), in_stream=st.booleans(), data=st.data())
def test_a_piece_replaced_dropped_or_doubled(message: Message, in_stream: bool, data: st.DataObject) -> None:
    pieces = [piece.data for piece in encoder.pieces(message)]
    at = data.draw(st.integers(0, len(pieces) - 1))
    pieces[at] = data.draw(
        st.one_of(
            st.just(b""),
            st.just(pieces[at] * 2),
            st.sampled_from(pieces),
            st.binary(min_size=len(pieces[at]), max_size=len(pieces[at])),
        )
    )
    payload = b"".join(pieces)
    expected = reference_verdict(payload, in_stream)
    assert failfast_verdict(payload, in_stream) == expected
    assert permissive_verdicts([payload], in_stream) == [expected]
    if isinstance(expected, dict) and not fits_datetime(expected):
        assert decode_verdict(payload, in_stream)[0] == "OUT_OF_RANGE"  # type: ignore[index]
    else:
        assert decode_verdict(payload, in_stream) == expected


@pytest.mark.full
@pytest.mark.parametrize("in_stream", [None, "auto"])
def test_without_a_given_state_a_row_is_one_of_its_two_readings_or_faulty(
    in_stream: str | None, rng: random.Random
) -> None:
    likely = b"\0\0\0\0\0\0\1\1\1\2\3\4NKOntubdnfi"
    payloads = [bytes([rng.choice(TAGS), *rng.choices(likely, k=rng.randrange(40))]) for _ in range(5000)]
    for payload in payloads[:2000]:
        verdicts = [reference_verdict(payload, False), reference_verdict(payload, True)]
        batch = pgdecode.decode_messages([payload], in_stream=in_stream, mode="PERMISSIVE")
        (row,) = rows_of(batch)
        good = [verdict for verdict in verdicts if isinstance(verdict, dict)]
        assert (row in good) if good else (row["error"] is not None and row["kind"] is None)
    pgdecode.decode_messages(payloads, in_stream=in_stream, mode="PERMISSIVE").validate(full=True)


# -- one bad row among good ones -------------------------------------------------------------------------------------


def bad_payloads(rng: random.Random, count: int) -> list[bytes | None]:
    """Payloads that are malformed in both readings: cut, torn and random ones, delimiters among them; and nulls."""
    found: list[bytes | None] = [None, b"", b"?", b"S", b"B", b"\0", b"S\0\0\3\4\2", b"E\0", b"I\0\0"]
    while len(found) < count:
        sample = rng.choice(list(SAMPLES.values())).payload
        torn = sample[: rng.randrange(len(sample))] + rng.randbytes(rng.randrange(3))
        if not is_well_formed(torn, False) and not is_well_formed(torn, True):
            found.append(torn)
    rng.shuffle(found)
    return found


@pytest.mark.parametrize("how", ["in slot order", "given", "auto"])
@pytest.mark.parametrize("name", ["14.txns.v2", "16.streams.v4", "18.types.v1bin", "18.twophase.v3"])
def test_bad_rows_leave_every_other_row_as_it_was(name: str, how: str, rng: random.Random) -> None:
    capture = captures.capture(name)
    payloads: list[bytes | None] = list(capture.payloads[:2000])
    rows = list(capture.rows[:2000])
    good = [True] * len(payloads)
    for payload in bad_payloads(rng, 300):
        at = rng.randrange(len(payloads) + 1)
        payloads.insert(at, payload)
        rows.insert(at, NULL_ROW)
        good.insert(at, False)
    state: object = None if how == "in slot order" else "auto"
    if how == "given":
        state = stream_states(payload if fine else None for payload, fine in zip(payloads, good, strict=True))
    batch = pgdecode.decode_messages(payloads, in_stream=state, mode="PERMISSIVE")
    batch.validate(full=True)
    decoded = rows_of(batch)
    for payload, row, fine in zip(payloads, decoded, good, strict=True):
        assert (row["error"] is None) == (fine or not payload)
    assert [{**row, "error": None} for row in decoded] == rows


@pytest.mark.parametrize("name", ["18.txns.v2", "18.types.v1bin"])
def test_failfast_names_the_first_bad_row_of_a_batch(name: str, rng: random.Random) -> None:
    capture = captures.capture(name)
    for payload in bad_payloads(rng, 40):
        if not payload:
            continue
        first = rng.randrange(len(capture.payloads))
        payloads = [*capture.payloads[:first], payload, *capture.payloads[first:], b"\0"]
        with pytest.raises(pgdecode.DecodeError) as caught:
            pgdecode.decode_messages(payloads)
        assert caught.value.row == first
        in_stream = stream_states([*capture.payloads[:first], None])[-1]
        assert (caught.value.code, caught.value.offset) == reference_verdict(payload, in_stream)


@each_sample
def test_the_verdict_does_not_depend_on_the_columns_asked_for(sample: Sample) -> None:
    payloads = [sample.payload[:length] for length in range(len(sample.payload) + 1)] + [sample.payload + b"\0"]
    full = pgdecode.decode_messages(payloads, in_stream=sample.in_stream, mode="PERMISSIVE")["error"]
    for fields in (["error"], ["kind", "error"], ["error", "new"], ["old_formats", "error"], ["columns", "error"]):
        narrow = pgdecode.decode_messages(payloads, in_stream=sample.in_stream, mode="PERMISSIVE", fields=fields)
        assert narrow["error"].equals(full)


# -- memory ----------------------------------------------------------------------------------------------------------

CLAIMS = [
    bytes.fromhex("49 00004001 4e 0001 74 3fffffff 35"),
    bytes.fromhex("49 00004001 4e 0640 74 3fffffff 35"),
    bytes.fromhex("4d 00 0000000000000008 70 00 3fffffff 68"),
    bytes.fromhex("54 ffffffff 03 00004001"),
    bytes.fromhex("54 3fffffff 03 00004001"),
    bytes.fromhex("52 00004001 73 00 74 00 64 0640 00 61 00"),
    bytes.fromhex("55 00004001 4b 0640 74 3fffffff"),
]


def test_claimed_lengths_cost_no_python_memory() -> None:
    payloads = CLAIMS * 1000
    pgdecode.decode_messages(payloads, in_stream=False, mode="PERMISSIVE", fields=["kind"])
    tracemalloc.start()
    try:
        for fields in (["kind", "new"], ["content", "relation_ids", "columns"]):
            batch = pgdecode.decode_messages(payloads, in_stream=False, mode="PERMISSIVE", fields=fields)
            assert batch.num_rows == len(payloads)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS is enforced on Linux")
def test_claimed_lengths_reserve_nothing() -> None:
    # 7000 rows claim up to 1 GiB each; with 256 MiB of address space to grow into, reserving for one of them fails.
    script = f"""
import resource
import pgdecode
payloads = {CLAIMS!r} * 1000
pgdecode.decode_messages([b"E"])
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + 256 * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
batch = pgdecode.decode_messages(payloads, in_stream=False, mode="PERMISSIVE")
codes = {{text.split()[0] for text in batch["error"].to_pylist()}}
print(batch.num_rows, sorted(codes))
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == (f"{len(CLAIMS) * 1000} ['TRUNCATED']\n", "")
