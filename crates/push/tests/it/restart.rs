//! Messages that wait survive their node.

use std::time::Duration;

use millrace_push::metrics::MessageEvent;

use crate::service::{Service, message, open_engine, queued, start, until};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn waiting_message_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = format!("sqlite:{}", folder.path().join("push.db").display());
    let service = Service::start();
    service.set_answers("/busy", &["503 Busy\r\nretry-after: 2", "201 Created"]);
    service.set_answers("/broken", &["503 Busy\r\nretry-after: 1"]);
    {
        let engine = open_engine(&url);
        let push = start(&service, &engine);
        for path in ["/busy", "/broken"] {
            let message = message(&service, &engine, path, HOUR).await;
            assert_eq!(push.send(path.into(), message, false).await, Ok(true));
        }
        until("both wait", async || service.seen("/busy").len() == 1 && service.seen("/broken").len() == 2).await;
        push.stop();
        engine.close();
    }
    let engine = open_engine(&url);
    assert_eq!(queued(&engine).await.len(), 2, "both are in the file");
    let push = start(&service, &engine);
    until("nothing waits", async || queued(&engine).await.is_empty()).await;
    assert_eq!(service.seen("/busy").len(), 2, "one attempt before, one after the restart");
    assert_eq!(service.seen("/broken").len(), 5, "the attempts before the restart count");
    let ttl = service.seen("/busy")[1].ttl;
    assert!((3500..3600).contains(&ttl), "the time of the wait is not added to the time to live: {ttl}");
    let events = [MessageEvent::TakenOver, MessageEvent::Delivered, MessageEvent::Failed];
    assert_eq!(events.map(|event| push.metrics().messages(event)), [2, 1, 1]);
}

#[tokio::test]
async fn one_of_two_nodes_sends_each_message() {
    // Both nodes look for overdue messages here, as two nodes of a cluster may do for a short time.
    let (service, engine) = (Service::start(), open_engine("memory"));
    let (first, second) = (start(&service, &engine), start(&service, &engine));
    let paths: Vec<String> = (0..30).map(|number| format!("/phone-{number}")).collect();
    for (number, path) in paths.iter().enumerate() {
        service.set_answers(path, &["503 Busy\r\nretry-after: 2", "201 Created"]);
        let push = if number % 2 == 0 { &first } else { &second };
        let message = message(&service, &engine, path, HOUR).await;
        assert_eq!(push.send(path.as_str().into(), message, false).await, Ok(true));
    }
    let count = |service: &Service| paths.iter().map(|path| service.seen(path).len()).sum::<usize>();
    until("all wait", async || count(&service) == paths.len()).await;
    first.stop();
    until("nothing waits", async || queued(&engine).await.is_empty()).await;
    paths.iter().for_each(|path| assert_eq!(service.seen(path).len(), 2, "{path}"));
    assert_eq!(second.metrics().messages(MessageEvent::Delivered), paths.len() as u64);
}
