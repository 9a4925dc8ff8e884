"""`decode`: one payload, one dataclass."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pgdecode
from pgdecode.protocol.messages import MESSAGES, Message, StreamedMessage
from support.compare import row_of, rows_of
from support.generators import encoder
from support.generators.samples import MOMENT, SAMPLES, Sample, each_sample
from support.oracles import reference

# Every class as plain, and streamable classes also inside a stream.
shapes = pytest.mark.parametrize(
    ("cls", "streamed"),
    [pytest.param(cls, False, id=cls.kind) for cls in MESSAGES]
    + [pytest.param(cls, True, id=f"{cls.kind} in a stream") for cls in encoder.STREAMED],
)


def test_every_message_has_a_sample() -> None:
    assert {type(sample.message) for sample in SAMPLES.values()} == set(MESSAGES)
    assert {type(sample.message) for sample in SAMPLES.values() if sample.in_stream} == set(encoder.STREAMED)


@each_sample
def test_a_payload_becomes_its_message(sample: Sample) -> None:
    message = pgdecode.decode(sample.payload, in_stream=sample.in_stream)
    assert message == sample.message
    assert repr(message) == repr(sample.message)  # distinguishes True from 1


@each_sample
def test_the_encoder_writes_the_documented_bytes(sample: Sample) -> None:
    assert encoder.encode(sample.message) == sample.payload


@each_sample
def test_the_reference_decodes_a_sample_to_its_message(sample: Sample) -> None:
    row = reference.decode_payload(sample.payload, sample.in_stream)
    assert row == row_of(sample.message)


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(sample, id=name)
        for name, sample in SAMPLES.items()
        if not isinstance(sample.message, StreamedMessage)
    ],
)
def test_messages_without_an_xid_prefix_ignore_in_stream(sample: Sample) -> None:
    assert pgdecode.decode(sample.payload, in_stream=True) == pgdecode.decode(sample.payload, in_stream=False)


@each_sample
def test_a_message_is_a_frozen_hashable_value_without_a_dict(sample: Sample) -> None:
    message = pgdecode.decode(sample.payload, in_stream=sample.in_stream)
    assert hash(message) == hash(sample.message)
    assert not hasattr(message, "__dict__")
    for item in dataclasses.fields(message):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(message, item.name, None)


def test_a_repr_reads_like_the_call_that_makes_the_message() -> None:
    message = pgdecode.decode(SAMPLES["update with a key"].payload)
    assert repr(message) == (
        "Update(xid=None, relation_id=16385, old_type='K', old=(b'1', None), old_formats='tn', "
        "new=(b'2', b'b'), new_formats='tt')"
    )


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_decode_accepts_any_object_with_bytes(buffer: Any) -> None:
    sample = SAMPLES["insert"]
    assert pgdecode.decode(buffer(sample.payload)) == sample.message


@pytest.mark.parametrize("payload", [None, "B", 66, ["B"]], ids=["none", "str", "int", "list"])
def test_decode_refuses_what_is_not_bytes(payload: Any) -> None:
    with pytest.raises(TypeError):
        pgdecode.decode(payload)


def test_the_values_of_a_message_outlive_the_buffer_they_came_from() -> None:
    buffer = bytearray(SAMPLES["insert"].payload)
    message = pgdecode.decode(buffer)
    buffer[:] = bytes(len(buffer))
    assert message == SAMPLES["insert"].message


def test_messages_support_match_statements() -> None:
    def describe(payload: bytes, in_stream: bool) -> str:
        match pgdecode.decode(payload, in_stream=in_stream):
            case pgdecode.Insert(relation_id=relation, new=(first, *_)):
                return f"insert {first!r} into {relation}"
            case pgdecode.Update(old_type="K", old=(key, *_), xid=None):
                return f"update {key!r}"
            case pgdecode.Delete(xid=int(xid)):
                return f"delete in {xid}"
            case pgdecode.Begin(commit_timestamp=moment):
                return f"begin at {moment:%Y}"
            case pgdecode.StreamStop():
                return "stop"
        return "other"

    said = {name: describe(sample.payload, sample.in_stream) for name, sample in SAMPLES.items()}
    assert said["insert"] == "insert b'5' into 16385"
    assert said["insert into a table without columns"] == "other"
    assert said["update with a key"] == "update b'1'"
    assert said["update without an old tuple"] == "other"
    assert said["delete by old row in a stream"] == "delete in 772"
    assert said["delete by key"] == "other"
    assert said["begin"] == "begin at 2023"
    assert said["stream stop"] == "stop"


@pytest.mark.parametrize(
    ("sample", "column", "value"),
    [
        pytest.param("begin", "lsn", 0x16B374D848, id="begin's lsn is its final_lsn"),
        pytest.param("begin", "timestamp", MOMENT, id="begin's timestamp is its commit_timestamp"),
        pytest.param("rollback prepared", "lsn", 0x10, id="rollback_prepared's lsn is its prepare_end_lsn"),
        pytest.param("rollback prepared", "end_lsn", 0x18, id="rollback_prepared's end_lsn is its rollback_end_lsn"),
        pytest.param("stream abort of 25 bytes", "lsn", 0x16B374D848, id="stream_abort's lsn is its abort_lsn"),
        pytest.param("origin", "lsn", 0x16B374D848, id="origin's lsn is its origin_lsn"),
    ],
)
def test_a_field_is_also_available_under_its_envelope_column(sample: str, column: str, value: object) -> None:
    assert getattr(pgdecode.decode(SAMPLES[sample].payload), column) == value


def test_a_message_has_only_its_own_fields() -> None:
    with pytest.raises(AttributeError, match="StreamStop has no field 'xid'"):
        _ = pgdecode.decode(b"E").xid


@shapes
@given(data=st.data())
def test_every_message_survives_encoding(cls: type[Message], streamed: bool, data: st.DataObject) -> None:
    strategy = encoder.streamed_messages(cls) if streamed else encoder.plain_messages(cls)
    message = data.draw(strategy)
    assert pgdecode.decode(encoder.encode(message), in_stream=streamed) == message


@given(st.lists(encoder.any_messages(), max_size=20))
def test_the_envelope_agrees_with_the_messages(batch: list[Message]) -> None:
    payloads = [encoder.encode(message) for message in batch]
    states = [encoder.is_streamed(message) for message in batch]
    decoded = pgdecode.decode_messages(payloads, in_stream=states)
    decoded.validate(full=True)
    assert rows_of(decoded) == [row_of(message) for message in batch]


@given(encoder.any_messages())
def test_the_reference_decodes_the_encoder_s_output(message: Message) -> None:
    row = reference.decode_payload(encoder.encode(message), encoder.is_streamed(message))
    assert row == row_of(message)


def test_timestamps_are_exact_at_the_ends_of_python_s_range() -> None:
    for moment in (datetime.min, datetime.max):
        message = pgdecode.Begin(final_lsn=0, commit_timestamp=moment.replace(tzinfo=UTC), xid=1)
        assert pgdecode.decode(encoder.encode(message)) == message
