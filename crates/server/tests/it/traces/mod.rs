//! Spans of a real server, sent to a stand-in for a collector. Needs the feature `otlp`.

mod collector;

use std::{collections::HashMap, net::SocketAddr, ops::ControlFlow, time::Duration};

use http::StatusCode;
use millrace_client::{
    server::Server,
    subscription::{Options, TRANSPORTS, Transport, Update, read},
};
use millrace_server::{Config, Running};
use opentelemetry_proto::tonic::{
    common::v1::any_value::Value,
    trace::v1::{Span, span::SpanKind, status::StatusCode as SpanStatus},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use collector::{BOUND, Collector};

const TRACE_ID: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
/// Span of the publisher.
const PUBLISHER: &str = "00f067aa0ba902b7";

fn context(span: &str) -> String {
    format!("00-{TRACE_ID}-{span}-01")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Starts a server that sends its spans to the collector.
fn start(collector: &Collector, change: impl FnOnce(&mut Config)) -> Running {
    let mut config = Config::default();
    config.server.listen = SocketAddr::from(([127, 0, 0, 1], 0));
    config.server.shards = 2;
    config.traces.endpoint = collector.endpoint();
    change(&mut config);
    config.check().expect("the settings are good");
    millrace_server::start(config).expect("a server on a free port")
}

/// Stops a server. Its end waits for the collector, which runs on the thread of the test.
async fn stop(server: Running) {
    tokio::task::spawn_blocking(move || server.stop()).await.expect("it stops");
}

async fn publish(server: &Running, channel: &str, trace: Option<&str>) -> StatusCode {
    let url = format!("http://{}/v1/channels/{channel}", server.address);
    let request = reqwest::Client::new().post(url).body("1");
    let request = trace.into_iter().fold(request, |request, trace| request.header("traceparent", trace));
    request.send().await.expect("an answer").status()
}

/// Starts a reader as an application would, and returns the trace of its first message.
async fn first_trace(server: &Running, transport: Transport, channel: &str) -> Option<String> {
    let options = Options {
        server: Server::parse(&format!("http://{}", server.address)).expect("an address"),
        channels: vec![channel.into()],
        transport,
        since: Some("earliest".into()),
        policy: "every".into(),
        poll_interval: Duration::from_millis(5),
        retry_for: None,
    };
    let mut trace = None;
    let mut sink = |update: Update| match update {
        Update::Message(message) => {
            trace = message.trace;
            ControlFlow::Break(())
        }
        _ => ControlFlow::Continue(()),
    };
    tokio::time::timeout(BOUND, read(&options, &mut sink)).await.expect("in time").expect("no error");
    trace
}

fn attribute(span: &Span, name: &str) -> Option<Value> {
    span.attributes.iter().find(|attribute| attribute.key == name)?.value.clone()?.value
}

/// Waits until the reader of a channel is counted.
async fn wait_for_reader(address: SocketAddr, channel: &str) {
    let end = tokio::time::Instant::now() + BOUND;
    let url = format!("http://{address}/v1/presence/{channel}");
    while !reqwest::get(&url).await.expect("an answer").text().await.expect("a body").contains("\"count\":1") {
        assert!(tokio::time::Instant::now() < end, "{channel} has no reader");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Publishes with a hook and a reader over each transport. The context of each publication must reach the callback, and
/// the spans of the server must form one tree with the publisher's span at its root.
async fn one_trace(engine: String) {
    let collector = Collector::start(usize::MAX >> 4).await;
    let server = start(&collector, |config| {
        config.engine.url = engine;
        config.hooks.secrets = vec!["the secret of the hooks, 32 bytes".into()];
        config.hooks.publish = format!("http://{}/hook", collector.address);
    });
    for (i, transport) in TRANSPORTS.into_iter().enumerate() {
        let (channel, publisher) = (format!("traced/{i}"), format!("00f067aa0ba902b{i}"));
        let is_held = transport != Transport::Polling;
        let publishing = async {
            // A poll is answered from history, so it has no span of a delivery.
            if is_held {
                wait_for_reader(server.address, &channel).await;
            }
            assert_eq!(publish(&server, &channel, Some(&context(&publisher))).await, StatusCode::OK);
        };
        let (trace, ()) = tokio::join!(first_trace(&server, transport, &channel), publishing);
        // The callback of an application is a child of this context.
        assert_eq!(trace, Some(context(&publisher)), "{transport:?}");
        let wanted = if is_held { 4 } else { 3 };
        let spans = loop {
            let all = collector.wait_for(wanted).await;
            let own: HashMap<String, Span> = all
                .into_iter()
                .filter(|span| {
                    attribute(span, "messaging.destination.name") == Some(Value::StringValue(channel.clone()))
                })
                .map(|span| (span.name.clone(), span))
                .collect();
            if own.len() == wanted {
                break own;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        };
        for span in spans.values() {
            assert_eq!(hex(&span.trace_id), TRACE_ID);
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano && span.start_time_unix_nano > 0, "{span:?}");
        }
        let parent = |name: &str| hex(&spans[name].parent_span_id);
        let own = hex(&spans["publish"].span_id);
        assert_eq!((parent("publish"), parent("hook"), parent("engine")), (publisher.clone(), own.clone(), own));
        assert_eq!(spans["publish"].kind(), SpanKind::Server);
        if is_held {
            assert_eq!(parent("deliver"), publisher, "{transport:?}");
            // A held poll is woken, and reads the publication from history.
            let readers = i64::from(transport != Transport::LongPolling);
            assert_eq!(
                attribute(&spans["deliver"], "millrace.readers"),
                Some(Value::IntValue(readers)),
                "{transport:?}"
            );
        }
        // The back end continues the trace below the span of the hook.
        assert_eq!(collector.questions().last(), Some(&context(&hex(&spans["hook"].span_id))), "{transport:?}");
    }
    stop(server).await;
}

#[tokio::test]
async fn one_trace_from_publish_to_callback_with_memory() {
    one_trace("memory".into()).await;
}

#[tokio::test]
async fn one_trace_from_publish_to_callback_with_sqlite() {
    let folder = tempfile::tempdir().expect("a folder");
    one_trace(format!("sqlite:{}", folder.path().join("data.db").display())).await;
}

#[tokio::test]
async fn publication_of_mqtt_is_acknowledged_and_has_spans() {
    let collector = Collector::start(usize::MAX >> 4).await;
    let server = start(&collector, |config| config.mqtt.listen = "127.0.0.1:0".into());
    let mut stream = TcpStream::connect(server.mqtt.expect("a listener of MQTT")).await.expect("it listens");
    let property = [&b"\x26\0\x0btraceparent\0\x37"[..], context(PUBLISHER).as_bytes()].concat();
    let body = [&b"\0\x06traced\0\x09"[..], &[property.len() as u8], &property, b"1"].concat();
    // CONNECT, then PUBLISH with quality of service 1.
    let connect = b"\x10\x0e\0\x04MQTT\x05\x02\0\x3c\0\0\x01c";
    let packets = [&connect[..], &[0x32, body.len() as u8], &body].concat();
    stream.write_all(&packets).await.expect("the server reads");
    let mut received = Vec::new();
    while !received.ends_with(b"\x40\x02\0\x09") {
        let length = tokio::time::timeout(BOUND, stream.read_buf(&mut received)).await.expect("in time");
        assert!(length.expect("a connection") > 0, "it ended without PUBACK: {received:?}");
    }
    let spans = collector.wait_for(2).await;
    let names: Vec<_> = spans.iter().map(|span| (span.name.as_str(), hex(&span.trace_id))).collect();
    assert_eq!(names, [("engine", TRACE_ID.to_owned()), ("publish", TRACE_ID.to_owned())]);
    stop(server).await;
}

#[tokio::test]
async fn only_sampled_publications_have_spans() {
    let collector = Collector::start(usize::MAX >> 4).await;
    let server = start(&collector, |_| {});
    for trace in [None, Some(format!("00-{TRACE_ID}-{PUBLISHER}-00")), Some("malformed".into())] {
        assert_eq!(publish(&server, "a", trace.as_deref()).await, StatusCode::OK);
    }
    assert_eq!(publish(&server, "last", Some(&context(PUBLISHER))).await, StatusCode::OK);
    // The queue keeps the order, so no earlier span is on its way. The end of the server sends what is queued.
    stop(server).await;
    let spans = collector.wait_for(2).await;
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["engine", "publish"]);
}

#[tokio::test]
async fn refused_publication_is_an_error_in_its_span() {
    let collector = Collector::start(usize::MAX >> 4).await;
    let server = start(&collector, |config| config.engine.channels_max = 1);
    assert_eq!(publish(&server, "first", None).await, StatusCode::OK);
    assert_eq!(publish(&server, "second", Some(&context(PUBLISHER))).await, StatusCode::TOO_MANY_REQUESTS);
    for span in collector.wait_for(2).await {
        let status = span.status.clone().expect("a status");
        assert_eq!((status.code(), status.message.as_str()), (SpanStatus::Error, "too_many"), "{span:?}");
        assert_eq!(attribute(&span, "error.type"), Some(Value::StringValue("too_many".into())));
    }
    stop(server).await;
}

/// Returns the counters of spans: sent, dropped, failed.
async fn counts(server: &Running) -> [u64; 3] {
    let url = format!("http://{}/metrics", server.address);
    let text = reqwest::get(url).await.expect("an answer").text().await.expect("a body");
    ["sent", "dropped", "failed"].map(|result| {
        let start = format!("millrace_spans_total{{result=\"{result}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&start)).expect("a counter").parse().expect("a number")
    })
}

#[tokio::test]
async fn full_queue_drops_spans_and_publishes_on() {
    let collector = Collector::start(0).await;
    let server = start(&collector, |config| {
        config.traces.queue_max = 4;
        config.traces.timeout = Duration::from_secs(60);
    });
    let mut published = 0;
    let end = tokio::time::Instant::now() + BOUND;
    while counts(&server).await[1] < 20 {
        assert_eq!(publish(&server, "a", Some(&context(PUBLISHER))).await, StatusCode::OK);
        published += 1;
        assert!(tokio::time::Instant::now() < end, "no span is dropped");
    }
    collector.permit(1000);
    let end = tokio::time::Instant::now() + BOUND;
    loop {
        let [sent, dropped, failed] = counts(&server).await;
        assert_eq!(failed, 0);
        if sent + dropped == 2 * published {
            assert_eq!(collector.spans().len() as u64, sent);
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{sent} sent, {dropped} dropped, {published} published");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    stop(server).await;
}

#[tokio::test]
async fn spans_that_the_collector_refuses_are_counted() {
    let collector = Collector::start(usize::MAX >> 4).await;
    let server = start(&collector, |_| {});
    collector.answer_with(StatusCode::BAD_REQUEST);
    assert_eq!(publish(&server, "a", Some(&context(PUBLISHER))).await, StatusCode::OK);
    let end = tokio::time::Instant::now() + BOUND;
    while counts(&server).await != [0, 0, 2] {
        assert!(tokio::time::Instant::now() < end, "{:?}", counts(&server).await);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    collector.answer_with(StatusCode::OK);
    assert_eq!(publish(&server, "b", Some(&context(PUBLISHER))).await, StatusCode::OK);
    assert_eq!(collector.wait_for(2).await.len(), 2);
    stop(server).await;
}
