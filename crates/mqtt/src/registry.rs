use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use crate::Saved;

/// Identifies a session. A client identifier belongs to the subject of its token, so no client can take over the
/// session of another subject.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionKey {
    pub subject: Option<Arc<str>>,
    pub client_id: Box<str>,
}

/// Limits of all saved sessions of a node.
#[derive(Clone, Copy, Debug)]
pub struct RegistryLimits {
    pub sessions_max: usize,
    pub bytes_max: usize,
}

/// The sessions of a node: connected ones, with the link `L` to their connection, saved ones, and wills `W` that are
/// delayed. Times are in milliseconds since 1970.
#[derive(Debug)]
pub struct Registry<L, W> {
    limits: RegistryLimits,
    connected: HashMap<SessionKey, Connected<L>>,
    saved: HashMap<SessionKey, Kept>,
    /// Saved sessions by the number of their save, oldest first.
    order: BTreeMap<u64, SessionKey>,
    expiries: BTreeSet<(u64, SessionKey)>,
    wills: BTreeMap<(u64, u64), Will<W>>,
    saved_bytes: usize,
    serial: u64,
}

#[derive(Debug)]
struct Connected<L> {
    serial: u64,
    link: L,
}

#[derive(Debug)]
struct Kept {
    saved: Box<Saved>,
    expires_ms: u64,
    bytes: usize,
    order: u64,
}

#[derive(Debug)]
struct Will<W> {
    key: SessionKey,
    will: W,
}

/// Result of [`Registry::connect`].
#[derive(Debug)]
pub enum Begun<L> {
    /// The session begins. `serial` is for [`Registry::disconnect`].
    Session { serial: u64, saved: Option<Box<Saved>> },
    /// An earlier connection still has the session. Close it, and call again when it has ended.
    Busy(L),
}

impl<L: Clone, W> Registry<L, W> {
    pub fn new(limits: RegistryLimits) -> Self {
        let (connected, saved, order, expiries, wills, saved_bytes, serial) = Default::default();
        Self { limits, connected, saved, order, expiries, wills, saved_bytes, serial }
    }

    /// Begins or continues a session. `link`: the connection. `force`: an earlier connection no longer counts.
    pub fn connect(&mut self, key: &SessionKey, link: L, is_clean: bool, force: bool, now_ms: u64) -> Begun<L> {
        if let Some(earlier) = self.connected.get(key).filter(|_| !force) {
            return Begun::Busy(earlier.link.clone());
        }
        self.serial += 1;
        let saved = self.take(key).filter(|kept| !is_clean && kept.expires_ms > now_ms).map(|kept| kept.saved);
        let of_session = |will: &Will<W>| will.key == *key;
        if saved.is_some() {
            // The client is back before its will was due.
            self.wills.retain(|(at_ms, _), will| !of_session(will) || *at_ms <= now_ms);
        } else {
            let ended: Vec<_> = self.wills.iter().filter(|(_, will)| of_session(will)).map(|(at, _)| *at).collect();
            for at in ended {
                let will = self.wills.remove(&at).expect("it was just listed");
                self.wills.insert((0, at.1), will);
            }
        }
        self.connected.insert(key.clone(), Connected { serial: self.serial, link });
        Begun::Session { serial: self.serial, saved }
    }

    /// Ends a connection. `saved`: what is kept for `expiry_s` seconds; `will`: is due after its delay, but not after
    /// the session.
    pub fn disconnect(
        &mut self,
        key: &SessionKey,
        serial: u64,
        saved: Option<Saved>,
        expiry_s: u32,
        will: Option<(W, u32)>,
        now_ms: u64,
    ) {
        if let Some((will, delay_s)) = will {
            self.serial += 1;
            let at_ms = now_ms + u64::from(delay_s.min(expiry_s)) * 1000;
            self.wills.insert((at_ms, self.serial), Will { key: key.clone(), will });
        }
        if self.connected.get(key).is_none_or(|connected| connected.serial != serial) {
            return;
        }
        self.connected.remove(key);
        if let Some(saved) = saved {
            self.keep(key, saved, expiry_s, now_ms);
        }
    }

    fn keep(&mut self, key: &SessionKey, saved: Saved, expiry_s: u32, now_ms: u64) {
        self.take(key);
        let bytes = saved.bytes();
        if bytes > self.limits.bytes_max || self.limits.sessions_max == 0 {
            return;
        }
        while self.saved.len() >= self.limits.sessions_max || self.saved_bytes + bytes > self.limits.bytes_max {
            let Some(oldest) = self.order.values().next().cloned() else { return };
            self.take(&oldest);
        }
        self.serial += 1;
        let expires_ms = if expiry_s == u32::MAX { u64::MAX } else { now_ms + u64::from(expiry_s) * 1000 };
        self.order.insert(self.serial, key.clone());
        self.expiries.insert((expires_ms, key.clone()));
        self.saved_bytes += bytes;
        self.saved.insert(key.clone(), Kept { saved: Box::new(saved), expires_ms, bytes, order: self.serial });
    }

    fn take(&mut self, key: &SessionKey) -> Option<Kept> {
        let kept = self.saved.remove(key)?;
        self.order.remove(&kept.order);
        self.expiries.remove(&(kept.expires_ms, key.clone()));
        self.saved_bytes -= kept.bytes;
        Some(kept)
    }

