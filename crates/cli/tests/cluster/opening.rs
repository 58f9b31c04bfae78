//! An open WebSocket is subscribed: it receives every message that is published after the handshake.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::timeout;
use tokio_tungstenite::connect_async;

use crate::{
    broker::Kind,
    chaos::block_on,
    cluster::Cluster,
    process::{BOUND, is_there, turn},
};

/// Duration of many round trips to a responsive engine.
const STANDSTILL: Duration = Duration::from_millis(500);

#[test]
fn websocket_opens_only_once_its_channel_is_read() {
    let _turn = turn();
    if !is_there("haproxy") || !Kind::Redis.is_there() {
        return;
    }
    block_on(async {
        let cluster = Cluster::start("opening", Kind::Redis, 1, 1, &[]).await;
        let node = cluster.node(0);
        let path = "/v1/channels/opening";
        cluster.broker.pause();
        let mut opening = Box::pin(connect_async(node.websocket(path)));
        let early = timeout(STANDSTILL, &mut opening).await;
        assert!(early.is_err(), "nobody knows yet where the channel is, and yet: {early:?}");
        cluster.broker.resume();
        let (mut socket, _) = timeout(BOUND, opening).await.expect("in time").expect("an open WebSocket");
        let publish = millrace_client::tls::http()
            .build()
            .expect("a client")
            .post(node.http(path))
            .body("1")
            .send()
            .await
            .expect("an answer");
        assert_eq!(publish.status(), 200);
        let heard = timeout(BOUND, socket.next()).await.expect("in time").expect("a message").expect("a frame");
        assert_eq!(heard.into_data(), "1");
    });
}
