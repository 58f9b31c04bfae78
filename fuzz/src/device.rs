//! Checks of what devices report.

use millrace_ingest::{DeviceId, Filter, Report, filter::Verdict};

/// A time after those of all inputs that are not in the future.
const NOW_MS: u64 = 1_800_000_000_000;

/// Checks that reports keep their limits, and that the filter publishes only records with possible values.
pub fn check(reports: Vec<Report>, points_max: usize) {
    assert!(reports.len() <= points_max, "{}", reports.len());
    let (device, mut filter) = (DeviceId::parse("fuzz").expect("an id"), Filter::new(4, 4));
    for Report { time_ms, mut reading, .. } in reports {
        assert!(reading.attributes.len() <= 32);
        let time_ms = time_ms.unwrap_or(NOW_MS);
        let verdict = filter.judge(device.as_str(), time_ms, &mut reading, NOW_MS);
        let (Verdict::Live(acceptance) | Verdict::Late(acceptance)) = verdict else { continue };
        if let Some((latitude, longitude)) = reading.position() {
            assert!(latitude.abs() <= 90.0 && longitude.abs() <= 180.0, "{reading:?}");
        }
        let record: serde_json::Value = serde_json::from_str(&reading.to_json(&device, time_ms)).expect("JSON");
        let fields = record.as_object().expect("an object");
        assert!(fields.values().all(|value| !value.is_null()), "an infinite number: {record}");
        assert_eq!(fields["timestamp"], time_ms);
        filter.accept(device.as_str(), acceptance);
        assert!(filter.devices() <= 4);
    }
}
