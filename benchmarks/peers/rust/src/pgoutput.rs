//! The crate pgoutput. The slot's options streaming and binary are type parameters of its events.
use std::hint::black_box;

use bytes::Bytes;
use pgoutput::events::base::event::BaseEvent;
use pgoutput::events::base::relation_column::RelationColumn;
use pgoutput::events::base::tuple_data::{OldDataOrPrimaryKeyTupleData as Old, TupleData, TupleDataColumn};
use pgoutput::events::event::{Event, EventType};
use pgoutput::events::stream::StreamEvent;
use pgoutput::events::twophase::TwoPhaseCommitEvent as TwoPhase;
use pgoutput::options::{
    BinaryValueTraitOff as Text, BinaryValueTraitOn as Binary, StreamingValueTraitOff as Whole,
    StreamingValueTraitOn as Streamed,
};
use serde_json::{Value, json};

use crate::{Known, time, tuple};

macro_rules! decoder {
    ($module:ident, $binary:ty, $format:literal, $streaming:ty) => {
        mod $module {
            use super::*;

            const FORMAT: char = $format;

            pub fn parse(payload: &[u8]) -> Result<Event<$binary, $streaming>, String> {
                let tag = *payload.first().ok_or("no bytes")?;
                Event::parse(&EventType::from_char(tag).ok_or("unknown tag")?, &payload[1..])
            }

            pub fn answer(payload: &[u8]) -> Result<Value, String> {
                Ok(match parse(payload)? {
                    Event::Base(event) => base(event),
                    Event::Message(m) => json!({
                        "kind": "message", "flags": m.flags, "lsn": m.lsn, "prefix": m.prefix,
                        "content": hex::encode(m.content),
                    }),
                    Event::Origin(m) => json!({"kind": "origin", "lsn": m.commit_lsn, "name": m.origin}),
                    Event::Stream(StreamEvent::Start(m)) => {
                        json!({"kind": "stream_start", "xid": m.transaction_id, "first_segment": m.flags != 0})
                    }
                    Event::Stream(StreamEvent::Stop) => json!({"kind": "stream_stop"}),
                    Event::Stream(StreamEvent::Commit(m)) => json!({
                        "kind": "stream_commit", "xid": m.transaction_id, "flags": m.flags, "lsn": m.lsn,
                        "end_lsn": m.end_lsn, "timestamp": time(m.timestamp),
                    }),
                    Event::Stream(StreamEvent::Abort(m)) => {
                        json!({"kind": "stream_abort", "xid": m.transaction_id, "subxid": m.sub_transaction_id})
                    }
                    Event::TwoPhase(event) => two_phase(event),
                    Event::StreamPrepare(m) => json!({
                        "kind": "stream_prepare", "flags": m.flags, "lsn": m.lsn, "end_lsn": m.end_lsn,
                        "timestamp": time(m.timestamp), "xid": m.transaction_id, "gid": m.gid,
                    }),
                })
            }

            fn base(event: BaseEvent<$binary, $streaming>) -> Value {
                let mut found = match &event {
                    BaseEvent::Begin(m) => json!({
                        "kind": "begin", "lsn": m.final_transaction_lsn, "timestamp": time(m.commit_timestamp),
                        "xid": m.transaction_id,
                    }),
                    BaseEvent::Commit(m) => json!({
                        "kind": "commit", "flags": m.flags, "lsn": m.lsn, "end_lsn": m.end_lsn,
                        "timestamp": time(m.timestamp),
                    }),
                    BaseEvent::Relation(m) => {
                        let column = |c: &RelationColumn| {
                            json!({"flags": c.flags, "name": c.name, "type_id": c.oid, "type_modifier": c.type_modifier})
                        };
                        json!({
                            "kind": "relation", "relation_id": m.oid, "namespace": m.relation_namespace,
                            "name": m.name, "replica_identity": char::from(m.replica_identity as u8),
                            "columns": m.columns.iter().map(column).collect::<Vec<_>>(),
                        })
                    }
                    BaseEvent::Type(m) => {
                        json!({"kind": "type", "type_id": m.oid, "namespace": m.type_namespace, "name": m.name})
                    }
                    BaseEvent::Insert(m) => json!({"kind": "insert", "relation_id": m.oid}),
                    BaseEvent::Update(m) => json!({"kind": "update", "relation_id": m.oid}),
                    BaseEvent::Delete(m) => json!({"kind": "delete", "relation_id": m.oid}),
                    BaseEvent::Truncate(m) => {
                        json!({"kind": "truncate", "options": m.flags, "relation_ids": m.oids})
                    }
                };
                let (old, new) = match &event {
                    BaseEvent::Insert(m) => (&None, Some(&m.data)),
                    BaseEvent::Update(m) => (&m.old_data_or_primary_key, Some(&m.data)),
                    BaseEvent::Delete(m) => (&m.old_data_or_primary_key, None),
                    _ => (&None, None),
                };
                if let Some(new) = new {
                    tuple("new", cells(new), &mut found);
                }
                if let Some(old) = old {
                    let (letter, old) = match old {
                        Old::OldTupleData(old) => ("O", old),
                        Old::PrimaryKeyTupleData(key) => ("K", key),
                    };
                    found["old_type"] = letter.into();
                    tuple("old", cells(old), &mut found);
                }
                found
            }

            fn cells(tuple: &TupleData<$binary>) -> impl Iterator<Item = (char, &[u8])> {
                tuple.iter().map(|column| match column {
                    TupleDataColumn::PGNull => ('n', &b""[..]),
                    TupleDataColumn::PGUnchangedToastedValue => ('u', &b""[..]),
                    TupleDataColumn::Value(value) => (FORMAT, value.as_ref()),
                })
            }
        }
    };
}

