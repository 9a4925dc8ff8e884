// Decodes payloads with a decoder of node: node node_answers.mjs MODULES NAME
// Standard input: one JSON object per line, {"prime": [hex], "payload": hex}; more fields are for other decoders:
// "in_stream", whether the payload is in a stream, and "binary", whether the slot sends values in binary. Standard
// output: one line for each, with the message as the conformance suite writes it, or {"refused": text}. `prime` are
// Relation messages to read before.
import fs from "node:fs";
import { createRequire } from "node:module";
import os from "node:os";
import path from "node:path";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const [modules, name] = process.argv.slice(2);
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
const hex = (value) => Buffer.from(value).toString("hex");
const lsn = (text) => (text === null ? 0n : BigInt("0x" + text.replace("/", "")));

function cells(values) {
    const formats = values.map((v) => (v === undefined ? "u" : v === null ? "n" : typeof v === "string" ? "t" : "b"));
    return [values.map((v) => (v === undefined || v === null ? null : hex(v))), formats.join("")];
}

function plain(m, old, key, fresh) {
    const relation = (r) => ({ relation_id: r.relationOid });
    const tuple = (raw) => cells(m.relation.columns.slice(0, Object.keys(raw).length).map((c) => raw[c.name]));
    const row = {};
    if (fresh) [row.new, row.new_formats] = tuple(fresh);
    if (old) [row.old] = tuple(old);
    if (old || key) row.old_type = key ? "K" : "O";
    switch (m.tag) {
        case "begin": return { kind: "begin", lsn: lsn(m.commitLsn), timestamp: m.commitTime, xid: m.xid };
        case "commit": return { kind: "commit", flags: m.flags, lsn: lsn(m.commitLsn), end_lsn: lsn(m.commitEndLsn), timestamp: m.commitTime };
        case "origin": return { kind: "origin", lsn: lsn(m.originLsn), name: m.originName };
        case "type": return { kind: "type", type_id: m.typeOid, namespace: m.typeSchema, name: m.typeName };
        case "relation": return {
            kind: "relation", ...relation(m), namespace: m.schema, name: m.name,
            replica_identity: String(m.replicaIdentity)[0],
            columns: m.columns.map((c) => ({ flags: c.flags, name: c.name, type_id: c.typeOid, type_modifier: c.typeMod })),
        };
        case "truncate": return {
            kind: "truncate", options: m.flags,
            relation_ids: m.relations.map((r) => r.relationOid),
        };
        case "message": return { kind: "message", flags: m.flags, lsn: lsn(m.messageLsn), prefix: m.prefix, content: hex(m.content) };
        default: return { kind: m.tag, ...relation(m.relation), ...row };
    }
}

async function decoder() {
    if (name === "pg-logical-replication") {
        const require = createRequire(pathToFileURL(path.join(modules, "x.js")));
        const place = path.join(modules, name, "dist", "output-plugins", "pgoutput", "pgoutput-parser.js");
        const { PgoutputParser } = require(place);
        return () => {
            const parser = new PgoutputParser();
            return (payload) => {
                const m = parser.parse(payload);
                return plain(m, m.old, m.key, m.new);
            };
        };
    }
    // The reader is not exported: load a copy that exports it.
    const folder = fs.mkdtempSync(path.join(os.tmpdir(), "pgwire-"));
    const copy = path.join(folder, "mod.mjs");
    fs.writeFileSync(copy, fs.readFileSync(path.join(modules, "pgwire", "mod.js"), "utf8") + "\nexport { PgoutputReader };\n");
    const { PgoutputReader } = await import(pathToFileURL(copy));
    fs.rmSync(folder, { recursive: true });
    return () => {
        const reader = new PgoutputReader();
        return (payload) => {
            const m = {};
            reader._reset(payload);
            reader._upgradeMsg(m);
            const isKey = m.beforeRaw && Object.values(m.beforeRaw).includes(undefined);
            return plain(m, isKey ? null : m.beforeRaw, isKey && m.beforeRaw, m.afterRaw);
        };
    };
}

const make = await decoder();
for await (const line of readline.createInterface({ input: process.stdin })) {
    const { prime, payload } = JSON.parse(line);
    let answer;
    try {
        const decode = make();
        prime.forEach((relation) => decode(bytes(relation)));
        answer = decode(bytes(payload));
    } catch (error) {
        answer = { refused: String(error.message).slice(0, 80) };
    }
    // Numbers of 64 bits as text.
    fs.writeSync(1, JSON.stringify(answer, (key, value) => (typeof value === "bigint" ? String(value) : value)) + "\n");
}
