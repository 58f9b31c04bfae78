//! Notifications about alerts, for persons whose page is closed.

use millrace_driving::{Event, Kind, Severity};
use serde_json::{Value, json};

/// A notification about one car.
#[derive(Clone, Debug, PartialEq)]
pub struct Notice {
    /// `car-{id}`: the subject to which browsers subscribe.
    pub subject: String,
    /// `title`, `body`, `url` and `tag`, in English, and `carId`, `type`, `code`, `geofence` and `advice` of the event,
    /// so that a page can show the notification in its own language.
    pub message: Value,
    pub is_urgent: bool,
}

/// Receiver of notices. It must not wait: the thread of the driving feedback calls it.
pub trait Notify: Send + Sync {
    fn notify(&self, notice: Notice);
}

/// Returns the notice about an alert. A harsh maneuver is an alert, too, but no person has to act: no notice.
pub fn notice(car: &str, event: &Event) -> Option<Notice> {
    let title = title(event.kind)?;
    let (code, geofence) = (event.code.as_deref(), event.geofence.as_deref());
    let what = code.or(geofence).map_or(String::new(), |what| format!(" {what}"));
    let body = match (&event.meaning, geofence) {
        (Some(meaning), _) => format!("{meaning}. {}", event.advice),
        (None, Some(_)) => String::new(),
        (None, None) => event.advice.clone(),
    };
    let kind = serde_json::to_value(event.kind).unwrap_or_default();
    let tag = format!("{car}/{}{what}", kind.as_str().unwrap_or_default());
    let message = json!({
        "title": format!("Car {car}: {title}{what}"),
        "body": body,
        "url": format!("/carcare?car={car}"),
        "tag": tag,
        "carId": car,
        "type": kind,
        "code": code,
        "geofence": geofence,
        "advice": event.advice,
    });
    Some(Notice { subject: format!("car-{car}"), message, is_urgent: event.severity == Severity::Severe })
}

fn title(kind: Kind) -> Option<&'static str> {
    Some(match kind {
        Kind::Overheating => "Engine overheats",
        Kind::OilPressure => "Low oil pressure",
        Kind::LowFuel => "Low fuel",
        Kind::TroubleCode => "Trouble code",
        Kind::Lamp => "Engine lamp lit",
        Kind::Accident => "Possible accident",
        Kind::GeofenceEnter => "Entered",
        Kind::GeofenceExit => "Left",
        Kind::HarshBraking
        | Kind::HarshAcceleration
        | Kind::HarshCornering
        | Kind::GearTooHigh
        | Kind::GearTooLow
        | Kind::HighRpm
        | Kind::Idling => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(json: &str) -> Event {
        let time = r#""severity":"severe","time":1,"advice":"Drive gently.""#;
        serde_json::from_str(&format!("{{{json},{time}}}")).expect("an event")
    }

    #[test]
    fn trouble_is_notified_with_its_meaning() {
        let trouble = event(r#""type":"trouble-code","code":"P0301","meaning":"Cylinder 1 misfires""#);
        let notice = notice("7", &trouble).expect("a notice");
        assert_eq!((notice.subject.as_str(), notice.is_urgent), ("car-7", true));
        assert_eq!(notice.message["title"], "Car 7: Trouble code P0301");
        assert_eq!(notice.message["body"], "Cylinder 1 misfires. Drive gently.");
        assert_eq!(notice.message["tag"], "7/trouble-code P0301");
    }

    #[test]
    fn maneuvers_are_not_notified() {
        assert_eq!(notice("7", &event(r#""type":"harsh-braking""#)), None);
        let entered = notice("7", &event(r#""type":"geofence-enter","geofence":"Depot""#)).expect("a notice");
        assert_eq!((&entered.message["title"], &entered.message["body"]), (&json!("Car 7: Entered Depot"), &json!("")));
    }
}
