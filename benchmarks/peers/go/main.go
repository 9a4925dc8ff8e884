// Decodes with pglogrepl: pglogrepl-peer, for timing, as node_timed.cjs describes; or pglogrepl-peer answers, for
// checks, as node_answers.mjs describes. A panic ends the process.
package main

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pglogrepl"
)

// relationOf returns the relation id of a message, 0 without one.
func relationOf(message pglogrepl.Message) uint32 {
	switch m := message.(type) {
	case *pglogrepl.RelationMessageV2:
		return m.RelationID
	case *pglogrepl.InsertMessageV2:
		return m.RelationID
	case *pglogrepl.UpdateMessageV2:
		return m.RelationID
	case *pglogrepl.DeleteMessageV2:
		return m.RelationID
	}
	return 0
}

// sum returns the sum of the relation ids of payloads, in order, after decoding all of them.
func sum(payloads [][]byte) uint64 {
	var found uint64
	inStream := false
	for _, payload := range payloads {
		message, err := pglogrepl.ParseV2(payload, inStream)
		if err != nil {
			panic(err)
		}
		switch message.Type() {
		case pglogrepl.MessageTypeStreamStart:
			inStream = true
		case pglogrepl.MessageTypeStreamStop:
			inStream = false
		}
		found += uint64(relationOf(message))
	}
	return found
}

type fields map[string]any

func microseconds(t time.Time) int64 { return t.UnixMicro() }

// tuple writes a tuple: its values, and the letters of their formats.
func tuple(name string, data *pglogrepl.TupleData, message fields) {
	values := make([]*string, len(data.Columns))
	formats := make([]byte, len(data.Columns))
	for i, column := range data.Columns {
		formats[i] = column.DataType
		if column.DataType == pglogrepl.TupleDataTypeText || column.DataType == pglogrepl.TupleDataTypeBinary {
			digits := hex.EncodeToString(column.Data)
			values[i] = &digits
		}
	}
	message[name], message[name+"_formats"] = values, string(formats)
}

// written returns a message as the conformance suite writes it.
func written(message pglogrepl.Message, inStream bool) fields {
	found := fields{}
	xid := func(m pglogrepl.InStreamMessageV2WithXid) {
		if inStream {
			found["xid"] = m.Xid
		}
	}
	old := func(letter uint8, data *pglogrepl.TupleData) {
		if data != nil {
			found["old_type"] = string(rune(letter))
			tuple("old", data, found)
		}
	}
	put := func(kind string, names fields) {
		found["kind"] = kind
		for name, value := range names {
			found[name] = value
		}
	}
	switch m := message.(type) {
	case *pglogrepl.BeginMessage:
		put("begin", fields{"lsn": m.FinalLSN, "timestamp": microseconds(m.CommitTime), "xid": m.Xid})
	case *pglogrepl.CommitMessage:
		put("commit", fields{
			"flags": m.Flags, "lsn": m.CommitLSN, "end_lsn": m.TransactionEndLSN, "timestamp": microseconds(m.CommitTime),
		})
	case *pglogrepl.OriginMessage:
		put("origin", fields{"lsn": m.CommitLSN, "name": m.Name})
	case *pglogrepl.TypeMessageV2:
		put("type", fields{"type_id": m.DataType, "namespace": m.Namespace, "name": m.Name})
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.RelationMessageV2:
		columns := []fields{}
		for _, c := range m.Columns {
			columns = append(columns, fields{
				"flags": c.Flags, "name": c.Name, "type_id": c.DataType, "type_modifier": c.TypeModifier,
			})
		}
		put("relation", fields{
			"relation_id": m.RelationID, "namespace": m.Namespace, "name": m.RelationName,
			"replica_identity": string(rune(m.ReplicaIdentity)), "columns": columns,
		})
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.InsertMessageV2:
		put("insert", fields{"relation_id": m.RelationID})
		tuple("new", m.Tuple, found)
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.UpdateMessageV2:
		put("update", fields{"relation_id": m.RelationID})
		tuple("new", m.NewTuple, found)
		old(m.OldTupleType, m.OldTuple)
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.DeleteMessageV2:
		put("delete", fields{"relation_id": m.RelationID})
		old(m.OldTupleType, m.OldTuple)
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.TruncateMessageV2:
		put("truncate", fields{"options": m.Option, "relation_ids": m.RelationIDs})
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.LogicalDecodingMessageV2:
		flags := 0
		if m.Transactional {
			flags = 1
		}
		put("message", fields{
			"flags": flags, "lsn": m.LSN, "prefix": m.Prefix, "content": hex.EncodeToString(m.Content),
		})
		xid(m.InStreamMessageV2WithXid)
	case *pglogrepl.StreamStartMessageV2:
		put("stream_start", fields{"xid": m.Xid, "first_segment": m.FirstSegment == 1})
	case *pglogrepl.StreamStopMessageV2:
		put("stream_stop", fields{})
	case *pglogrepl.StreamCommitMessageV2:
		put("stream_commit", fields{
			"xid": m.Xid, "flags": m.Flags, "lsn": m.CommitLSN, "end_lsn": m.TransactionEndLSN,
			"timestamp": microseconds(m.CommitTime),
		})
	case *pglogrepl.StreamAbortMessageV2:
		put("stream_abort", fields{"xid": m.Xid, "subxid": m.SubXid})
	}
	return found
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

func number(input io.Reader) int {
	four := make([]byte, 4)
	must(io.ReadFull(input, four))
	return int(binary.LittleEndian.Uint32(four))
}

func payloads(input io.Reader) [][]byte {
	found := make([][]byte, number(input))
	for i := range found {
		found[i] = make([]byte, number(input))
		must(io.ReadFull(input, found[i]))
	}
	return found
}

func main() {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	if len(os.Args) == 1 {
		sum(payloads(input))
		timed := payloads(input)
		for {
			if _, err := input.ReadByte(); err != nil {
				return
			}
			fmt.Println(sum(timed))
		}
	}
	output := json.NewEncoder(os.Stdout)
	output.SetEscapeHTML(false)
	questions := json.NewDecoder(input)
	for {
		var question struct {
			Payload  string
			InStream bool `json:"in_stream"`
		}
		if questions.Decode(&question) != nil {
			return
		}
		message, err := pglogrepl.ParseV2(must(hex.DecodeString(question.Payload)), question.InStream)
		answer := fields{}
		if err != nil {
			answer["refused"] = err.Error()
		} else {
			answer = written(message, question.InStream)
		}
		if err := output.Encode(answer); err != nil {
			return
		}
	}
}