decoder!(text, Text, 't', Whole);
decoder!(binary, Binary, 'b', Whole);
decoder!(text_in_stream, Text, 't', Streamed);
decoder!(binary_in_stream, Binary, 'b', Streamed);

fn two_phase(event: TwoPhase) -> Value {
    match event {
        TwoPhase::BeginPrepare(m) => json!({
            "kind": "begin_prepare", "lsn": m.lsn, "end_lsn": m.end_lsn, "timestamp": time(m.timestamp),
            "xid": m.transaction_id, "gid": m.gid,
        }),
        TwoPhase::Prepare(m) => json!({
            "kind": "prepare", "flags": m.flags, "lsn": m.lsn, "end_lsn": m.end_lsn, "timestamp": time(m.timestamp),
            "xid": m.transaction_id, "gid": m.gid,
        }),
        TwoPhase::CommitPrepared(m) => json!({
            "kind": "commit_prepared", "flags": m.flags, "lsn": m.lsn, "end_lsn": m.end_lsn,
            "timestamp": time(m.timestamp), "xid": m.transaction_id, "gid": m.gid,
        }),
        TwoPhase::RollbackPrepared(m) => json!({
            "kind": "rollback_prepared", "flags": m.flags, "lsn": m.lsn, "end_lsn": m.end_lsn,
            "prepare_timestamp": time(m.prepare_timestamp), "timestamp": time(m.rollback_timestamp),
            "xid": m.transaction_id, "gid": m.gid,
        }),
    }
}

/// Text tuples outside of streams.
pub fn sum(payloads: &[Bytes]) -> u64 {
    payloads
        .iter()
        .map(|payload| {
            let event = black_box(text::parse(payload).expect("a good payload"));
            u64::from(match &event {
                Event::Base(BaseEvent::Relation(m)) => m.oid as u32,
                Event::Base(BaseEvent::Insert(m)) => m.oid as u32,
                Event::Base(BaseEvent::Update(m)) => m.oid as u32,
                Event::Base(BaseEvent::Delete(m)) => m.oid as u32,
                _ => 0,
            })
        })
        .sum()
}

pub fn answer(payload: &Bytes, known: &Known) -> Result<Value, String> {
    match (known.in_stream, known.binary) {
        (false, false) => text::answer(payload),
        (false, true) => binary::answer(payload),
        (true, false) => text_in_stream::answer(payload),
        (true, true) => binary_in_stream::answer(payload),
    }
}
