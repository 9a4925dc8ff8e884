// Decodes with the parser of pg-logical-replication, for decoders.py: node pg_logical_replication.cjs MODULES
// Standard input: the number of payloads to decode once before timing, and those payloads; the number of payloads to
// time, and those payloads; then one line break per repetition. Numbers have 32 bits, little-endian. Each payload comes
// after its length.
// Standard output: one line per repetition, the sum of the relation ids of the decoded payloads.
"use strict";
const path = require("path");
const fs = require("fs");

const place = path.join(process.argv[2], "pg-logical-replication", "dist", "output-plugins", "pgoutput");
const { PgoutputParser } = require(path.join(place, "pgoutput-parser.js"));

function read(length) {
    const found = Buffer.alloc(length);
    for (let at = 0; at < length; ) {
        const n = fs.readSync(0, found, at, length - at);
        if (n === 0) process.exit(0);
        at += n;
    }
    return found;
}

function payloads() {
    const found = [];
    for (let left = read(4).readUInt32LE(); left > 0; left--) found.push(read(read(4).readUInt32LE()));
    return found;
}

const parser = new PgoutputParser();
payloads().forEach((payload) => parser.parse(payload));
const timed = payloads();
for (;;) {
    read(1);
    let ids = 0;
    for (const payload of timed) {
        const message = parser.parse(payload);
        ids += message.relationOid ?? message.relation?.relationOid ?? 0;
    }
    fs.writeSync(1, `${ids}\n`);
}
