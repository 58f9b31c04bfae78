//! The HTTP requests: the key of the server, subscriptions of browsers, notifications of back ends.

use std::{rc::Rc, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{Method, request::Parts};
use hyper::body::Incoming;
use millrace_delivery::PageLimit;
use millrace_engine::Engine;
use millrace_protocol::{ChannelName, Code, Error, Kind, NewPublication, Position, Since, session::Policy};
use millrace_transport::{
    Context, Routes,
    admission::{Publisher, read_body},
    http::{Query, Response, json, no_content},
    route::{
        Answering, Endpoint, decode, plain,
        publish::{self, RequestPublisher},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    NAMESPACE,
    encrypt::{Keys, MESSAGE_BYTES_MAX},
    metrics::SubscriptionEvent,
    queue::Message,
    sender::Push,
};

/// Endpoints of this crate.
pub const ENDPOINTS: &[&Endpoint] = &[&KEY, &SUBSCRIPTIONS, &NOTIFY];

const KEY: Endpoint = Endpoint::new("/v1/push", "GET");
const SUBSCRIPTIONS: Endpoint = Endpoint::new("/v1/push/{subject}/subscriptions", "POST, DELETE");
const NOTIFY: Endpoint = Endpoint::new("/v1/push/{subject}", "POST");

/// Namespace of the channels with the notifications of each subject.
pub(crate) const NOTIFICATIONS: &str = "notifications";
/// Maximum size of a subscription in bytes.
const SUBSCRIPTION_BYTES_MAX: usize = 8 << 10;
/// Subscriptions read at once; a subject has at most `keys_max`.
const PAGE: PageLimit = PageLimit { count: 1000, bytes: 4 << 20 };
/// Default time for which a push service keeps a message.
const TTL: Duration = Duration::from_secs(24 * 60 * 60);
/// Messages that are written to the queue at the same time.
const WRITES: usize = 32;
/// Urgencies of RFC 8030, section 5.3.
const URGENCIES: [&str; 4] = ["very-low", "low", "normal", "high"];

/// Routes of Web Push. `None`: this server has no key.
pub struct PushRoutes(pub Option<Arc<Push>>);

/// A `PushSubscription` in JSON (Push API, section 8).
#[derive(Debug, Serialize, Deserialize)]
struct Subscription {
    endpoint: String,
    keys: SubscriptionKeys,
}

#[derive(Debug, Serialize, Deserialize)]
struct SubscriptionKeys {
    p256dh: String,
    auth: String,
}

#[derive(Deserialize)]
struct Unsubscription {
    endpoint: String,
}

impl Routes for PushRoutes {
    fn answer<'a>(
        &'a self,
        context: &'a Rc<Context>,
        parts: &'a Parts,
        body: &'a mut Incoming,
    ) -> Option<Answering<'a>> {
        let path = parts.uri.path();
        if path == KEY.path {
            return Some(Box::pin(async move {
                match parts.method {
                    Method::GET => self.key().map(plain),
                    _ => Ok(plain(KEY.refuse_method())),
                }
            }));
        }
        if let Some(subject) = SUBSCRIPTIONS.capture(path) {
            return Some(Box::pin(async move {
                match parts.method {
                    Method::POST => self.subscribe(context, parts, body, &decode(subject)?).await.map(plain),
                    Method::DELETE => self.unsubscribe(context, parts, body, &decode(subject)?).await.map(plain),
                    _ => Ok(plain(SUBSCRIPTIONS.refuse_method())),
                }
            }));
        }
        let subject = NOTIFY.capture(path)?;
        Some(Box::pin(async move {
            match parts.method {
                Method::POST => self.notify(context, parts, body, &decode(subject)?).await.map(plain),
                _ => Ok(plain(NOTIFY.refuse_method())),
            }
        }))
    }
}

/// Returns a channel of a subject. Errors: `bad_channel`.
pub(crate) fn channel(namespace: &str, subject: &str) -> Result<ChannelName, Error> {
    if subject.contains('/') {
        return Err(Error::new(Code::BadChannel, "a subject has no `/` here"));
    }
    ChannelName::parse(&format!("{namespace}/{subject}"))
}

