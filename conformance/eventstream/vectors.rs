//! Runs the vectors of this folder against a parser of server-sent events in Rust. The tests of such parsers include
//! this file as a module.

/// Checks the events of every vector, with its stream cut into pieces of several sizes. `parse` reads the pieces of
/// one stream and returns name, data and last event id of each event.
pub fn check(parse: impl Fn(&[&[u8]]) -> Vec<[String; 3]>) {
    let vectors: Vec<serde_json::Value> = serde_json::from_str(include_str!("vectors.json")).expect("JSON");
    for vector in &vectors {
        let stream: Vec<u8> = match (vector["stream"].as_str(), vector["hex"].as_str().unwrap_or_default()) {
            (Some(text), _) => text.into(),
            (None, hex) => {
                (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("two digits")).collect()
            }
        };
        for cut in [1, 2, 3, 7, stream.len().max(1)] {
            let pieces: Vec<&[u8]> = stream.chunks(cut).collect();
            let name = &vector["name"];
            assert_eq!(serde_json::json!(parse(&pieces)), vector["events"], "{name}, cut every {cut} bytes");
        }
    }
}
