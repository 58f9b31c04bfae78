//! The map of the web pages and the recorded drive come from this crate and must not drift from it.

use std::path::Path;

use millrace_edge::replay::Replay;
use millrace_edge::town::Town;
use millrace_edge::town::geo::LatLon;

#[test]
fn the_map_of_the_web_pages_is_the_town() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/public/town.json");
    let shipped = std::fs::read_to_string(path).expect("web/public/town.json is there");
    // assert_eq would print 400 KB.
    assert!(shipped == Town::default().to_geojson(), "run: millrace simulate town > web/public/town.json");
}

#[test]
fn the_shipped_drive_replays_on_the_streets() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/drive.csv");
    let file = std::fs::File::open(path).expect("the drive is there");
    let records: Vec<_> =
        Replay::new(file, 1).expect("a header").collect::<Result<_, _>>().expect("every row is a record");
    assert_eq!(records.len(), 120);
    let graph = Town::default().graph;
    for record in &records {
        let at = LatLon { lat: record.gps_latitude, lon: record.gps_longitude }.point();
        assert!(graph.distance(at) < 6.0, "row {:?} is off the street", record.seq);
        assert!((800..2800).contains(&record.rpm), "{} rpm", record.rpm);
    }
    let coolant: Vec<i32> = records.iter().map(|record| record.coolant_temperature).collect();
    assert!(coolant[0] < 20 && coolant[119] > 70, "warms from {} to {}", coolant[0], coolant[119]);
    assert!(records.iter().any(|record| record.speed == 0.0) && records.iter().any(|record| record.speed > 12.0));
}
