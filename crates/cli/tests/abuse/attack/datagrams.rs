//! UDP attack: invalid datagrams, 20,000 per second.

use std::time::Duration;

use tokio::{
    net::UdpSocket,
    time::{MissedTickBehavior, interval},
};

use crate::trial::AttackContext;

const PER_MS: usize = 20;

pub async fn garbage(context: &AttackContext) {
    let target = context.udp.expect("the server was started with --udp");
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let datagrams: [Vec<u8>; 8] = [
        Vec::new(),
        vec![0; 1472],
        vec![0xff; 9000],
        vec![b'['; 1472],
        b"{\"carId\":".to_vec(),
        [&b"{\"carId\":1,\"a\":"[..], &b"{\"a\":".repeat(240)].concat(),
        b"{\"channel\":\"a b\",\"data\":1}".to_vec(),
        b"{\"channel\":\"a/#\",\"data\":1,\"ttl\":-1}".to_vec(),
    ];
    let mut every_ms = interval(Duration::from_millis(1));
    // Late ticks are made up for, because the rate matters.
    every_ms.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut next = datagrams.iter().cycle();
    loop {
        every_ms.tick().await;
        for datagram in next.by_ref().take(PER_MS) {
            if socket.send_to(datagram, target).await.is_ok() {
                context.done(1);
            }
        }
    }
}
