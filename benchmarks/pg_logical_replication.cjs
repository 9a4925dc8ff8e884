// Decodes with the parser of pg-logical-replication, for decoders.py: node pg_logical_replication.cjs MODULES
// Standard input: n of the payloads that are decoded once, before; those; n of the payloads to time; those; then a line
// break for each repetition. Numbers are 32 bits, little-endian, and each payload follows its length.
// Standard output: a line for each repetition, the sum of the relation ids of what was decoded.
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
