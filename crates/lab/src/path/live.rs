//! The messages that show a running link on the page `/link`. `web/src/pages/link/state.ts` reads them.

use std::time::{Duration, SystemTime};

use millrace_link::{Cause, profiles};
use serde_json::{Map, Value, json};

use super::{
    emulator::{Live, LiveDirection},
    knobs::{Answer, Knobs},
};
use crate::shell::quoted;

/// Channel with the state of a link, and the channel from which the link reads commands ([`Knobs::handle`]).
pub const CHANNEL: &str = "lab/link";
pub const COMMANDS: &str = "lab/link/commands";
/// Time between two messages.
pub const INTERVAL: Duration = Duration::from_millis(250);
/// Seconds for which history keeps a message: the minute that the page shows, and some time to load the page.
pub const KEPT_S: u32 = 75;

/// A running link as its page shows it.
pub struct LiveLink {
    pub knobs: Knobs,
    started_ms: u64,
    seed: u64,
    /// Program with its arguments.
    program: Vec<String>,
    /// Reason why no commands arrive.
    commands_error: Option<String>,
    state: Live,
}

impl LiveLink {
    pub fn new(knobs: Knobs, started: SystemTime, seed: u64, program: Vec<String>) -> Self {
        let since = started.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            knobs,
            started_ms: since.as_millis() as u64,
            seed,
            program,
            commands_error: None,
            state: Live::default(),
        }
    }

    /// Takes the state that the next message contains.
    pub fn observe(&mut self, state: Live) {
        let before = std::mem::replace(&mut self.state, state);
        for (direction, before) in [(&mut self.state.up, before.up), (&mut self.state.down, before.down)] {
            direction.delay_max = direction.delay_max.max(before.delay_max);
        }
    }

    /// Shows on the page why no commands arrive.
    pub fn set_commands_error(&mut self, why: String) {
        self.commands_error = Some(why);
    }

    /// Returns a message with the whole state, so that a page needs no earlier one.
    pub fn message(&mut self, answer: Option<&Answer>) -> Value {
        let Self { knobs, state, .. } = self;
        let settings = knobs.settings();
        let message = json!({
            "is": "state",
            "run": knobs.run(),
            "started_ms": self.started_ms,
            "at_s": state.at.as_secs_f64(),
            "path": settings.name(),
            "profile": settings.profile(),
            "profiles": profiles().keys().collect::<Vec<_>>(),
            "settings": knobs.set_config(),
            "command": command(knobs, self.seed, &self.program),
            "is_out": knobs.is_out(),
            "commands_error": self.commands_error,
            "up": direction(&state.up),
            "down": direction(&state.down),
            "answer": answer.map(|Answer { id, error }| json!({ "id": id, "error": error })),
        });
        (state.up.delay_max, state.down.delay_max) = (Duration::ZERO, Duration::ZERO);
        message
    }

    /// Returns the last message. `code`: exit code of the program; `None` if the link failed.
    pub fn ended(&mut self, code: Option<u8>) -> Value {
        let mut message = self.message(None);
        message["ended"] = json!({ "code": code });
        message
    }
}

/// Returns the command that starts a link with the settings in force.
fn command(knobs: &Knobs, seed: u64, program: &[String]) -> String {
    let (settings, mut words) = (knobs.settings(), vec!["millrace".to_owned()]);
    words.extend(["lab", "link", "run"].map(str::to_owned));
    if !settings.profile().is_empty() {
        words.extend(["--path".to_owned(), settings.profile().to_owned()]);
    }
    words.extend(settings.changes().into_iter().flat_map(|change| ["--set".to_owned(), change]));
    if seed != 1 {
        words.extend(["--seed".to_owned(), seed.to_string()]);
    }
    words.push("--".into());
    words.extend_from_slice(program);
    quoted(words)
}

fn direction(direction: &LiveDirection) -> Value {
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let LiveDirection { counters, queue_packets, queue_bytes, queue_delay, delay_sum, delay_max } = *direction;
    let dropped: Map<String, Value> =
        Cause::ALL.iter().map(|cause| (cause.name().to_owned(), counters.dropped(*cause).into())).collect();
    json!({
        "received": counters.received,
        "delivered": counters.delivered,
        "delivered_bytes": counters.delivered_bytes,
        "dropped": dropped,
        "duplicated": counters.duplicated,
        "corrupted": counters.corrupted,
        "on_link": counters.in_flight(),
        "queue_packets": queue_packets,
        "queue_bytes": queue_bytes,
        "queue_ms": ms(queue_delay),
        "queue_packets_max": counters.queue_packets_max,
        "queue_ms_max": ms(counters.queue_delay_max),
        "delay_sum_ms": ms(delay_sum),
        "delay_max_ms": ms(delay_max),
    })
}

#[cfg(test)]
mod tests {
    use millrace_link::Traces;

    use super::*;
    use crate::path::PathSettings;

    fn live() -> LiveLink {
        let mut settings = PathSettings::of("3g");
        settings.set("down.queue", "50 packets").expect("a text");
        let knobs = Knobs::new("r1".into(), settings, Traces::default()).expect("a link");
        let program = ["sh", "-c", "ping $LINK_HOST"].map(str::to_owned).to_vec();
        LiveLink::new(knobs, SystemTime::UNIX_EPOCH + Duration::from_secs(1), 1, program)
    }

    #[test]
    fn message_has_the_whole_state() {
        let mut live = live();
        let answer = Answer { id: "c1".into(), error: Some("no".into()) };
        let message = live.message(Some(&answer));
        assert_eq!((&message["run"], &message["started_ms"]), (&json!("r1"), &json!(1000)));
        assert_eq!((&message["path"], &message["profile"]), (&json!("3g, changed"), &json!("3g")));
        assert_eq!(message["settings"]["down"]["rate"], "1.6Mbit/s");
        assert_eq!(message["settings"]["down"]["queue"], "50 packets");
        let command = "millrace lab link run --path 3g --set 'down.queue=50 packets' -- sh -c 'ping $LINK_HOST'";
        assert_eq!(message["command"], command);
        assert_eq!(message["down"]["dropped"]["queue full"], 0);
        assert_eq!(message["answer"], json!({ "id": "c1", "error": "no" }));
        assert_eq!((&message["commands_error"], message.get("ended")), (&Value::Null, None));
        assert!(message.to_string().len() < 3000, "{message}");
        live.set_commands_error("forbidden".into());
        let ended = live.ended(Some(7));
        assert_eq!((&ended["commands_error"], &ended["ended"]), (&json!("forbidden"), &json!({ "code": 7 })));
    }

    #[test]
    fn largest_delay_is_that_since_the_last_message() {
        let mut live = live();
        let ms = Duration::from_millis;
        for max in [3, 7, 5] {
            let down = LiveDirection { delay_max: ms(max), delay_sum: ms(20), ..LiveDirection::default() };
            live.observe(Live { at: ms(250), down, ..Live::default() });
        }
        let message = live.message(None);
        assert_eq!((&message["down"]["delay_max_ms"], &message["up"]["delay_max_ms"]), (&json!(7.0), &json!(0.0)));
        assert_eq!((&message["down"]["delay_sum_ms"], &message["at_s"]), (&json!(20.0), &json!(0.25)));
        assert_eq!(live.message(None)["down"]["delay_max_ms"], 0.0);
    }
}
