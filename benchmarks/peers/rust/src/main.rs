//! Decodes with a published crate: pgdecode-peers CRATE, for timing, as node_timed.cjs describes; or
//! pgdecode-peers CRATE answers, for checks, as node_answers.mjs describes. A panic ends the process.
use std::io::{self, BufRead, Read, Write};

use bytes::Bytes;
use serde_json::{Value, json};

mod elefant_client;
mod pg_walstream;
mod pgoutput;

/// What a client knows of its slot besides the payload.
pub struct Known {
    in_stream: bool,
    binary: bool,
}

/// Returns the sum of the relation ids of payloads, in order, after decoding all of them.
type Sum = fn(&[Bytes]) -> u64;
/// Returns a payload's message as the conformance suite writes it.
type Answer = fn(&Bytes, &Known) -> Result<Value, String>;

fn decoder(name: &str) -> (Sum, Answer) {
    match name {
        "elefant-client" => (elefant_client::sum, elefant_client::answer),
        "pg_walstream" => (pg_walstream::sum, pg_walstream::answer),
        "pgoutput" => (pgoutput::sum, pgoutput::answer),
        _ => panic!("no crate {name}"),
    }
}

/// Writes a tuple: its values, and the letters of their formats.
pub fn tuple<'a>(name: &str, cells: impl Iterator<Item = (char, &'a [u8])>, message: &mut Value) {
    let mut formats = String::new();
    let values: Vec<Value> = cells
        .map(|(format, value)| {
            formats.push(format);
            if "nu".contains(format) { Value::Null } else { hex::encode(value).into() }
        })
        .collect();
    message[name] = values.into();
    message[format!("{name}_formats")] = formats.into();
}

/// PostgreSQL's microseconds since 2000 as microseconds since 1970.
pub fn time(microseconds: i64) -> i64 {
    microseconds.wrapping_add(946_684_800_000_000)
}

fn number(input: &mut impl Read) -> io::Result<usize> {
    let mut four = [0; 4];
    input.read_exact(&mut four)?;
    Ok(u32::from_le_bytes(four) as usize)
}

/// Reads payloads into one piece of memory.
fn payloads(input: &mut impl Read) -> io::Result<Vec<Bytes>> {
    let mut data = Vec::new();
    let mut ends = Vec::new();
    for _ in 0..number(input)? {
        let start = data.len();
        data.resize(start + number(input)?, 0);
        input.read_exact(&mut data[start..])?;
        ends.push(data.len());
    }
    let data = Bytes::from(data);
    let starts = std::iter::once(&0).chain(&ends);
    Ok(starts.zip(&ends).map(|(start, end)| data.slice(start..end)).collect())
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (sum, answer) = decoder(&words[0]);
    let mut input = io::BufReader::new(io::stdin());
    if words.len() == 1 {
        sum(&payloads(&mut input)?);
        let timed = payloads(&mut input)?;
        for line in input.lines() {
            line?;
            writeln!(io::stdout(), "{}", sum(&timed))?;
        }
        return Ok(());
    }
    for line in input.lines() {
        let question: Value = serde_json::from_str(&line?)?;
        let payload = hex::decode(question["payload"].as_str().unwrap()).unwrap();
        let known = Known { in_stream: question["in_stream"] == true, binary: question["binary"] == true };
        let answer = answer(&payload.into(), &known).unwrap_or_else(|error| json!({"refused": error}));
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}
