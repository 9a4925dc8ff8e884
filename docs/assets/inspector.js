// The payload inspector: decodes pgoutput messages in the browser, and shows where each field lies.
// The layout of the messages is in messages.json, which `make readme` writes from pgdecode/protocol/messages.py.
"use strict";

globalThis.inspector = (() => {
    const EPOCH_US = 946684800000000n; // 2000-01-01 minus 1970-01-01
    const MAX_INT64 = 2n ** 63n - 1n;
    const MAX_LENGTH = 0x3fffffff; // MaxAllocSize, utils/memutils.h
    const FRAME_BYTES = 25; // XLogData: tag, start, end, time
    const KEEPALIVE_BYTES = 18; // tag, end of WAL, time, whether an answer is requested
    const MOST_SHOWN = 500; // payloads

    class Fault extends Error {
        constructor(code, offset, detail) {
            super(detail);
            this.code = code;
            this.offset = offset;
        }
    }

    // -- input: what is pasted, as payloads ------------------------------------------------------------------------

    // Bytes one by one: 0x55, 0x00 or 55:00.
    const BYTES = /^\s*(?:0x[0-9a-f]{1,2}(?:[\s,]+0x[0-9a-f]{1,2})*[\s,]*|[0-9a-f]{2}(?::[0-9a-f]{2})+\s*)$/i;

    /** Bytes of hexadecimal digits or base64, with any spaces between them; null if the text is neither. */
    function decodedText(text) {
        if (BYTES.test(text)) return Uint8Array.from(text.match(/[0-9a-f]{1,2}(?!x)/gi), (byte) => parseInt(byte, 16));
        const plain = text.replace(/\\+x|^\s*0x|[\s"',]/g, "");
        if (/^(?:[0-9a-fA-F]{2})*$/.test(plain)) {
            return Uint8Array.from(plain.match(/../g) ?? [], (pair) => parseInt(pair, 16));
        }
        // Digits of which one is missing, and not base64 that happens to have no other letters.
        if (plain.length >= 16 && /^[0-9a-fA-F]+$/.test(plain)) return null;
        if (/^[A-Za-z0-9+/_-]+={0,2}$/.test(plain) && plain.replace(/=+$/, "").length % 4 !== 1) {
            const standard = plain.replace(/-/g, "+").replace(/_/g, "/");
            return Uint8Array.from(atob(standard), (letter) => letter.charCodeAt(0));
        }
        return null;
    }

    function bytesFrom(text) {
        const bytes = decodedText(text);
        if (bytes) return bytes;
        const what = looksLike(text);
        throw new Error(
            what ? `This looks like ${what}.` : "This is neither hexadecimal nor base64. Each byte has two hexadecimal digits.",
        );
    }

    /** The format that a text or bytes appear to have, in the words of pgdecode's commands; null if it is not recognised. */
    function looksLike(value) {
        const text = typeof value === "string" ? value : latin1(value);
        const start = text.trimStart().slice(0, 400);
        const instead = "read the slot with the plugin pgoutput instead";
        if (/^[{[]/.test(start)) {
            const isEvent = start.includes('"op"') && /"(?:before|after|source)"/.test(start);
            if (/"payload"\s*:\s*\{/.test(start) || isEvent) return "JSON from Debezium, which has already decoded pgoutput";
            return `${/"(?:change|action)"/.test(start) ? "wal2json" : "JSON"}: ${instead}`;
        }
        if (/^(?:(?:BEGIN|COMMIT)(?: \d+)?(?:\s|$)|table .+: (?:INSERT|UPDATE|DELETE|TRUNCATE):)/.test(start)) {
            return `text of test_decoding: ${instead}`;
        }
        if (/^[ -~]*\\(?:[0-3][0-7]{2}|\\)[ -~]*$/.test(start) && /^[A-Za-z]/.test(start)) {
            return "bytea in escape format: SET bytea_output = hex, and read the slot again";
        }
        if (text.startsWith("\x1f\x8b") || text.startsWith("\x28\xb5\x2f\xfd")) return "compressed data: decompress it first";
        return null;
    }

    const latin1 = (bytes) => Array.from(bytes.subarray(0, 1000), (byte) => String.fromCharCode(byte)).join("");
    const LSN = /\b[0-9A-F]{1,8}\/[0-9A-F]{1,8}\b/i;

    /** Payloads of a dump of xxd, hexdump -C, od -A x -t x1 or Wireshark, whose offsets must be right; null if it is none. */
    function dumped(lines) {
        const payloads = [];
        let bytes = null;
        let isRepeated = false;
        for (const line of lines) {
            if (line.trim() === "*" && bytes?.length) {
                isRepeated = true;
                continue;
            }
            const [, digits, colon, rest] = line.match(/^\s*([0-9a-f]{4,16})(:?)(\s.*)?$/i) ?? [];
            if (digits === undefined) return null;
            const offset = parseInt(digits, 16);
            while (isRepeated && bytes.length < offset) bytes.push(...bytes.slice(-16));
            isRepeated = false;
            if (offset === 0) payloads.push((bytes = []));
            if (offset !== bytes?.length) return null;
            const columns = (rest ?? "").replace(/\|.*$/, "").trim().split(colon ? /\s{2,}/ : /\s{3,}/)[0];
            if (!/^[0-9a-f\s]*$/i.test(columns)) return null;
            bytes.push(...(columns.replace(/\s/g, "").match(/../g) ?? []).map((pair) => parseInt(pair, 16)));
        }
        // A single line without spaces is digits of a payload.
        return payloads.length && bytes.length ? payloads.map((one) => ({ bytes: Uint8Array.from(one) })) : null;
    }

    /** The bytes of a literal of Python such as b'B\x00'. */
    function literalBytes(text) {
        const escapes = { n: 10, r: 13, t: 9, "\\": 92, "'": 39, '"': 34 };
        const parts = text.match(/\\x[0-9a-f]{2}|\\.|[^\\]/gis) ?? [];
        const code = (part) => (/^\\x/i.test(part) ? parseInt(part.slice(2), 16) : escapes[part[1]]);
        return Uint8Array.from(parts, (part) => (part[0] === "\\" ? code(part) : part.charCodeAt(0)));
    }

    /** The payload in a line of psql, of CSV or of JSON; null in a heading, and undefined if there is none. */
    function payloadIn(line) {
        const lsn = line.match(LSN)?.[0].toUpperCase();
        if (/^[\s+|\u2500-\u257f-]+$|^\(\d+ rows?\)$|^-\[ RECORD \d+ \][-+]*$|^\W*(?:(?:lsn|xid|data|seq)\W*)+$/i.test(line)) return null;
        const literal = line.match(/^b(['"])(.*)\1,?$/s);
        if (literal) return { bytes: literalBytes(literal[2]) };
        if (/^\s*[{[]/.test(line)) {
            let item;
            try {
                item = JSON.parse(line.replace(/,\s*$/, ""));
            } catch {
                return undefined;
            }
            const data = Array.isArray(item) ? item[2] : item.data;
            const bytes = typeof data === "string" ? decodedText(data) : null;
            return bytes ? { bytes, lsn } : undefined;
        }
        const escaped = line.match(/\\{1,2}x([0-9a-f]*)/i);
        if (escaped) return escaped[1].length % 2 ? undefined : { bytes: decodedText(escaped[1]), lsn };
        if (/^\s*(?:lsn|xid|seq)\s*\|/.test(line)) return null;
        // A cell of psql, which may have a border on the right, or a cell of CSV.
        const cell = line.replace(/[|│]\s*$/, "").split(/[|│,;\t]/).at(-1);
        const bytes = decodedText(BYTES.test(line) ? line : cell);
        return bytes?.length ? { bytes, lsn } : undefined;
    }

    /** The payloads of a pasted text, each with its LSN if the text has it. Throws an Error if there is none. */
    function payloadsFrom(text, table) {
        // A list of Python has all of its literals in one line.
        const literals = /^\s*[[(]\s*b['"]/.test(text) ? text.match(/b'(?:[^'\\]|\\.)*'|b"(?:[^"\\]|\\.)*"/g) : null;
        const lines = literals ?? text.split(/\r?\n/).filter((line) => line.trim());
        const cells = lines.map((line) => (/^b['"]/.test(line) ? "" : line.split("|").at(-1).trim()));
        // Some of these texts would also be base64.
        const foreign = cells.map(looksLike).find((what) => what && !what.includes("JSON") && !what.includes("json"));
        if (foreign) throw new Error(`This looks like ${foreign}.`);
        const dump = lines.length > 1 || /^\s*0+:?\s/.test(text) ? dumped(lines) : null;
        if (dump) return dump;
        const isPayload = (bytes) => bytes?.length && (isFrame(bytes) || table.messages.some((item) => item.tag.charCodeAt(0) === bytes[0]));
        const joined = decodedText(text);
        const escapes = text.match(/\\x/g)?.length ?? 0;
        if (joined && escapes <= 1 && (lines.length === 1 || !decode(joined, table).fault)) return [{ bytes: joined }];
        const items = lines.map((line, i) => ({ line: i + 1, read: payloadIn(line), text: line }));
        const payloads = items.filter((item) => item.read?.bytes);
        const json = payloads.length ? null : cells.map(looksLike).find((what) => what);
        if (json) throw new Error(`This looks like ${json}.`);
        if (!payloads.length || (!escapes && joined && !payloads.every((item) => isPayload(item.read.bytes)))) {
            return [{ bytes: bytesFrom(text) }];
        }
        // With psql's expanded display, the LSN is in a line before.
        let lsn;
        const shown = [];
        for (const { line, read, text: one } of items) {
            if (read === null) lsn = one.match(LSN)?.[0].toUpperCase() ?? lsn;
            else if (read === undefined) shown.push({ error: `Line ${line} has no payload that can be read.` });
            else shown.push({ ...read, lsn: read.lsn ?? lsn });
            if (read?.bytes) lsn = undefined;
        }
        return shown;
    }

    // -- reading ---------------------------------------------------------------------------------------------------

    class Reader {
        constructor(bytes, table) {
            this.bytes = bytes;
            this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
            this.table = table;
            this.at = 0;
            this.fields = []; // { name, start, end, value, note }
        }

        get left() {
            return this.bytes.length - this.at;
        }

        take(count, name) {
            if (count > this.left) throw new Fault("TRUNCATED", this.at, `${name} needs ${count} bytes, ${this.left} left`);
            this.at += count;
            return this.at - count;
        }

        note(name, start, value, note = "") {
            this.fields.push({ name, start, end: this.at, value, note });
            return value;
        }

        uint(size, name) {
            const start = this.take(size, name);
            if (size === 1) return this.view.getUint8(start);
            return size === 2 ? this.view.getUint16(start) : this.view.getUint32(start);
        }

        letter(name, allowed, code) {
            const start = this.take(1, name);
            const letter = String.fromCharCode(this.bytes[start]);
            if (!allowed.includes(letter)) {
                throw new Fault(code, start, `${name} is ${printable(letter)}, expected one of ${allowed.split("").join(" ")}`);
            }
            return letter;
        }

        text(name, most, mayBeEmpty) {
            const start = this.at;
            const end = this.bytes.indexOf(0, start);
            if (end < 0) throw new Fault("NO_NUL", start, `${name} has no terminating NUL in the ${this.left} bytes left`);
            if (most !== undefined && end - start > most) {
                throw new Fault("LIMIT_NAME", start, `${name} has ${end - start} bytes, limit ${most}`);
            }
            if (end === start && !mayBeEmpty) throw new Fault("EMPTY_NAME", start, `${name} is empty`);
            this.at = end + 1;
            const bad = firstBadUtf8(this.bytes, start, end);
            if (bad !== null) throw new Fault("ENCODING", bad, `${name} is not UTF-8`);
            return new TextDecoder().decode(this.bytes.subarray(start, end));
        }

        value(name) {
            const length = this.uint(4, `length of ${name}`);
            if (length > MAX_LENGTH) throw new Fault("BAD_LENGTH", this.at - 4, `length of ${name} is ${length}`);
            const start = this.take(length, name);
            const most = this.table.limits.max_value_bytes;
            if (length > most) throw new Fault("LIMIT_VALUE", start - 4, `${name} has ${length} bytes, limit ${most}`);
            return this.bytes.subarray(start, this.at);
        }

        count(name) {
            const count = this.uint(2, name);
            const most = this.table.limits.max_columns;
            if (count > most) throw new Fault("LIMIT_COLUMNS", this.at - 2, `${name} is ${count}, limit ${most}`);
            return count;
        }

        tuple(name) {
            let start = this.at;
            const n = this.note(`${name}: columns`, start, this.count(`${name}: columns`));
            const values = [];
            let formats = "";
            for (let i = 0; i < n; i++) {
                start = this.at;
                const kind = this.letter(`${name}[${i}] kind`, "nutb", "BAD_COLUMN_KIND");
                formats += kind;
                const value = kind === "n" || kind === "u" ? null : this.value(`${name}[${i}]`);
                values.push(value === null ? null : hex(value));
                const what = { n: "null", u: "unchanged TOAST value, not sent", t: "text", b: "binary" }[kind];
                const length = value === null ? "" : `, ${value.length} bytes`;
                this.note(`${name}[${i}]`, start, value === null ? what : shownBytes(value, kind), `${kind}: ${what}${length}`);
                this.fields.at(-1).cell = { index: i, kind, value };
            }
            return [values, formats];
        }
    }

    function firstBadUtf8(bytes, start, end) {
        const good = (from, to) => {
            try {
                new TextDecoder("utf-8", { fatal: true }).decode(bytes.subarray(from, to));
                return true;
            } catch {
                return false;
            }
        };
        if (good(start, end)) return null;
        for (let at = start; at < end; ) {
            const byte = bytes[at];
            const size = byte < 0x80 ? 1 : byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2;
            if (at + size > end || !good(at, at + size)) return at;
            at += size;
        }
        return start;
    }

    // One function for each form of messages.json. Each returns the field's value.
    const FORMS = {
        XID_PREFIX: (reader, field) => FORMS.UINT32(reader, field),
        UINT32(reader, { name, minimum = 0 }) {
            const start = reader.at;
            const value = reader.uint(4, name);
            if (value < minimum) throw new Fault("BAD_VALUE", start, `${name} is ${value}`);
            return reader.note(name, start, value, name === "type_id" ? reader.table.types[value] ?? "not built in" : "");
        },
        INT32(reader, { name }) {
            const start = reader.take(4, name);
            return reader.note(name, start, reader.view.getInt32(start));
        },
        FLAGS(reader, { name, maximum = 0 }, message) {
            const start = reader.at;
            const value = reader.uint(1, name);
            if (value > maximum && reader.strict) throw new Fault("BAD_FLAGS", start, `${name} is ${value}, maximum ${maximum}`);
            reader.note(name, start, value, FLAG_NOTES[message ? name : "column"]?.[value] ?? "");
            return name === "first_segment" ? value !== 0 : value;
        },
        LETTER(reader, { name, letters }) {
            const start = reader.at;
            const value = reader.letter(name, letters, "BAD_VALUE");
            return reader.note(name, start, value, { d: "default", n: "nothing", f: "full", i: "index" }[value] ?? "");
        },
        LSN(reader, { name }) {
            const start = reader.take(8, name);
            const value = reader.view.getBigUint64(start);
            if (value > MAX_INT64) throw new Fault("OUT_OF_RANGE", start, `${name} is above 2^63 - 1`);
            reader.note(name, start, lsnText(value), value.toString());
            return value;
        },
        TIMESTAMP(reader, { name }) {
            const start = reader.take(8, name);
            const value = reader.view.getBigInt64(start) + EPOCH_US;
            if (value > MAX_INT64) throw new Fault("OUT_OF_RANGE", start, `${name} is out of range`);
            reader.note(name, start, timeText(value), `${value} µs since 1970`);
            return value;
        },
        NAME(reader, { name, may_be_empty: mayBeEmpty }) {
            const start = reader.at;
            const value = reader.text(name, reader.table.limits.max_name_bytes, mayBeEmpty);
            return reader.note(name, start, value, value === "" ? "empty: pg_catalog" : "");
        },
        TEXT(reader, { name }) {
            const start = reader.at;
            return reader.note(name, start, reader.text(name, undefined, true));
        },
        CONTENT(reader, { name }) {
            const start = reader.at;
            const value = reader.value(name);
            reader.note(name, start, shownBytes(value, "t"), `${value.length} bytes`);
            return hex(value);
        },
        COUNT(reader, { name }) {
            const start = reader.at;
            reader.relationCount = reader.note(name, start, reader.uint(4, name));
        },
        RELATION_IDS(reader, { name }) {
            const ids = [];
            for (let i = 0; i < reader.relationCount; i++) {
                const start = reader.at;
                ids.push(reader.note(`${name}[${i}]`, start, reader.uint(4, `${name}[${i}]`)));
            }
            return ids;
        },
        COLUMNS(reader, { name }) {
            const start = reader.at;
            const n = reader.note(`${name}: count`, start, reader.count(`${name}: count`));
            const columns = [];
            for (let i = 0; i < n; i++) {
                const column = {};
                const first = reader.fields.length;
                for (const field of reader.table.column) column[field.name] = FORMS[field.form](reader, field);
                for (const field of reader.fields.slice(first)) field.name = `${name}[${i}].${field.name}`;
                columns.push(column);
            }
            return columns;
        },
        OLD_TYPE(reader, { name, letters, optional }) {
            const start = reader.at;
            const value = reader.letter(name, optional ? letters + "N" : letters, "BAD_TUPLE_TAG");
            if (value === "N") {
                reader.at = start; // the new tuple begins here
                return null;
            }
            return reader.note(name, start, value, value === "K" ? "the old key follows" : "the whole old row follows");
        },
        OLD_TUPLE: (reader, { name }, message) => (message.old_type ? tupleInto(reader, name, message) : null),
        NEW_TUPLE(reader, { name }, message) {
            const start = reader.at;
            reader.letter("new tuple", "N", "BAD_TUPLE_TAG");
            reader.note("new tuple", start, "N", "the new row follows");
            return tupleInto(reader, name, message);
        },
    };
    const FLAG_NOTES = {
        column: { 1: "part of the key" },
        flags: { 1: "transactional" },
        options: { 1: "CASCADE", 2: "RESTART IDENTITY", 3: "CASCADE, RESTART IDENTITY" },
        first_segment: { 0: "not the first block", 1: "the first block" },
    };

    function tupleInto(reader, name, message) {
        const [values, formats] = reader.tuple(name);
        message[`${name}_formats`] = formats;
        return values;
    }

    function read(bytes, table, inStream, strict) {
        const reader = new Reader(bytes, table);
        reader.strict = strict;
        const message = {};
        const answer = { fields: reader.fields, message, about: null, fault: null };
        try {
            if (!bytes.length) throw new Fault("EMPTY", 0, "the payload has no bytes");
            const tag = String.fromCharCode(bytes[0]);
            const layout = table.messages.find((item) => item.tag === tag);
            if (!layout) throw new Fault("UNKNOWN_TAG", 0, `no message begins with ${printable(tag)}`);
            answer.about = layout;
            message.kind = layout.kind;
            reader.at = 1;
            reader.note("tag", 0, tag, layout.name);
            for (const field of layout.fields) {
                if (field.form === "FORMATS" || (field.form === "XID_PREFIX" && !inStream)) continue;
                if (layout.tag === "A" && field.optional && reader.left === 0 && field.form === "LSN") break;
                const value = FORMS[field.form](reader, field, message);
                const column = field.column;
                if (column && value !== null && value !== undefined) message[column] = value;
            }
            if (reader.left) throw new Fault("TRAILING", reader.at, `the message ends here, ${reader.left} bytes left over`);
        } catch (fault) {
            if (!(fault instanceof Fault)) throw fault;
            answer.fault = { code: fault.code, offset: fault.offset, detail: fault.message };
        }
        return answer;
    }

    /** Decode a message. `inStream`: true, false, or null to try both. */
    function decode(bytes, table, inStream = null, strict = true) {
        const guess = inStream === null;
        const answer = read(bytes, table, inStream ?? false, strict);
        const mayHaveXid = answer.about?.fields[0]?.form === "XID_PREFIX";
        if (!answer.fault || !mayHaveXid || answer.fault.code.startsWith("LIMIT_")) return answer;
        const other = read(bytes, table, !(inStream ?? false), strict);
        if (other.fault) return answer;
        if (guess) return { ...other, note: "Reads well only as a message inside a stream: it carries an xid." };
        const where = inStream ? "outside" : "inside";
        return { ...answer, fault: { code: "STATE_DESYNC", offset: 1, detail: `this reads well only ${where} a stream` } };
    }

    // -- text of values --------------------------------------------------------------------------------------------

    const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
    const printable = (letter) => (/[!-~]/.test(letter) ? `'${letter}'` : `0x${hex([letter.charCodeAt(0)])}`);
    const lsnText = (lsn) => `${(lsn >> 32n).toString(16)}/${(lsn & 0xffffffffn).toString(16)}`.toUpperCase();

    function timeText(us) {
        const date = new Date(Number(us / 1000n));
        if (Number.isNaN(date.getTime())) return `${us} µs since 1970`;
        const micros = (((us % 1000000n) + 1000000n) % 1000000n).toString().padStart(6, "0");
        return date.toISOString().replace(/\.\d+Z/, `.${micros}Z`);
    }

    function shownBytes(bytes, kind) {
        const most = 200;
        if (kind === "t") {
            try {
                const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
                return text.length > most ? `${text.slice(0, most)}…` : text;
            } catch {
                // Not UTF-8: shown as hexadecimal digits.
            }
        }
        return `\\x${hex(bytes.subarray(0, most))}${bytes.length > most ? "…" : ""}`;
    }

    // -- the page --------------------------------------------------------------------------------------------------

    const isFrame = (bytes) => "wkd".includes(String.fromCharCode(bytes[0]));

    /**
     * Split what wraps payloads: CopyData messages of the wire (d), XLogData frames (w) and keepalives (k).
     * Each part has the fields of its frame, and the payload in it; a keepalive has none.
     */
    function unframed(bytes) {
        const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        const parts = [];
        let start = 0;
        const fields = [];
        const note = (name, size, value, meaning) => {
            fields.push({ name, start, end: start + size, value, note: meaning });
            start += size;
        };
        let end = bytes.length;
        if (bytes[0] === 0x64 && bytes.length >= 5) {
            // CopyData: 'd', the length with itself, and the content. Several may follow each other.
            end = 1 + view.getUint32(1);
            if (end < 5 || end > bytes.length) end = bytes.length;
            note("CopyData", 1, "d", "a message of the wire protocol");
            note("CopyData length", 4, view.getUint32(1), "bytes, with the length itself");
        }
        const tag = start < end ? String.fromCharCode(bytes[start]) : "";
        if (tag === "w" && end - start >= FRAME_BYTES) {
            note("frame", 1, "w", "XLogData of the replication protocol");
            note("frame start", 8, lsnText(view.getBigUint64(start)), "LSN of the frame");
            note("frame end", 8, lsnText(view.getBigUint64(start)), "end of WAL on the server");
            note("frame time", 8, timeText(view.getBigInt64(start) + EPOCH_US), "the server's clock");
        } else if (tag === "k" && end - start === KEEPALIVE_BYTES) {
            note("frame", 1, "k", "keepalive of the replication protocol, without a payload");
            note("end of WAL", 8, lsnText(view.getBigUint64(start)), "on the server");
            note("time", 8, timeText(view.getBigInt64(start) + EPOCH_US), "the server's clock");
            note("reply requested", 1, bytes[start], bytes[start] ? "the server waits for an answer" : "");
            parts.push({ bytes: bytes.subarray(0, end), fields, payload: null, skipped: end });
        }
        if (!parts.length) {
            parts.push({ bytes: bytes.subarray(0, end), fields, payload: bytes.subarray(start, end), skipped: start });
        }
        return end < bytes.length ? [...parts, ...unframed(bytes.subarray(end))] : parts;
    }

    /** Decode payloads that follow each other: relations name the columns of rows, and streams tell which carry an xid. */
    function decodeAll(items, table, inStream = null, strict = true) {
        const relations = new Map();
        const types = { ...table.types };
        let isStream = null;
        const parts = items.flatMap((item) => (item.error ? [item] : unframed(item.bytes).map((part) => ({ ...item, ...part }))));
        return parts.map((part) => {
            if (part.error) return part;
            if (part.payload === null) {
                const text = `end of WAL ${part.fields.at(-3).value}, time ${part.fields.at(-2).value}`;
                return { ...part, answer: { fields: [], about: null, fault: null, message: {} }, summary: text };
            }
            const answer = decode(part.payload, table, inStream ?? isStream, strict);
            const { message } = answer;
            if (!answer.fault && inStream === null) {
                if (message.kind === "stream_start") isStream = true;
                if (message.kind === "stream_stop") isStream = false;
            }
            if (!answer.fault && message.kind === "type") types[message.type_id] = message.name;
            if (!answer.fault && message.kind === "relation") relations.set(message.relation_id, message);
            const relation = relations.get(message.relation_id);
            for (const field of answer.fields) {
                const column = field.cell && relation?.columns[field.cell.index];
                if (!column) continue;
                const type = types[column.type_id] ?? `type ${column.type_id}`;
                field.name += ` ${column.name}`;
                field.note = `${type}, ${field.note.replace(/^.: /, "")}`;
                if (field.cell.kind === "b") field.value = binaryText(field.cell.value, type) ?? field.value;
            }
            return { ...part, answer, relation, summary: summary(answer, relation, types) };
        });
    }

    /** The text of a binary value of a simple type; null if the type or the length is another one. */
    function binaryText(bytes, type) {
        const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
        const readers = {
            bool: [1, () => String(view.getUint8(0) !== 0)],
            int2: [2, () => view.getInt16(0)],
            int4: [4, () => view.getInt32(0)],
            int8: [8, () => view.getBigInt64(0)],
            oid: [4, () => view.getUint32(0)],
            float4: [4, () => view.getFloat32(0)],
            float8: [8, () => view.getFloat64(0)],
            date: [4, () => timeText(BigInt(view.getInt32(0)) * 86400000000n + EPOCH_US).replace(/T.*/, "")],
            timestamp: [8, () => timeText(view.getBigInt64(0) + EPOCH_US).replace("Z", "")],
            timestamptz: [8, () => timeText(view.getBigInt64(0) + EPOCH_US)],
            uuid: [16, () => hex(bytes).replace(/(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-")],
        };
        if (["text", "varchar", "bpchar", "name", "json", "xml"].includes(type)) return shownBytes(bytes, "t");
        const [size, read] = readers[type] ?? [];
        return size === bytes.length ? String(read()) : null;
    }

    const shortened = (text, most) => (text.length > most ? `${text.slice(0, most)}…` : text);

    /** What a message says, on one line. */
    function summary({ fields, message, fault }, relation, types) {
        if (fault) return fault.code;
        if (message.kind === "relation") {
            const columns = message.columns.map(
                (item) => `${item.name}${item.flags & 1 ? "*" : ""} ${types[item.type_id] ?? `type ${item.type_id}`}`,
            );
            return `${message.namespace || "pg_catalog"}.${message.name}: ${columns.join(", ")}`;
        }
        if (message.relation_id !== undefined) {
            const name = relation ? `${relation.namespace || "pg_catalog"}.${relation.name}` : `relation ${message.relation_id}`;
            const sent = fields.filter((field) => field.cell && field.cell.kind !== "u");
            const news = sent.filter((field) => field.name.startsWith("new"));
            const cells = (news.length ? news : sent).map(
                (field) => `${field.name.replace(/^\w+\[\d+\] /, "")} ${shortened(String(field.value), 40)}`,
            );
            return `${name}: ${cells.join(", ")}`;
        }
        return fields
            .slice(1)
            .map((field) => `${field.name} ${field.value}`)
            .join(", ");
    }

    function element(name, properties = {}, ...children) {
        const made = Object.assign(document.createElement(name), properties);
        made.append(...children);
        return made;
    }

    function dump(bytes, fields, fault) {
        const most = 4096;
        const owner = new Array(bytes.length).fill(-1);
        fields.forEach((field, i) => owner.fill(i, field.start, field.end));
        const lines = [];
        for (let at = 0; at < Math.min(bytes.length, most); at += 16) {
            const line = element("div", { className: "line" }, element("span", { className: "at" }, at.toString().padStart(5)));
            for (let i = at; i < Math.min(at + 16, bytes.length); i++) {
                const cell = element("span", { className: `byte shade${owner[i] < 0 ? "-none" : owner[i] % 4}` }, hex([bytes[i]]));
                cell.dataset.field = owner[i];
                if (i === fault?.offset) cell.classList.add("fault");
                cell.title = owner[i] < 0 ? "" : fields[owner[i]].name;
                line.append(cell);
            }
            lines.push(line);
        }
        if (bytes.length > most) lines.push(element("div", {}, `… ${bytes.length - most} more bytes`));
        return element("div", { className: "dump" }, ...lines);
    }

    function fieldTable(fields) {
        const rows = fields.slice(0, 2000).map((field, i) => {
            const cells = [
                element("td", { className: "number" }, String(field.start)),
                element("td", { className: "number" }, String(field.end - field.start)),
                element("td", { className: `shade${i % 4}` }, field.name),
                element("td", { className: "value" }, String(field.value)),
                element("td", {}, field.note),
            ];
            const row = element("tr", {}, ...cells);
            row.dataset.field = i;
            return row;
        });
        const heads = ["offset", "bytes", "field", "value", "meaning"].map((name) => element("th", {}, name));
        return element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
    }

    const plain = (text) => text.replace(/`/g, "");

    /** What follows a fault: the format that the bytes appear to have, or else the remedy of its code. */
    function remedy(fault, payload, table) {
        if (fault.code !== "UNKNOWN_TAG") return plain(table.errors[fault.code]?.remedy ?? "");
        const what = looksLike(payload);
        return what ? `This looks like ${what}.` : "This is no pgoutput message, and no other format that is recognised.";
    }

    /** The elements of one payload: what it is, its fault, its bytes and its fields. */
    function shown(part, table) {
        const { bytes, answer, skipped, payload } = part;
        const moved = (field) => ({ ...field, start: field.start + skipped, end: field.end + skipped });
        const fields = [...part.fields, ...answer.fields.map(moved)];
        const fault = answer.fault && { ...answer.fault, offset: answer.fault.offset + skipped };
        const elements = [];
        if (answer.about) {
            const link = element("a", { href: "../messages/#messages" }, `${answer.about.name} (${answer.about.tag})`);
            elements.push(element("p", { className: "about" }, link, `: ${plain(answer.about.about)} ${bytes.length} bytes.`));
        }
        if (answer.note) elements.push(element("p", {}, answer.note));
        if (fault) {
            const link = element("a", { href: `../errors/#${fault.code.toLowerCase()}` }, fault.code);
            const text = ` at offset ${fault.offset}: ${fault.detail}. ${remedy(fault, payload, table)}`;
            elements.push(element("p", { className: "fault-text" }, link, text));
        }
        const place = element("div", {}, ...elements, dump(bytes, fields, fault), fieldTable(fields));
        for (const cell of place.querySelectorAll("[data-field]")) {
            cell.addEventListener("mouseenter", () => {
                for (const other of place.querySelectorAll("[data-field]")) {
                    other.classList.toggle("marked", other.dataset.field === cell.dataset.field && cell.dataset.field !== "-1");
                }
            });
        }
        return place;
    }

    function show(place, text, table, inStream) {
        place.replaceChildren();
        if (!text.trim()) return;
        let parts;
        try {
            parts = decodeAll(payloadsFrom(text, table), table, inStream);
        } catch (error) {
            place.append(element("p", { className: "fault-text" }, error.message));
            return;
        }
        if (parts.length === 1) {
            place.append(parts[0].error ? element("p", { className: "fault-text" }, parts[0].error) : shown(parts[0], table));
            return;
        }
        const faults = parts.filter((part) => part.error || part.answer.fault).length;
        place.append(element("p", { className: "about" }, `${parts.length} payloads, ${faults} with a fault.`));
        for (const [i, part] of parts.slice(0, MOST_SHOWN).entries()) {
            if (part.error) {
                place.append(element("p", { className: "fault-text" }, part.error));
                continue;
            }
            const name = part.answer.about?.name ?? (part.payload === null ? "Keepalive" : "No message");
            const heading = element(
                "summary",
                {},
                element("strong", {}, `${i + 1} ${name}`),
                part.lsn ? ` at ${part.lsn}` : "",
                part.summary ? ` · ${shortened(part.summary, 240)}` : "",
            );
            const details = element("details", { className: part.answer.fault ? "failure" : "abstract" }, heading);
            // Fields are made when they are first looked at: a paste may have many payloads.
            const fill = () => details.open && details.children.length === 1 && details.append(shown(part, table));
            details.addEventListener("toggle", fill);
            details.open = Boolean(part.answer.fault) && faults <= 3;
            fill();
            place.append(details);
        }
        if (parts.length > MOST_SHOWN) place.append(element("p", {}, `… ${parts.length - MOST_SHOWN} more payloads`));
    }

    async function start(root) {
        const table = await (await fetch(root.dataset.messages)).json();
        const input = root.querySelector("textarea");
        const [example, stream] = root.querySelectorAll("select");
        const place = root.querySelector(".result");
        for (const [i, item] of table.examples.entries()) example.append(new Option(item.name, i));
        const update = () => show(place, input.value, table, { auto: null, yes: true, no: false }[stream.value]);
        input.addEventListener("input", update);
        stream.addEventListener("change", update);
        example.addEventListener("change", () => {
            const item = table.examples[example.value];
            if (!item) return;
            input.value = item.payload;
            update();
        });
        const asked = new URLSearchParams(location.hash.slice(1)).get("payload");
        input.value = asked ?? table.examples[0].payload;
        update();
    }

    return { bytesFrom, decode, decodeAll, looksLike, payloadsFrom, start };
})();

if (globalThis.document) {
    for (const root of document.querySelectorAll(".inspector")) globalThis.inspector.start(root);
}
