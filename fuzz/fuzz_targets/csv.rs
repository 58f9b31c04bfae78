//! Fuzzes recorded drives: values must be within their limits, and records must survive writing and reading again.
//! Input: a file.

#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use millrace_simulate::{
    record::Record,
    replay::{Replay, ReplayError, to_csv},
};

fuzz_target!(|data: &[u8]| {
    let records = read(data);
    assert_eq!(same(&records), same(&read(InPieces(data))), "the pieces of the file do not matter");
    let mut before = 0;
    for record in &records {
        assert!(record.timestamp >= before, "times do not decrease");
        before = record.timestamp;
        assert!(record.gps_latitude.abs() <= 90.0 && record.gps_longitude.abs() <= 180.0, "{record:?}");
        assert!((0.0..=150.0).contains(&record.speed), "{record:?}");
        assert!(record.heading.is_none_or(|heading| (0.0..360.0).contains(&heading)), "{record:?}");
        let json = serde_json::to_string(record).expect("JSON");
        assert!(!json.contains("null"), "every field has a value: {json}");
    }
    if records.is_empty() {
        return;
    }
    let written = to_csv(&records);
    let again = read(written.as_bytes());
    let places = |records: &[Record]| -> Vec<_> {
        let place = |r: &Record| {
            let heading = r.heading.unwrap_or_default();
            (r.timestamp / 1000, r.gps_latitude, r.gps_longitude, r.speed, heading, r.seq)
        };
        records.iter().map(place).collect()
    };
    assert_eq!(places(&again), places(&records), "{written}");
});

/// Reads records up to the first error, which must name its line.
fn read(file: impl Read) -> Vec<Record> {
    let replay = match Replay::new(file, 7) {
        Ok(replay) => replay,
        Err(error) => {
            explained(&error);
            return Vec::new();
        }
    };
    replay.map_while(|record| record.inspect_err(explained).ok()).collect()
}

fn explained(error: &ReplayError) {
    match error {
        ReplayError::Line { line, what } => assert!(*line > 0 && !what.is_empty(), "{error}"),
        ReplayError::Header(_) | ReplayError::Empty => {}
        ReplayError::Read(error) => panic!("reading a buffer cannot fail: {error}"),
    }
}

fn same(records: &[Record]) -> String {
    serde_json::to_string(records).expect("JSON")
}

struct InPieces<'a>(&'a [u8]);

impl Read for InPieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let length = buffer.len().min(3);
        self.0.read(&mut buffer[..length])
    }
}
