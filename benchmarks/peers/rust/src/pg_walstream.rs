//! The crate pg_walstream. Its parser follows streams.
use std::hint::black_box;

use bytes::Bytes;
use pg_walstream::protocol::{LogicalReplicationMessage as Message, LogicalReplicationParser, TupleData};
use serde_json::{Value, json};

use crate::{Known, time, tuple};

fn parser() -> LogicalReplicationParser {
    LogicalReplicationParser::with_protocol_version(4)
}

pub fn sum(payloads: &[Bytes]) -> u64 {
    let mut parser = parser();
    payloads
        .iter()
        .map(|payload| {
            let found = parser.parse_wal_message_bytes(payload.clone()).expect("a good payload");
            u64::from(match &black_box(found).message {
                Message::Relation { relation_id, .. }
                | Message::Insert { relation_id, .. }
                | Message::Update { relation_id, .. }
                | Message::Delete { relation_id, .. } => *relation_id,
                _ => 0,
            })
        })
        .sum()
}

fn cells(tuple: &TupleData) -> impl Iterator<Item = (char, &[u8])> {
    tuple.columns.iter().map(|column| (char::from(column.data_type), column.as_bytes()))
}

pub fn answer(payload: &Bytes, known: &Known) -> Result<Value, String> {
    let mut parser = parser();
    if known.in_stream {
        parser.parse_wal_message(b"S\0\0\0\x01\x01").map_err(|error| error.to_string())?;
    }
    let found = parser.parse_wal_message_bytes(payload.clone()).map_err(|error| error.to_string())?;
    let mut answer = message(&found.message);
    let tag = answer["kind"].as_str().unwrap_or_default();
    if known.in_stream && ["relation", "type", "insert", "update", "delete", "truncate", "message"].contains(&tag) {
        answer["xid"] = found.xid.into();
    }
    Ok(answer)
}

fn message(found: &Message) -> Value {
    match found {
        Message::Begin { final_lsn, timestamp, xid } => {
            json!({"kind": "begin", "lsn": final_lsn, "timestamp": time(*timestamp), "xid": xid})
        }
        Message::Commit { flags, commit_lsn, end_lsn, timestamp } => json!({
            "kind": "commit", "flags": flags, "lsn": commit_lsn, "end_lsn": end_lsn, "timestamp": time(*timestamp),
        }),
        Message::Origin { origin_lsn, origin_name } => {
            json!({"kind": "origin", "lsn": origin_lsn, "name": origin_name})
        }
        Message::Type { type_id, namespace, type_name } => {
            json!({"kind": "type", "type_id": type_id, "namespace": namespace, "name": type_name})
        }
        Message::Relation { relation_id, namespace, relation_name, replica_identity, columns } => {
            let column = |c: &pg_walstream::protocol::ColumnInfo| json!({"flags": c.flags, "name": &*c.name, "type_id": c.type_id, "type_modifier": c.type_modifier});
            json!({
                "kind": "relation", "relation_id": relation_id, "namespace": &**namespace, "name": &**relation_name,
                "replica_identity": char::from(*replica_identity),
                "columns": columns.iter().map(column).collect::<Vec<_>>(),
            })
        }
        Message::Insert { relation_id, tuple: new } => {
            let mut found = json!({"kind": "insert", "relation_id": relation_id});
            tuple("new", cells(new), &mut found);
            found
        }
        Message::Update { relation_id, old_tuple, new_tuple, key_type } => {
            let mut found = json!({"kind": "update", "relation_id": relation_id});
            tuple("new", cells(new_tuple), &mut found);
            if let Some(old) = old_tuple {
                tuple("old", cells(old), &mut found);
                found["old_type"] = key_type.map(String::from).into();
            }
            found
        }
        Message::Delete { relation_id, old_tuple, key_type } => {
            let mut found = json!({"kind": "delete", "relation_id": relation_id, "old_type": key_type});
            tuple("old", cells(old_tuple), &mut found);
            found
        }
        Message::Truncate { relation_ids, flags } => {
            json!({"kind": "truncate", "options": flags, "relation_ids": relation_ids})
        }
        Message::Message { flags, lsn, prefix, content } => json!({
            "kind": "message", "flags": flags, "lsn": lsn, "prefix": prefix, "content": hex::encode(content),
        }),
        Message::StreamStart { xid, first_segment } => {
            json!({"kind": "stream_start", "xid": xid, "first_segment": first_segment})
        }
        Message::StreamStop => json!({"kind": "stream_stop"}),
        Message::StreamCommit { xid, flags, commit_lsn, end_lsn, timestamp } => json!({
            "kind": "stream_commit", "xid": xid, "flags": flags, "lsn": commit_lsn, "end_lsn": end_lsn,
            "timestamp": time(*timestamp),
        }),
        Message::StreamAbort { xid, subtransaction_xid, abort_lsn, abort_timestamp } => {
            let mut found = json!({"kind": "stream_abort", "xid": xid, "subxid": subtransaction_xid});
            if let (Some(lsn), Some(timestamp)) = (abort_lsn, abort_timestamp) {
                found["lsn"] = (*lsn).into();
                found["timestamp"] = time(*timestamp).into();
            }
            found
        }
        Message::BeginPrepare { prepare_lsn, end_lsn, timestamp, xid, gid } => json!({
            "kind": "begin_prepare", "lsn": prepare_lsn, "end_lsn": end_lsn, "timestamp": time(*timestamp),
            "xid": xid, "gid": gid,
        }),
        Message::Prepare { flags, prepare_lsn, end_lsn, timestamp, xid, gid } => json!({
            "kind": "prepare", "flags": flags, "lsn": prepare_lsn, "end_lsn": end_lsn,
            "timestamp": time(*timestamp), "xid": xid, "gid": gid,
        }),
        Message::CommitPrepared { flags, commit_lsn, end_lsn, timestamp, xid, gid } => json!({
            "kind": "commit_prepared", "flags": flags, "lsn": commit_lsn, "end_lsn": end_lsn,
            "timestamp": time(*timestamp), "xid": xid, "gid": gid,
        }),
        Message::RollbackPrepared {
            flags,
            prepare_end_lsn,
            rollback_end_lsn,
            prepare_timestamp,
            rollback_timestamp,
            xid,
            gid,
        } => json!({
            "kind": "rollback_prepared", "flags": flags, "lsn": prepare_end_lsn, "end_lsn": rollback_end_lsn,
            "prepare_timestamp": time(*prepare_timestamp), "timestamp": time(*rollback_timestamp), "xid": xid,
            "gid": gid,
        }),
        Message::StreamPrepare { flags, prepare_lsn, end_lsn, timestamp, xid, gid } => json!({
            "kind": "stream_prepare", "flags": flags, "lsn": prepare_lsn, "end_lsn": end_lsn,
            "timestamp": time(*timestamp), "xid": xid, "gid": gid,
        }),
    }
}
