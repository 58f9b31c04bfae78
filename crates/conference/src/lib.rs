//! Rooms and their media, upon the public interface of `millrace-transport`.
//!
//! - [`rooms`]: the rooms API: participants, signals and reports, and the state that rooms publish
//! - [`media`]: hosting of the SFU and of the mixers; publishers and viewers over WHIP and WHEP
//! - [`turn`]: hosting of the TURN server, and `POST /v1/turn`
//!
//! The state machines are elsewhere (`millrace-rtc`). This crate gives them sockets, threads and routes. It never
//! decides about delivery, and it knows no client connection other than those of media.
//!
//! Read first: [`Conference`], [`ConferenceRoutes`], [`rooms::Shared`].

pub mod media;
pub mod rooms;
pub mod turn;

use std::{
    cell::{OnceCell, RefCell},
    future::ready,
    rc::Rc,
    sync::Arc,
};

use http::{Method, request::Parts};
use hyper::body::Incoming;
use millrace_transport::{
    Admission, Context, Routes, Shard, ShardPort,
    data_channel::Peers,
    route::{Answering, method_not_allowed, plain},
};

use tokio::sync::mpsc;

use media::{Media, Sfu, SfuProtocol};
use rooms::Rooms;

pub use rooms::Config as RoomsConfig;

/// Rooms and media of one shard.
pub struct Conference {
    pub(crate) shard: Rc<Shard>,
    pub(crate) admission: Rc<Admission>,
    pub(crate) rooms: Rooms,
    /// SFU of the shard, and the owners of its members.
    pub(crate) media: Media,
    turn: Option<Arc<turn::Offer>>,
    /// Peers of data channels; empty if the shard has no datagram port.
    pub(crate) data_channels: OnceCell<Rc<RefCell<Peers>>>,
}

impl Conference {
    /// Creates the rooms of a shard. `turn`: TURN URLs and short-lived credentials, if a relay is configured.
    pub fn new(
        shard: Rc<Shard>,
        admission: Rc<Admission>,
        rooms: Arc<rooms::Shared>,
        turn: Option<Arc<turn::Offer>>,
    ) -> Rc<Self> {
        let (media, data_channels) = Default::default();
        Rc::new(Self { shard, admission, rooms: Rooms::new(rooms), media, turn, data_channels })
    }

    /// Answers the questions of other shards about the rooms of this one, until the task is dropped.
    pub async fn answer_questions(self: Rc<Self>, mut questions: mpsc::Receiver<rooms::Question>) {
        while let Some(question) = questions.recv().await {
            question(&self);
        }
    }

    /// Returns TURN URLs and short-lived credentials, if a relay is configured. Peers without a direct path need
    /// them.
    pub(crate) fn turn(&self) -> Option<&turn::Offer> {
        self.turn.as_deref()
    }
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
            let allowed = path.allowed();
            return Some(match parts.method.as_str() == allowed {
                true => Box::pin(async move { rooms::answer(conference, parts, body, path).await.map(plain) }),
                false => Box::pin(ready(Ok(plain(method_not_allowed(allowed))))),
            });
        }
        match path {
            "/v1/turn" if parts.method == Method::POST => Some(Box::pin(async move {
                let caller = conference.admission.caller(parts).await?;
                caller.may_anything()?;
                turn::answer(conference, parts, &caller).map(plain)
            })),
            "/v1/turn" => Some(Box::pin(ready(Ok(plain(method_not_allowed("POST")))))),
            _ => None,
        }
    }

    fn open_port(&self, port: &ShardPort) {
        let conference = &self.0;
        let sfu = Sfu::new(port.demultiplexer.sender(), port.candidates.clone(), port.peers_max);
        port.peers.borrow_mut().set_carriers(sfu.clone());
        let _ = conference.data_channels.set(port.peers.clone());
        conference.media.set_sfu(sfu.clone());
        conference.rooms.set_switch(Rc::new(media::Participants));
        port.demultiplexer.add(Rc::new(SfuProtocol { conference: conference.clone(), sfu }));
    }

    fn tick(&self) {
        rooms::tick(&self.0);
    }
}
