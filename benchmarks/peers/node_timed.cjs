// Decodes with the parser of a package, for cases/decoders.py: node node_timed.cjs MODULES PACKAGE
// Standard input: the number of payloads to decode once before timing, and those payloads; the number of payloads to
// time, and those payloads; then one line break per repetition. Numbers have 32 bits, little-endian. Each payload comes
// after its length.
// Standard output: one line per repetition, the sum of the relation ids of the decoded payloads.
"use strict";
const path = require("path");
const fs = require("fs");

const [modules, name] = process.argv.slice(2);

// For each package, a function that returns the decoder of a payload.
const packages = {
    "pg-logical-replication": async () => {
        const place = path.join(modules, name, "dist", "output-plugins", "pgoutput", "pgoutput-parser.js");
        const parser = new (require(place).PgoutputParser)();
        return (payload) => parser.parse(payload);
    },
    // Its reader is not exported, so the module's text is loaded with an export.
    pgwire: async () => {
        const text = fs.readFileSync(path.join(modules, name, "mod.js"), "utf8") + "\nexport { PgoutputReader };";
        const module = await import("data:text/javascript;base64," + Buffer.from(text).toString("base64"));
        const reader = new module.PgoutputReader();
        return (payload) => {
            const message = {};
            reader._reset(payload);
            reader._upgradeMsg(message);
            return message;
        };
    },
};

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

async function main() {
    const decode = await packages[name]();
    payloads().forEach((payload) => decode(payload));
    const timed = payloads();
    for (;;) {
        read(1);
        let ids = 0;
        for (const payload of timed) {
            const message = decode(payload);
            ids += message.relationOid ?? message.relation?.relationOid ?? 0;
        }
        fs.writeSync(1, `${ids}\n`);
    }
}

main();
