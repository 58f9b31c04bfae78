//! Computes battery life, and compares it with Karadogan's results.

use crate::wire_cost::Battery;

/// Karadogan, tables 3.9 and 3.12: mean power of a phone that relays for a number of peers, and the resulting hours
/// of its 8 Wh battery.
///
/// The hours are 8 Wh divided by the power, rounded to a tenth. The text rounds further, to 6, 5, 5 and 3.5 h (ERRATA
/// E-K11).
const KARADOGAN: [(&str, f64, f64); 4] = [
    ("multiplexing, 10 peers", 1.32072, 6.1),
    ("multiplexing, 49 peers", 1.69509, 4.7),
    ("demultiplexing, 10 peers", 1.55548, 5.1),
    ("demultiplexing, 40 peers", 2.32257, 3.4),
];
const KARADOGAN_WH: f64 = 8.0;

/// Returns the battery life in hours. Zero power gives an infinite life.
pub fn hours(capacity_wh: f64, power_w: f64) -> f64 {
    capacity_wh / power_w
}

/// Returns the battery life for Karadogan's four power figures, and for each entry of `days`.
///
/// Units: an entry of `days` is a name and the radio's energy in joules per day. `base_w` is the power of the rest of
/// the phone.
pub fn lasts(capacity_wh: f64, base_w: f64, days: &[(String, f64)]) -> Vec<Battery> {
    let published = KARADOGAN.map(|(what, power_w, published)| Battery {
        what: format!("Karadogan, {what}"),
        capacity_wh: KARADOGAN_WH,
        power_w,
        hours: hours(KARADOGAN_WH, power_w),
        published_hours: Some(published),
        remark: "whole phone, measured by Karadogan".into(),
    });
    let ours = days.iter().map(|(what, joules_per_day)| {
        let power_w = base_w + joules_per_day / 86_400.0;
        let remark = format!("{base_w} W for the rest of the phone, and the radio's mean power");
        let hours = hours(capacity_wh, power_w);
        Battery { what: what.clone(), capacity_wh, power_w, hours, published_hours: None, remark }
    });
    published.into_iter().chain(ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn battery_hours_match_karadogans_watts() {
        for battery in lasts(8.0, 1.0, &[]) {
            let published = battery.published_hours.unwrap();
            assert!((battery.hours - published).abs() <= 0.05 + 1e-9, "{battery:?}");
        }
    }

    #[test]
    fn radio_power_adds_to_base_power() {
        let days = [("poll".to_owned(), 86_400.0)];
        let last = lasts(8.0, 1.0, &days).pop().unwrap();
        assert_eq!((last.power_w, last.hours), (2.0, 4.0));
    }
}
