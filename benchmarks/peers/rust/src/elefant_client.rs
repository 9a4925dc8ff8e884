//! The crate elefant-client. It does not know streams, and passes messages of two-phase commits on as they are.
use std::hint::black_box;

use bytes::Bytes;
use elefant_client::replication::{PgOutputMessage as Message, TupleColumn, TupleData, parse_pgoutput_message};
use serde_json::{Value, json};

use crate::{Known, time, tuple};

pub fn sum(payloads: &[Bytes]) -> u64 {
    payloads
        .iter()
        .map(|payload| {
            let message = black_box(parse_pgoutput_message(payload).expect("a good payload"));
            u64::from(match &message {
                Message::Relation(m) => m.relation_id,
                Message::Insert(m) => m.relation_id,
                Message::Update(m) => m.relation_id,
                Message::Delete(m) => m.relation_id,
                _ => 0,
            })
        })
        .sum()
}

fn cells<'a>(tuple: &'a TupleData<'a>) -> impl Iterator<Item = (char, &'a [u8])> {
    tuple.columns.iter().map(|column| match column {
        TupleColumn::Null => ('n', &b""[..]),
        TupleColumn::Unchanged => ('u', &b""[..]),
        TupleColumn::Text(value) => ('t', value.as_bytes()),
        TupleColumn::Binary(value) => ('b', *value),
    })
}

pub fn answer(payload: &Bytes, _: &Known) -> Result<Value, String> {
    Ok(match parse_pgoutput_message(payload).map_err(|error| format!("{error:?}"))? {
        Message::Begin(m) => {
            json!({"kind": "begin", "lsn": m.final_lsn.0, "timestamp": time(m.commit_timestamp), "xid": m.xid})
        }
        Message::Commit(m) => json!({
            "kind": "commit", "flags": m.flags, "lsn": m.commit_lsn.0, "end_lsn": m.end_lsn.0,
            "timestamp": time(m.commit_timestamp),
        }),
        Message::Origin(m) => json!({"kind": "origin", "lsn": m.origin_lsn.0, "name": m.origin_name}),
        Message::Type(m) => {
            json!({"kind": "type", "type_id": m.type_oid, "namespace": m.namespace, "name": m.name})
        }
        Message::Relation(m) => {
            let column = |c: &elefant_client::replication::RelationColumn| json!({"flags": c.flags, "name": c.name, "type_id": c.type_oid, "type_modifier": c.type_modifier});
            json!({
                "kind": "relation", "relation_id": m.relation_id, "namespace": m.namespace, "name": m.name,
                "replica_identity": char::from(m.replica_identity),
                "columns": m.columns.iter().map(column).collect::<Vec<_>>(),
            })
        }
        Message::Insert(m) => {
            let mut found = json!({"kind": "insert", "relation_id": m.relation_id});
            tuple("new", cells(&m.tuple), &mut found);
            found
        }
        Message::Update(m) => {
            let mut found = json!({"kind": "update", "relation_id": m.relation_id});
            tuple("new", cells(&m.new_tuple), &mut found);
            if let Some(old) = &m.old_tuple {
                tuple("old", cells(old), &mut found);
            }
            found
        }
        Message::Delete(m) => {
            let mut found = json!({"kind": "delete", "relation_id": m.relation_id});
            tuple("old", cells(&m.old_tuple), &mut found);
            found
        }
        Message::Truncate(m) => {
            json!({"kind": "truncate", "options": m.option_bits, "relation_ids": m.relation_ids})
        }
        Message::LogicalDecodingMessage(m) => json!({
            "kind": "message", "flags": u8::from(m.transactional), "lsn": m.lsn.0, "prefix": m.prefix,
            "content": hex::encode(m.content),
        }),
        Message::StreamStart(m) => {
            json!({"kind": "stream_start", "xid": m.xid, "first_segment": m.first_segment})
        }
        Message::StreamStop => json!({"kind": "stream_stop"}),
        Message::StreamCommit(m) => json!({
            "kind": "stream_commit", "xid": m.xid, "flags": m.flags, "lsn": m.commit_lsn.0, "end_lsn": m.end_lsn.0,
            "timestamp": time(m.commit_timestamp),
        }),
        Message::StreamAbort(m) => json!({"kind": "stream_abort", "xid": m.xid, "subxid": m.sub_xid}),
        Message::Unsupported { msg_type, .. } => return Err(format!("unsupported message {}", char::from(msg_type))),
    })
}
