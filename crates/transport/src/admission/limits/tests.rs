use super::*;

const SECOND: u64 = 1_000_000_000;

fn limits(change: impl FnOnce(&mut Config)) -> Arc<Limits> {
    let mut config = Config { exempt: Vec::new(), ..Config::default() };
    change(&mut config);
    Limits::new(&config, 1_000_000)
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn refused(limits: &Limits, name: &str) -> u64 {
    limits.refused().find(|(limit, _)| *limit == name).unwrap().1
}

fn code<T>(result: Result<T, Error>) -> Code {
    result.err().expect("a refusal").code
}

#[test]
fn limit_names_are_unique() {
    assert!(Limit::ALL.iter().enumerate().all(|(i, (limit, _))| *limit as usize == i));
    let names: std::collections::HashSet<_> = Limit::ALL.iter().map(|(_, name)| name).collect();
    assert_eq!(names.len(), Limit::ALL.len());
}

#[test]
fn connections_are_counted_until_they_end() {
    let limits = limits(|config| (config.connections_max, config.connections_per_address_max) = (3, 2));
    let (a, b) = (address("192.0.2.1"), address("192.0.2.2"));
    let held = [limits.connect(a).unwrap(), limits.connect(a).unwrap()];
    assert_eq!(code(limits.connect(a)), Code::TooMany);
    let other = limits.connect(b).unwrap();
    assert_eq!(code(limits.connect(b)), Code::Unavailable);
    assert_eq!((limits.connections(), refused(&limits, "connections_max")), (3, 1));
    assert_eq!(refused(&limits, "connections_per_address_max"), 1);
    drop((held, other));
    assert_eq!(limits.connections(), 0);
    drop(limits.connect(a).unwrap());
    limits.sweep_at(1000 * SECOND);
    assert_eq!(limits.addresses.len(), 0, "nobody who has gone is remembered");
}

#[test]
fn subject_is_one_holder_from_all_addresses() {
    let limits = limits(|_| {});
    let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
    let (one, other) = (Some(address("192.0.2.1")), Some(address("192.0.2.2")));
    assert_eq!(limits.holder(Some(&ann), one), limits.holder(Some(&ann), other));
    assert_ne!(limits.holder(Some(&ann), one), limits.holder(Some(&bob), one));
    assert_ne!(limits.holder(None, one), limits.holder(None, other));
    let network = ["2001:db8::1", "2001:db8::ffff:1"].map(|text| limits.holder(None, Some(address(text))));
    assert_eq!(network[0], network[1]);
    assert_eq!(limits.holder(None, None), Holder::NONE);
}

#[test]
fn descriptor_limit_is_the_default() {
    let limits = Limits::new(&Config { exempt: Vec::new(), ..Config::default() }, 74);
    let held: Vec<_> = std::iter::from_fn(|| limits.connect(address("192.0.2.1")).ok()).take(100).collect();
    assert_eq!(held.len(), 74 - 64 - 2);
}

#[test]
fn ipv6_network_counts_as_one_address() {
    let limits = limits(|config| config.connections_per_address_max = 1);
    let _held = limits.connect(address("2001:db8::1")).unwrap();
    assert_eq!(code(limits.connect(address("2001:db8::ffff:1"))), Code::TooMany);
    let _other = limits.connect(address("2001:db8:0:1::1")).unwrap();
    let _v4 = limits.connect(address("::ffff:192.0.2.1")).unwrap();
    assert_eq!(code(limits.connect(address("192.0.2.1"))), Code::TooMany);
}

#[test]
fn address_may_connect_in_bursts() {
    let limits = limits(|config| (config.connects_per_address_per_s, config.connects_per_s) = (5, 8));
    let comes = |from: &str, now_s: u64| limits.connect_at(address(from), now_s * SECOND);
    assert!((0..50).all(|_| comes("192.0.2.1", 0).is_ok()));
    let refusal = comes("192.0.2.1", 0).err().unwrap();
    assert_eq!((refusal.code, refusal.retry_s), (Code::RateLimited, Some(1)));
    assert_eq!((0..10).filter(|_| comes("192.0.2.1", 1).is_ok()).count(), 5);
    // Total limit: 80 at once, and 8 per second.
    let others = (0..100).filter(|i| comes(&format!("198.51.100.{i}"), 1).is_ok()).count();
    assert_eq!(others, 80 + 8 - 50 - 5);
    assert!(refused(&limits, "connects_per_s") > 0 && refused(&limits, "connects_per_address_per_s") > 0);
}

#[test]
fn exempt_address_counts_only_in_total() {
    let limits = limits(|config| {
        config.exempt = vec!["127.0.0.0/8".parse().unwrap()];
        (config.connections_max, config.connections_per_address_max, config.connects_per_s) = (5, 1, 1);
    });
    let held: Vec<_> = std::iter::from_fn(|| limits.connect(address("127.0.0.1")).ok()).take(100).collect();
    assert_eq!((held.len(), limits.addresses.len()), (5, 0));
}

#[test]
fn readers_are_limited_per_subject() {
    let limits = limits(|config| config.connections_per_subject_max = 2);
    let (ann, bob): (Arc<str>, Arc<str>) = ("ann".into(), "bob".into());
    let held = [limits.admit(Some(&ann), None).unwrap(), limits.admit(Some(&ann), None).unwrap()];
    assert_eq!(code(limits.admit(Some(&ann), None)), Code::TooMany);
    assert!(limits.admit(Some(&bob), None).is_ok() && limits.admit(None, None).unwrap().is_none());
    drop(held);
    assert!(limits.admit(Some(&ann), None).is_ok());
    limits.sweep_at(SECOND);
    assert_eq!(limits.subjects.len(), 0);
}

#[test]
fn readers_are_limited_per_forwarded_address() {
    let limits = limits(|config| config.connections_per_address_max = 1);
    let ann: Arc<str> = "ann".into();
    let held = limits.admit(Some(&ann), Some(address("192.0.2.1"))).unwrap();
    assert_eq!(code(limits.admit(None, Some(address("192.0.2.1")))), Code::TooMany);
    drop(held);
    assert!(limits.admit(None, Some(address("192.0.2.1"))).is_ok());
}

#[test]
fn publications_are_limited_per_connection_and_subject() {
    let limits = limits(|config| {
        (config.publishes_per_s, config.publish_bytes_per_s) = (10, 1000);
        (config.subject_publishes_per_s, config.subject_publish_bytes_per_s) = (15, 0);
    });
    let ann: Arc<str> = "ann".into();
    let (mut one, mut other) = (Publishes::default(), Publishes::default());
    let publish = |own: &mut Publishes, bytes| limits.check_publish_at(Some(own), Some(&ann), bytes, 0);
    assert!((0..10).all(|_| publish(&mut one, 1).is_ok()));
    assert_eq!(publish(&mut one, 1).unwrap_err().code, Code::RateLimited);
    assert_eq!(refused(&limits, "publishes_per_s"), 1);
    assert!((0..4).all(|_| publish(&mut other, 200).is_ok()));
    let heavy = publish(&mut other, 500).unwrap_err();
    assert_eq!((heavy.code, refused(&limits, "publish_bytes_per_s")), (Code::RateLimited, 1));
    assert!(publish(&mut other, 1).is_ok(), "a smaller one still fits");
    assert_eq!(publish(&mut other, 1).unwrap_err().code, Code::RateLimited);
    assert_eq!(refused(&limits, "subject_publishes_per_s"), 1);
}

#[test]
fn owed_publication_returns_wait_time() {
    let limits = limits(|config| (config.publishes_per_s, config.messages_per_s) = (10, 100));
    let mut own = Publishes::default();
    let waits: Vec<_> = (0..15).map(|_| limits.owe_publish(&mut own, None, 1)).collect();
    assert!(waits[..10].iter().all(|wait| *wait == Duration::ZERO));
    assert!(waits[14] > Duration::from_millis(400) && waits[14] <= Duration::from_millis(500), "{waits:?}");
    let mut messages = Bucket::default();
    assert_eq!(limits.owe_messages(&mut messages, 100), Duration::ZERO);
    assert!(limits.owe_messages(&mut messages, 100) > Duration::from_millis(900));
}

#[test]
fn forged_datagram_sources_use_bounded_memory() {
    let limits = limits(|config| config.datagrams_per_s = 1);
    let sources = (0..200_000u32).map(|i| IpAddr::from(i.to_be_bytes()));
    let taken = sources.filter(|source| limits.take_datagram(*source)).count();
    assert!((60_000..80_000).contains(&taken) && limits.addresses.len() <= 65_536, "{taken}");
}

#[test]
fn pending_bytes_are_limited_in_total() {
    let limits = limits(|config| config.pending_bytes_max = 1000);
    let mut one = limits.pend(600).unwrap();
    assert_eq!(code(limits.pend(401)), Code::Unavailable);
    let two = limits.pend(400).unwrap();
    assert_eq!(code(one.resize(601)), Code::Unavailable);
    assert_eq!(limits.pending_bytes(), 1000);
    drop(two);
    one.resize(900).unwrap();
    one.resize(1).unwrap();
    assert_eq!(limits.pending_bytes(), 1);
    drop(one);
    assert_eq!((limits.pending_bytes(), refused(&limits, "pending_bytes_max")), (0, 2));
}

#[test]
fn memory_pressure_stops_publishers_before_new_connections() {
    let limits = limits(|_| {});
    let seen = |pressure| {
        limits.set_pressure(pressure);
        (limits.check_publish(None, None, 1).is_ok(), limits.connect(address("192.0.2.1")).is_ok())
    };
    assert_eq!(Pressure::ALL.map(seen), [(true, true), (true, true), (false, true), (false, false)]);
}
