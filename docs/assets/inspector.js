// The payload inspector: decodes one pgoutput message in the browser, and shows where each field lies.
// The layout of the messages is in messages.json, which `make readme` writes from pgdecode/protocol/messages.py.
"use strict";

globalThis.inspector = (() => {
    const EPOCH_US = 946684800000000n; // 2000-01-01 minus 1970-01-01
    const MAX_INT64 = 2n ** 63n - 1n;
    const MAX_LENGTH = 0x3fffffff; // MaxAllocSize, utils/memutils.h
    const FRAME_BYTES = 25; // XLogData: tag, start, end, time

    class Fault extends Error {
        constructor(code, offset, detail) {
            super(detail);
            this.code = code;
            this.offset = offset;
        }
    }

    // -- input: hexadecimal or base64 ------------------------------------------------------------------------------

    function bytesFrom(text) {
        const plain = text.replace(/\\x|^\s*0x|[\s"',]/g, "");
        if (/^(?:[0-9a-fA-F]{2})*$/.test(plain)) {
            return Uint8Array.from(plain.match(/../g) ?? [], (pair) => parseInt(pair, 16));
        }
        if (/^[A-Za-z0-9+/_-]+={0,2}$/.test(plain) && plain.replace(/=+$/, "").length % 4 !== 1) {
            const standard = plain.replace(/-/g, "+").replace(/_/g, "/");
            return Uint8Array.from(atob(standard), (letter) => letter.charCodeAt(0));
        }
        throw new Error("This is neither hexadecimal nor base64. An odd number of hexadecimal digits is not either.");
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

    /** Split a replication frame: its fields, and the payload in it. Other bytes are a payload as they are. */
    function unframed(bytes) {
        if (bytes[0] !== 0x77 || bytes.length < FRAME_BYTES) return { fields: [], payload: bytes, skipped: 0 };
        const view = new DataView(bytes.buffer, bytes.byteOffset);
        const fields = [
            { name: "frame", start: 0, end: 1, value: "w", note: "XLogData of the replication protocol" },
            { name: "frame start", start: 1, end: 9, value: lsnText(view.getBigUint64(1)), note: "LSN of the frame" },
            { name: "frame end", start: 9, end: 17, value: lsnText(view.getBigUint64(9)), note: "end of WAL on the server" },
            { name: "frame time", start: 17, end: 25, value: timeText(view.getBigInt64(17) + EPOCH_US), note: "" },
        ];
        return { fields, payload: bytes.subarray(FRAME_BYTES), skipped: FRAME_BYTES };
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

    function show(place, text, table, inStream) {
        place.replaceChildren();
        if (!text.trim()) return;
        let bytes;
        try {
            bytes = bytesFrom(text);
        } catch (error) {
            place.append(element("p", { className: "fault-text" }, error.message));
            return;
        }
        const frame = unframed(bytes);
        const answer = decode(frame.payload, table, inStream);
        const moved = (field) => ({ ...field, start: field.start + frame.skipped, end: field.end + frame.skipped });
        const fields = [...frame.fields, ...answer.fields.map(moved)];
        const fault = answer.fault && { ...answer.fault, offset: answer.fault.offset + frame.skipped };
        if (answer.about) {
            const link = element("a", { href: "../messages/#messages" }, `${answer.about.name} (${answer.about.tag})`);
            place.append(element("p", { className: "about" }, link, `: ${answer.about.about} ${bytes.length} bytes.`));
        }
        if (answer.note) place.append(element("p", {}, answer.note));
        if (fault) {
            const link = element("a", { href: `../errors/#${fault.code.toLowerCase()}` }, fault.code);
            const remedy = table.errors[fault.code]?.remedy.replace(/`/g, "") ?? "";
            place.append(
                element("p", { className: "fault-text" }, link, ` at offset ${fault.offset}: ${fault.detail}. ${remedy}`),
            );
        }
        place.append(dump(bytes, fields, fault), fieldTable(fields));
        for (const cell of place.querySelectorAll("[data-field]")) {
            cell.addEventListener("mouseenter", () => {
                for (const other of place.querySelectorAll("[data-field]")) {
                    other.classList.toggle("marked", other.dataset.field === cell.dataset.field && cell.dataset.field !== "-1");
                }
            });
        }
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

    return { bytesFrom, decode, start };
})();

if (globalThis.document) {
    for (const root of document.querySelectorAll(".inspector")) globalThis.inspector.start(root);
}
