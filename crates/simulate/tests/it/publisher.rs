use std::time::Duration;

use millrace_client::publish::PublishError;
use millrace_simulate::fleet::Fleet;
use millrace_simulate::publisher::{Publisher, SendError};
use millrace_simulate::record::Record;
use millrace_simulate::town::Town;
use tokio::net::UdpSocket;

use crate::script::{Step, header, serve};

const PATIENCE: Duration = Duration::from_secs(30);

fn records(cars: u32) -> Vec<Record> {
    Fleet::new(Town::default(), cars, 1).step(1_000, Duration::from_secs(1))
}

async fn publisher(url: &str) -> Publisher {
    Publisher::new(url, None, PATIENCE, |_| ()).await.expect("a publisher")
}

#[tokio::test]
async fn batch_is_retried_with_its_key_until_accepted() {
    let busy = r#"{"type":"urn:millrace:error:unavailable","title":"","status":503,"detail":"drains","code":"unavailable","retry":true}"#;
    let half = r#"{"results":[{"position":"e:1"},{"error":{"code":"unavailable","detail":"","retry":true}}]}"#;
    let done = r#"{"results":[{"position":"e:1"},{"position":"e:2"}]}"#;
    let steps = vec![
        Step::Cut,
        Step::json("503 Service Unavailable", busy),
        Step::json("200 OK", half),
        Step::json("200 OK", done),
    ];
    let (url, server) = serve(steps).await;
    let mut publisher = publisher(&url).await;
    publisher.send(&records(2)).await.expect("the server has both");
    let requests = server.await.expect("four requests");
    let key = header(&requests[0], "idempotency-key").to_owned();
    assert!(key.len() > 16);
    for request in &requests {
        assert!(request.starts_with("POST /rest/input HTTP/1.1\r\n"), "{request}");
        assert_eq!(header(request, "idempotency-key"), key);
        assert_eq!(header(request, "content-type"), "application/x-ndjson");
        assert_eq!(request.split_once("\r\n\r\n").expect("a body").1.lines().count(), 2);
    }
    assert_eq!((publisher.sent(), publisher.stats().expect("HTTP").retries), (2, 3));
}

#[tokio::test]
async fn requests_have_distinct_keys_and_plain_json() {
    let ok = || Step::json("200 OK", r#"{"position":"e:1"}"#);
    let (url, server) = serve(vec![ok(), ok()]).await;
    let mut publisher = publisher(&url).await;
    publisher.send(&records(1)).await.expect("sent");
    publisher.send(&records(1)).await.expect("sent");
    let requests = server.await.expect("two requests");
    assert_ne!(header(&requests[0], "idempotency-key"), header(&requests[1], "idempotency-key"));
    let body = requests[0].split_once("\r\n\r\n").expect("a body").1;
    assert_eq!(serde_json::from_str::<Record>(body).expect("a record"), records(1)[0]);
}

#[tokio::test]
async fn permanent_error_is_not_retried() {
    let wrong =
        r#"{"type":"","title":"","status":400,"detail":"a record has a `carId`","code":"bad_json","retry":false}"#;
    let (url, server) = serve(vec![Step::json("400 Bad Request", wrong)]).await;
    let error = publisher(&url).await.send(&records(1)).await.expect_err("refused");
    assert!(matches!(&error, SendError::Http(PublishError::Refused(problem)) if problem.code == "bad_json"), "{error}");
    assert_eq!(server.await.expect("one request").len(), 1);
    assert!(matches!(
        Publisher::new("example", None, PATIENCE, |_| ()).await,
        Err(SendError::Http(PublishError::Address(_)))
    ));
}

#[tokio::test]
async fn over_udp_every_record_is_one_datagram() {
    let device = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let address = device.local_addr().expect("an address");
    let mut publisher = publisher(&format!("udp://{address}")).await;
    let sent = records(3);
    publisher.send(&sent).await.expect("sent");
    let mut buffer = [0; 1472];
    for record in &sent {
        let count = device.recv(&mut buffer).await.expect("a datagram");
        assert_eq!(&serde_json::from_slice::<Record>(&buffer[..count]).expect("a record"), record);
    }
    assert_eq!(publisher.sent(), 3);
}