/// Returns a hash in hexadecimal: the key of a subscription, because an endpoint is longer than a key may be, or the id
/// of a message.
fn hash(text: &str) -> Box<str> {
    Sha256::digest(text)[..16].iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
}

impl PushRoutes {
    fn push(&self) -> Result<&Arc<Push>, Error> {
        let missing = || Error::new(Code::NotImplemented, "this server has no key for Web Push; set `push.key`");
        self.0.as_ref().ok_or_else(missing)
    }

    /// Handles `GET /v1/push`: returns the public key, the `applicationServerKey` of browsers.
    fn key(&self) -> Result<Response, Error> {
        let key = self.push()?.config().vapid.public_key();
        Ok(json(json!({ "key": key }).to_string()))
    }

    /// Handles `POST /v1/push/{subject}/subscriptions`: stores the subscription of a browser. The body is a
    /// `PushSubscription`. Needs the permission to read `notifications/{subject}`.
    async fn subscribe(
        &self,
        context: &Context,
        parts: &Parts,
        body: &mut Incoming,
        subject: &str,
    ) -> Result<Response, Error> {
        let (push, subscriptions) = (self.push()?, channel(NAMESPACE, subject)?);
        let data = read_permitted(context, parts, body, subject).await?;
        let bad = |detail: String| Error::new(Code::BadRequest, detail);
        let subscription: Subscription = serde_json::from_slice(&data)
            .map_err(|error| Error::new(Code::BadJson, format!("expected a PushSubscription: {error}")))?;
        push.config().hosts.check(&subscription.endpoint).map_err(|error| bad(error.to_string()))?;
        let keys = Keys::parse(&subscription.keys.p256dh, &subscription.keys.auth);
        // Encrypting once finds a key that is no point of the curve.
        keys.and_then(|keys| keys.encrypt(b"")).map_err(|error| bad(error.to_string()))?;
        let json = serde_json::to_vec(&subscription).map_err(|error| bad(error.to_string()))?;
        let mut publication = NewPublication::new(Kind::Json, json);
        publication.key = Some(hash(&subscription.endpoint));
        context.shard.engine.append(&subscriptions, publication).await?;
        push.metrics().count_subscription(SubscriptionEvent::Stored);
        Ok(no_content())
    }

    /// Handles `DELETE /v1/push/{subject}/subscriptions` with `{"endpoint"}`.
    async fn unsubscribe(
        &self,
        context: &Context,
        parts: &Parts,
        body: &mut Incoming,
        subject: &str,
    ) -> Result<Response, Error> {
        let push = self.push()?;
        let subscriptions = channel(NAMESPACE, subject)?;
        let data = read_permitted(context, parts, body, subject).await?;
        let Unsubscription { endpoint } = serde_json::from_slice(&data)
            .map_err(|error| Error::new(Code::BadJson, format!("expected `{{\"endpoint\": URL}}`: {error}")))?;
        context.shard.engine.append(&subscriptions, NewPublication::deletion(hash(&endpoint))).await?;
        push.metrics().count_subscription(SubscriptionEvent::Ended);
        Ok(no_content())
    }

