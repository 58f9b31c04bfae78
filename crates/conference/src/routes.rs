use std::{future::ready, net::SocketAddr, rc::Rc};

use http::{Method, request::Parts};
use hyper::body::Incoming;
use millrace_transport::{
    Context, Routes, ShardPort,
    route::{Answering, Endpoint, plain},
};

use crate::{
    Conference,
    media::{self, Sfu, SfuProtocol},
    rooms, turn,
};

const TURN: Endpoint = Endpoint::new("/v1/turn", "POST");

/// Returns the endpoints of this crate.
pub fn endpoints() -> impl Iterator<Item = &'static Endpoint> {
    rooms::ENDPOINTS.into_iter().chain(media::ENDPOINTS).chain([&TURN])
}

/// Routes of the rooms API, WHIP, WHEP and `POST /v1/turn`.
pub struct ConferenceRoutes(pub Rc<Conference>);

impl Routes for ConferenceRoutes {
    fn answer<'a>(&'a self, _: &'a Rc<Context>, parts: &'a Parts, body: &'a mut Incoming) -> Option<Answering<'a>> {
        let conference = &self.0;
        let path = parts.uri.path();
        if let Some(path) = media::Path::parse(path) {
            return Some(Box::pin(async move { media::answer(conference, parts, body, path).await.map(plain) }));
        }
        if let Some(path) = rooms::Path::parse(path) {
            let endpoint = path.endpoint();
            return Some(match parts.method.as_str() == endpoint.allow {
                true => Box::pin(async move { rooms::answer(conference, parts, body, path).await.map(plain) }),
                false => Box::pin(ready(Ok(plain(endpoint.refuse_method())))),
            });
        }
        if path != TURN.path {
            return None;
        }
        Some(match parts.method {
            Method::POST => Box::pin(async move {
                let caller = conference.admission.caller(parts).await?;
                caller.may_anything()?;
                turn::answer(conference.turn(), parts, &caller).map(plain)
            }),
            _ => Box::pin(ready(Ok(plain(TURN.refuse_method())))),
        })
    }

    fn open_port(&self, port: &ShardPort) {
        let conference = &self.0;
        let algorithm = conference.rooms.congestion_control();
        let sfu = Sfu::new(port.demultiplexer.sender(), port.candidates.clone(), port.peers_max, algorithm);
        if let Some(cluster) = conference.cluster()
            && let Some(first) = port.candidates.addresses.first()
        {
            let ip = conference.rooms.link_address().unwrap_or(first.ip());
            sfu.join_cluster(cluster.name().clone(), conference.shard.engine.now_ms());
            cluster.set_address(SocketAddr::new(ip, first.port()));
        }
        port.peers.borrow_mut().set_carriers(sfu.clone());
        let _ = conference.data_channels.set(port.peers.clone());
        conference.media.set_sfu(sfu.clone());
        port.demultiplexer.add(Rc::new(SfuProtocol { conference: conference.clone(), sfu }));
    }

    fn tick(&self) {
        rooms::tick(&self.0);
    }
}
