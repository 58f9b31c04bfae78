use std::{cell::RefCell, rc::Rc, time::Duration};

use millrace_delivery::ConnId;
use millrace_mqtt::{
    Connect, ConnectError, ConnectWill, RECEIVE_MAX, Reason, Session, SessionKey, Settings, Version,
    encode::{self, ConnAck},
};
use millrace_protocol::{Attributes, ChannelName, Code, Error, Kind, NewPublication, Transport};

use super::Host;
use crate::{
    admission::access::Caller,
    connection::mqtt::{ConnectionRef, Ending, Link, Will},
};

/// Maximum length of a client identifier, in bytes.
const CLIENT_ID_BYTES_MAX: usize = 256;
/// Time that an earlier connection of a session has to end.
const TAKE_OVER: Duration = Duration::from_secs(5);

impl Host {
    /// Handles the first packet of a connection.
    pub(super) async fn connect(
        self: Rc<Self>,
        id: ConnId,
        link: Rc<RefCell<Link>>,
        connect: Result<Connect, ConnectError>,
    ) {
        let (version, outcome) = match connect {
            Ok(connect) => (Some(connect.version), self.accept(id, &link, connect).await),
            Err(ConnectError { version, reason }) => (version, Err(reason)),
        };
        let Err(reason) = outcome else { return };
        tracing::debug!(?reason, "refused the CONNECT of an MQTT client");
        if let Some(version) = version {
            encode::conn_refused(link.borrow_mut().out(), version, reason);
            self.event_loop.shard().sockets().flush_mqtt(id);
        }
        self.end(id, &link);
    }

    /// Errors: the reason of the refusal.
    async fn accept(self: &Rc<Self>, id: ConnId, link: &Rc<RefCell<Link>>, connect: Connect) -> Result<(), Reason> {
        let (shard, admission) = (self.event_loop.shard(), self.event_loop.admission());
        if admission.is_draining() {
            return Err(Reason::SERVER_UNAVAILABLE);
        }
        let caller = self.authenticate(id, &connect).await.map_err(|error| {
            admission.limits.count_error(&error);
            match (error.code, &connect.password) {
                (Code::Unauthorized, Some(_)) => Reason::BAD_USER_NAME_OR_PASSWORD,
                (Code::TooMany, _) => Reason::QUOTA_EXCEEDED,
                (Code::Unavailable, _) => Reason::SERVER_UNAVAILABLE,
                _ => Reason::NOT_AUTHORIZED,
            }
        })?;
        let will = connect.will.as_ref().map(|will| self.check_will(&caller, will)).transpose()?;
        let (client_id, is_assigned) = match connect.client_id.as_str() {
            "" if connect.version == Version::V311 && !connect.is_clean => {
                return Err(Reason::CLIENT_IDENTIFIER_NOT_VALID);
            }
            "" => (format!("auto-{:016x}", getrandom::u64().map_err(|_| Reason::SERVER_UNAVAILABLE)?), true),
            client_id if client_id.len() > CLIENT_ID_BYTES_MAX => return Err(Reason::CLIENT_IDENTIFIER_NOT_VALID),
            client_id => (client_id.to_owned(), false),
        };
        let key = SessionKey { subject: caller.grant.subject.clone(), client_id: client_id.as_str().into() };
        let this = ConnectionRef { shard: shard.id, id };
        let (serial, saved) = self.node.begin(&key, this, connect.is_clean, TAKE_OVER).await;
        let config = &self.node.config;
        let settings = Settings {
            packet_bytes_max: self.packet_bytes_max(),
            session_expiry_max_s: config.session_expiry_max.as_secs().min(u32::MAX.into()) as u32,
            publisher: self.node.next_publisher(),
        };
        let is_resumed = saved.is_some();
        let session = Session::new(&connect, settings, saved.map(|saved| *saved));
        let keep_alive_max_s = config.keep_alive_max.as_secs().clamp(1, u16::MAX.into()) as u16;
        let asked = connect.keep_alive_s;
        let is_capped = connect.version == Version::V5 && (asked == 0 || asked > keep_alive_max_s);
        let keep_alive_s = if is_capped { keep_alive_max_s } else { asked };
        let ack = ConnAck {
            is_resumed,
            session_expiry_s: (session.expiry_s != connect.session_expiry_s).then_some(session.expiry_s),
            client_id: is_assigned.then_some(client_id.as_str()),
            keep_alive_s: is_capped.then_some(keep_alive_s),
            receive_max: RECEIVE_MAX,
            alias_max: millrace_mqtt::ALIAS_MAX,
            packet_bytes_max: settings.packet_bytes_max.min(u32::MAX as usize) as u32,
        };
        {
            let mut link = link.borrow_mut();
            encode::conn_ack(link.out(), connect.version, &ack);
            session.resend(link.out());
            (link.version, link.session) = (connect.version, Some(session));
            // From here on, the end of the link ends the session.
            link.ending = Some(Ending { node: self.node.clone(), key, serial, will });
            link.silence_max_s = u32::from(keep_alive_s) * 3 / 2 + u32::from(keep_alive_s % 2);
        }
        shard.sockets().flush_mqtt(id);
        if shard.sockets().mqtt(id).is_none() {
            // The client left meanwhile.
            return Ok(());
        }
        shard.sockets().set_caller(id, caller, Transport::Mqtt);
        let silence_max_s = link.borrow().silence_max_s;
        if silence_max_s > 0 {
            self.check_silence_at(id, self.now_s() + silence_max_s + 1);
        }
        if is_resumed {
            self.resubscribe(id, link).await;
        }
        Ok(())
    }