    /// Drops expired sessions, and returns the wills that are due.
    pub fn take_due(&mut self, now_ms: u64) -> Vec<W> {
        while let Some((expires_ms, key)) = self.expiries.first().cloned()
            && expires_ms <= now_ms
        {
            self.take(&key);
        }
        let mut due = Vec::new();
        while let Some(first) = self.wills.first_entry().filter(|first| first.key().0 <= now_ms) {
            due.push(first.remove().will);
        }
        due
    }

    /// Returns the time of the next will.
    pub fn next_will_ms(&self) -> Option<u64> {
        self.wills.keys().next().map(|(at_ms, _)| *at_ms)
    }

    /// Returns the numbers of connected and of saved sessions, and the bytes of the latter.
    pub fn size(&self) -> (usize, usize, usize) {
        (self.connected.len(), self.saved.len(), self.saved_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: RegistryLimits = RegistryLimits { sessions_max: 2, bytes_max: 1 << 20 };

    fn key(id: &str) -> SessionKey {
        SessionKey { subject: None, client_id: id.into() }
    }

    fn connect(registry: &mut Registry<u32, &'static str>, id: &str, is_clean: bool, now_ms: u64) -> (u64, bool) {
        match registry.connect(&key(id), 0, is_clean, false, now_ms) {
            Begun::Session { serial, saved } => (serial, saved.is_some()),
            Begun::Busy(_) => panic!("{id} is connected"),
        }
    }

    #[test]
    fn session_lasts_until_its_expiry() {
        let mut registry = Registry::new(LIMITS);
        let (serial, _) = connect(&mut registry, "a", false, 0);
        registry.disconnect(&key("a"), serial, Some(Saved::default()), 5, None, 1000);
        let (serial, is_resumed) = connect(&mut registry, "a", false, 5999);
        assert!(is_resumed);
        registry.disconnect(&key("a"), serial, Some(Saved::default()), 5, None, 6000);
        assert!(!connect(&mut registry, "a", false, 11_000).1);
        assert_eq!(registry.size(), (1, 0, 0));
    }

    #[test]
    fn clean_start_drops_the_session() {
        let mut registry = Registry::new(LIMITS);
        let (serial, _) = connect(&mut registry, "a", false, 0);
        registry.disconnect(&key("a"), serial, Some(Saved::default()), u32::MAX, None, 0);
        assert!(!connect(&mut registry, "a", true, 1).1);
    }

    #[test]
    fn earlier_connection_must_end_first() {
        let mut registry: Registry<u32, &str> = Registry::new(LIMITS);
        assert!(matches!(registry.connect(&key("a"), 7, true, false, 0), Begun::Session { serial: 1, .. }));
        assert!(matches!(registry.connect(&key("a"), 8, true, false, 0), Begun::Busy(7)));
        assert!(matches!(registry.connect(&key("a"), 8, true, true, 0), Begun::Session { .. }));
        registry.disconnect(&key("a"), 1, Some(Saved::default()), 9, None, 0);
        assert_eq!(registry.size().0, 1, "the end of the earlier connection changes nothing");
        let other = SessionKey { subject: Some("s".into()), client_id: "a".into() };
        assert!(matches!(registry.connect(&other, 9, true, false, 0), Begun::Session { .. }));
    }

    #[test]
    fn will_waits_for_its_delay_and_not_longer_than_the_session() {
        let mut registry = Registry::new(LIMITS);
        for (id, expiry_s, delay_s) in [("a", 9, 3), ("b", 2, 5), ("c", 9, 3)] {
            let (serial, _) = connect(&mut registry, id, false, 0);
            registry.disconnect(&key(id), serial, Some(Saved::default()), expiry_s, Some(("will", delay_s)), 0);
        }
        assert_eq!(registry.next_will_ms(), Some(2000));
        assert_eq!(registry.take_due(1999).len(), 0);
        assert_eq!(registry.take_due(2000).len(), 1);
        connect(&mut registry, "c", false, 2500);
        assert_eq!(registry.take_due(3000).len(), 1, "the client c is back");
        assert_eq!(registry.next_will_ms(), None);
    }

    #[test]
    fn will_without_delay_is_published_although_the_client_is_back() {
        let mut registry = Registry::new(LIMITS);
        let (serial, _) = connect(&mut registry, "a", false, 0);
        registry.disconnect(&key("a"), serial, Some(Saved::default()), 9, Some(("will", 0)), 7);
        assert!(connect(&mut registry, "a", false, 7).1);
        assert_eq!(registry.take_due(7), ["will"]);
    }

    #[test]
    fn clean_start_makes_the_will_due() {
        let mut registry = Registry::new(LIMITS);
        let (serial, _) = connect(&mut registry, "a", false, 0);
        registry.disconnect(&key("a"), serial, Some(Saved::default()), 9, Some(("will", 9)), 0);
        connect(&mut registry, "a", true, 1);
        assert_eq!(registry.take_due(1), ["will"]);
    }

    #[test]
    fn oldest_sessions_make_room() {
        let mut registry = Registry::new(LIMITS);
        for id in ["a", "b", "c"] {
            let (serial, _) = connect(&mut registry, id, false, 0);
            registry.disconnect(&key(id), serial, Some(Saved::default()), 9, None, 0);
        }
        assert_eq!(registry.size().1, 2);
        assert!(!connect(&mut registry, "a", false, 1).1 && connect(&mut registry, "c", false, 1).1);
    }
}