    /// Handles `POST /v1/push/{subject}?ttl=&urgency=`: publishes the body to `notifications/{subject}`. If that
    /// channel has no reader, also sends the body to the subscriptions of the subject, in the background. A repeated
    /// `Idempotency-Key` publishes and sends nothing.
    async fn notify(
        &self,
        context: &Context,
        parts: &Parts,
        body: &mut Incoming,
        subject: &str,
    ) -> Result<Response, Error> {
        let push = self.push()?;
        let notifications = channel(NOTIFICATIONS, subject)?;
        let caller = context.admission.caller(parts).await?;
        let mut target = caller.may_publish(notifications.clone())?;
        let query = Query::parse(parts, &["ttl", "urgency"])?;
        let ttl_s = query.duration("ttl")?.unwrap_or(TTL).as_secs();
        let asked = query.get("urgency").unwrap_or("normal");
        let urgency = URGENCIES.into_iter().find(|urgency| *urgency == asked);
        let urgency = urgency
            .ok_or_else(|| Error::new(Code::BadRequest, format!("`urgency` is one of {}", URGENCIES.join(", "))))?;
        let max = context.admission.config().message_bytes_max.min(MESSAGE_BYTES_MAX);
        let data = read_body(&context.admission, &parts.headers, body, max).await?;
        let kind = Kind::detect(&data);
        let publisher = RequestPublisher { admission: &context.admission, parts, caller: &caller };
        let mut publication = NewPublication::new(kind, &data);
        publication.ttl_ms = Some(ttl_s.max(1) * 1000);
        let key = parts.headers.get("idempotency-key").map(|value| value.to_str()).transpose();
        let key = key.map_err(|_| Error::new(Code::BadRequest, "`Idempotency-Key` is ASCII"))?;
        publication.idempotency_key = key.map(Into::into);
        let publication = publication.check()?;
        let position = publish::publish(context, &publisher, &mut target, publication).await?;
        let mut sent = 0;
        if context.shard.engine.presence(&notifications).await? == 0 {
            let expires_ms = context.shard.engine.now_ms() + ttl_s * 1000;
            let note = Notification { position, body: BASE64_STANDARD.encode(&data[..]), expires_ms, urgency };
            sent = send(&*context.shard.engine, push, subject, &note, key.is_some()).await?;
        }
        Ok(json(json!({ "position": position.to_string(), "pushes": sent }).to_string()))
    }
}

/// Checks the permission to read the notifications of the subject, reads the body, and charges it to the caller.
async fn read_permitted(context: &Context, parts: &Parts, body: &mut Incoming, subject: &str) -> Result<Bytes, Error> {
    let caller = context.admission.caller(parts).await?;
    context.admission.may_read_channel(&caller, parts, &channel(NOTIFICATIONS, subject)?).await?;
    Query::parse(parts, &[])?;
    let data = read_body(&context.admission, &parts.headers, body, SUBSCRIPTION_BYTES_MAX).await?;
    RequestPublisher { admission: &context.admission, parts, caller: &caller }.take_quota(data.len())?;
    Ok(data)
}

/// A notification for all browsers of a subject.
pub(crate) struct Notification {
    pub position: Position,
    /// The body in base64.
    pub body: String,
    pub expires_ms: u64,
    pub urgency: &'static str,
}

impl Notification {
    fn message(&self, subscription: Subscription, channel: &ChannelName, key: &str) -> Message {
        Message {
            endpoint: subscription.endpoint,
            p256dh: subscription.keys.p256dh,
            auth: subscription.keys.auth,
            subscriptions: channel.as_str().into(),
            subscription: key.into(),
            body: self.body.clone(),
            urgency: self.urgency.into(),
            expires_ms: self.expires_ms,
            attempt: 0,
            due_ms: 0,
        }
    }

    /// Returns the id of the message for one subscription. It is the same if the request is repeated.
    fn id(&self, channel: &ChannelName, key: &str) -> Box<str> {
        hash(&format!("{} {channel} {key}", self.position))
    }
}

/// Queues a notification for each subscription of a subject. Returns how many messages are on their way.
pub(crate) async fn send(
    engine: &dyn Engine,
    push: &Push,
    subject: &str,
    notification: &Notification,
    is_repeated: bool,
) -> Result<u64, Error> {
    let channel = channel(NAMESPACE, subject)?;
    let page = engine.page(&channel, Since::State, Policy::Every, PAGE).await?;
    let mut messages = Vec::new();
    for publication in page.publications.iter().filter(|publication| !publication.is_deletion) {
        let Ok(subscription) = serde_json::from_slice::<Subscription>(publication.data()) else { continue };
        // The permitted services may have changed since, and another client can have the permission to publish here.
        if push.config().hosts.check(&subscription.endpoint).is_err() {
            continue;
        }
        let key = publication.key.as_deref().unwrap_or_default();
        messages.push((notification.id(&channel, key), notification.message(subscription, &channel, key)));
    }
    let queued = stream::iter(messages).map(|(id, message)| push.send(id, message, is_repeated));
    let queued = queued.buffer_unordered(WRITES);
    queued.try_fold(0, |sent, is_queued| std::future::ready(Ok(sent + u64::from(is_queued)))).await
}
