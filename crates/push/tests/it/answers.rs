//! The answers of the push service decide about a message and its subscription.

use std::time::Duration;

use millrace_push::metrics::{MessageEvent, RequestResult, SubscriptionEvent};

use crate::service::{Service, message, open_engine, queued, start, subscriptions, until};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn answer_of_the_service_decides() {
    let (service, engine) = (Service::start(), open_engine("memory"));
    let push = start(&service, &engine);
    let cases: [(&str, &[&'static str], usize, MessageEvent, bool); 7] = [
        ("/accepted", &["201 Created"], 1, MessageEvent::Delivered, true),
        ("/unknown", &["404 Not Found"], 1, MessageEvent::Gone, false),
        ("/ended", &["410 Gone"], 1, MessageEvent::Gone, false),
        ("/refused", &["400 Bad Request"], 1, MessageEvent::Failed, true),
        ("/redirected", &["302 Found\r\nlocation: http://127.0.0.1:1/"], 1, MessageEvent::Failed, true),
        (
            "/busy",
            &["429 Too Many Requests\r\nretry-after: 1", "503 Busy\r\nretry-after: 1", "201 Created"],
            3,
            MessageEvent::Delivered,
            true,
        ),
        ("/broken", &["500 Broken\r\nretry-after: 0"], 5, MessageEvent::Failed, true),
    ];
    for (path, answers, ..) in &cases {
        service.set_answers(path, answers);
        let message = message(&service, &engine, path, HOUR).await;
        assert_eq!(push.send((*path).into(), message, false).await, Ok(true), "{path}");
    }
    until("no message waits", async || push.waiting() == 0 && queued(&engine).await.is_empty()).await;
    let kept = subscriptions(&engine).await;
    for (path, _, requests, _, is_kept) in &cases {
        assert_eq!(service.seen(path).len(), *requests, "{path}");
        assert_eq!(kept.iter().any(|kept| kept == path), *is_kept, "{path}");
    }
    let busy = service.seen("/busy");
    let pauses = busy.windows(2).map(|pair| pair[1].at - pair[0].at);
    pauses.for_each(|pause| assert!(pause >= Duration::from_millis(950), "Retry-After is respected: {pause:?}"));
    let metrics = push.metrics();
    for event in MessageEvent::ALL {
        let queued = if event == MessageEvent::Queued { cases.len() } else { 0 };
        let expected = queued + cases.iter().filter(|case| case.3 == event).count();
        assert_eq!(metrics.messages(event), expected as u64, "{event:?}");
    }
    assert_eq!(metrics.subscriptions(SubscriptionEvent::Removed), 2);
    let results = RequestResult::ALL.map(|result| metrics.requests(result));
    // Accepted, gone, throttled, refused, server errors, no answer.
    assert_eq!(results, [2, 2, 1, 2, 6, 0]);
}

#[tokio::test]
async fn service_that_never_answers_delays_nothing_else() {
    let (service, engine) = (Service::start(), open_engine("memory"));
    let push = start(&service, &engine);
    service.set_answers("/silent", &["", "201 Created"]);
    let silent = message(&service, &engine, "/silent", HOUR).await;
    assert_eq!(push.send("silent".into(), silent, false).await, Ok(true));
    until("the request hangs", async || service.seen("/silent").len() == 1).await;
    let other = message(&service, &engine, "/other", HOUR).await;
    assert_eq!(push.send("other".into(), other, false).await, Ok(true));
    // A message leaves the queue after its answer.
    until("only the first message waits", async || queued(&engine).await == ["silent"]).await;
    assert_eq!(service.seen("/other").len(), 1);
    // The second attempt follows after 5 s.
    until("the message arrives", async || service.seen("/silent").len() == 2 && push.waiting() == 0).await;
    assert_eq!((push.metrics().requests(RequestResult::NoAnswer), queued(&engine).await.len()), (1, 0));
}

#[tokio::test]
async fn message_expires_while_it_waits() {
    let (service, engine) = (Service::start(), open_engine("memory"));
    let push = start(&service, &engine);
    service.set_answers("/busy", &["503 Busy\r\nretry-after: 60"]);
    let message = message(&service, &engine, "/busy", Duration::from_secs(30)).await;
    assert_eq!(push.send("busy".into(), message, false).await, Ok(true));
    until("the message expires", async || push.metrics().messages(MessageEvent::Expired) == 1).await;
    assert_eq!((service.seen("/busy")[0].ttl, queued(&engine).await.len()), (30, 0));
}

#[tokio::test]
async fn repeated_message_is_sent_once() {
    let (service, engine) = (Service::start(), open_engine("memory"));
    let push = start(&service, &engine);
    let message = message(&service, &engine, "/phone", HOUR).await;
    for _ in 0..3 {
        assert_eq!(push.send("one".into(), message.clone(), true).await, Ok(true));
        until("no message waits", async || push.waiting() == 0 && queued(&engine).await.is_empty()).await;
    }
    assert_eq!(service.seen("/phone").len(), 1);
}
