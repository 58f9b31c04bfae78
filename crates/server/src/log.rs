//! The log: filters log lines, and counts warnings and errors of libraries.
//!
//! Libraries report input from remote peers as WARN or ERROR: one datagram could cause one line. So a level without a
//! module applies to Millrace's own modules only. A library is logged only if `log.level` names it. Its WARN and ERROR
//! reports are always counted.

use std::{
    collections::BTreeMap,
    io::IsTerminal,
    panic,
    sync::{Mutex, PoisonError},
};

use millrace_node::MetricKind;
use millrace_transport::is_contained;
use tracing::{Event, Level, Metadata, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::filter_fn,
    fmt::{self, MakeWriter},
    layer::{Context, SubscriberExt as _},
    reload,
    util::SubscriberInitExt as _,
};

use crate::{SetLogLevel, config, metrics::Exposition};

/// Common prefix of the targets of our own modules.
const OWN: &str = "millrace";

/// Number of WARN and ERROR reports of each library since the start, by library name and level.
static REPORTED: Mutex<BTreeMap<(&'static str, Level), u64>> = Mutex::new(BTreeMap::new());

/// Opens the log of this process on standard error. Returns a function that changes its level.
pub fn init(log: &config::Log) -> SetLogLevel {
    let (subscriber, level) = subscriber(log, std::io::stderr);
    subscriber.init();
    let print = panic::take_hook();
    panic::set_hook(Box::new(move |panic| match is_contained() {
        // The panic ends one peer only, and is counted: `millrace_rtc_panicked_total`.
        true => tracing::debug!(%panic, "a library has panicked over what a peer has sent"),
        false => print(panic),
    }));
    Box::new(move |new| Ok(level.reload(EnvFilter::try_new(directives(new))?)?))
}

type LevelHandle = reload::Handle<EnvFilter, Registry>;

/// Creates a subscriber that writes log lines to `writer` and counts reports of libraries. The handle changes the level
/// of the lines.
fn subscriber(
    log: &config::Log,
    writer: impl for<'a> MakeWriter<'a> + Send + Sync + 'static,
) -> (impl Subscriber + Send + Sync + 'static, LevelHandle) {
    let (filter, level) = reload::Layer::new(EnvFilter::new(directives(&log.level)));
    let lines = fmt::layer().with_writer(writer).with_ansi(std::io::stderr().is_terminal());
    let lines = if log.format == "json" { lines.json().boxed() } else { lines.boxed() };
    let reports = filter_fn(is_report).with_max_level_hint(LevelFilter::WARN);
    let lines: Box<dyn Layer<Registry> + Send + Sync> = Box::new(lines.with_filter(filter));
    (tracing_subscriber::registry().with(lines).with(Count.with_filter(reports)), level)
}

/// Converts `log.level` to filter directives: a level without a module applies to our own modules.
fn directives(level: &str) -> String {
    let parts = level.split(',').map(str::trim).map(|part| match part.contains('=') {
        true => part.to_owned(),
        false => format!("{OWN}={part}"),
    });
    parts.collect::<Vec<_>>().join(",")
}

fn is_report(metadata: &Metadata<'_>) -> bool {
    *metadata.level() <= Level::WARN && !metadata.target().starts_with(OWN)
}

struct Count;

impl<S: Subscriber> Layer<S> for Count {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        let library = metadata.target().split("::").next().unwrap_or_default();
        let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
        *reported.entry((library, *metadata.level())).or_default() += 1;
    }
}

/// Appends the counts to the metrics.
pub(crate) fn render(out: &mut Exposition) {
    let reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    let samples = reported.iter().map(|((library, level), count)| {
        ([("library", (*library).to_owned()), ("level", level.as_str().to_ascii_lowercase())], count)
    });
    let help =
        "Warnings and errors reported by libraries, mostly about input from remote peers, whether logged or not.";
    out.family("millrace_library_reports_total", MetricKind::Counter, help, samples);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn level_without_module_applies_to_own_modules() {
        assert_eq!(directives("info"), "millrace=info");
        assert_eq!(directives("warn, sctp_proto=debug"), "millrace=warn,sctp_proto=debug");
        assert_eq!(directives("info,millrace_transport=debug"), "millrace=info,millrace_transport=debug");
    }

    #[test]
    fn libraries_are_logged_only_if_named() {
        let logged = |level: &str| {
            let output = Arc::new(Mutex::new(Vec::new()));
            let writer = Output(output.clone());
            let log = config::Log { level: level.into(), format: "text".into() };
            let (subscriber, _) = subscriber(&log, move || writer.clone());
            tracing::subscriber::with_default(subscriber, || {
                tracing::error!(target: "sctp_proto::association", "abort chunk");
                tracing::warn!(target: "sctp_proto::endpoint", "no parse");
                tracing::info!(target: "millrace_server::run", "serving");
                tracing::debug!(target: "millrace_server::run", "detail");
            });
            let output = String::from_utf8(output.lock().unwrap().clone()).unwrap();
            ["abort chunk", "no parse", "serving", "detail"].map(|what| output.contains(what))
        };
        assert_eq!(logged("info"), [false, false, true, false]);
        assert_eq!(logged("debug"), [false, false, true, true]);
        assert_eq!(logged("info,sctp_proto=error"), [true, false, true, false]);
        let mut metrics = Exposition::default();
        render(&mut metrics);
        let metrics = metrics.into_text();
        for line in ["{library=\"sctp_proto\",level=\"error\"} 3", "{library=\"sctp_proto\",level=\"warn\"} 3"] {
            assert!(metrics.contains(line), "{metrics}");
        }
    }

    #[derive(Clone)]
    struct Output(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Output {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
}