    /// Errors: the token is invalid, or the subject has too many connections; those of the app's back end.
    async fn authenticate(&self, id: ConnId, connect: &Connect) -> Result<Caller, Error> {
        let admission = self.event_loop.admission();
        let invalid = || Error::new(Code::Unauthorized, "the password must be a token");
        let token = connect.password.as_deref().filter(|password| !password.is_empty());
        let token = token.map(|token| std::str::from_utf8(token).map_err(|_| invalid())).transpose()?;
        let client = self.event_loop.client(id);
        let address = client.address;
        let caller = admission.caller_with(client, token).await?;
        caller.may_anything()?;
        let caller = Caller { holder: admission.limits.holder(caller.grant.subject.as_ref(), address), ..caller };
        let slot = admission.limits.admit(caller.grant.subject.as_ref(), None)?;
        if let Some(quotas) = self.event_loop.shard().sockets().quotas(id) {
            quotas.set_reader_slot(slot);
        }
        Ok(caller)
    }

    /// Errors: the topic of the will is no channel, the caller may not publish to it, or the will is too large.
    fn check_will(&self, caller: &Caller, will: &ConnectWill) -> Result<(Will, u32), Reason> {
        let channel = ChannelName::parse(&will.topic).map_err(|_| Reason::TOPIC_NAME_INVALID)?;
        let bytes_max = self.node.config.will_bytes_max.min(self.event_loop.admission().config().message_bytes_max);
        if will.payload.len() > bytes_max {
            return Err(Reason::PACKET_TOO_LARGE);
        }
        let target = caller.may_publish(channel).map_err(|_| Reason::NOT_AUTHORIZED)?;
        let kind = if std::str::from_utf8(&will.payload).is_ok() { Kind::Utf8 } else { Kind::Binary };
        let attributes =
            Attributes { qos: will.qos, is_retained: will.is_retained, publisher: 0, properties: &will.properties };
        let mut publication = NewPublication::new(kind, &will.payload).traced(will.trace).with_attributes(attributes);
        publication.ttl_ms = will.expiry_s.map(|expiry_s| u64::from(expiry_s) * 1000);
        let is_retained = will.is_retained;
        Ok((Will { caller: caller.clone(), target, publication, is_retained }, will.delay_s))
    }
}
