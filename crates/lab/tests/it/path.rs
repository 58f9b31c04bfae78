//! Emulated links between namespaces, with real sockets. Needs root and /dev/net/tun; says SKIPPED without.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, TcpListener, TcpStream},
    process::Command,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::{Duration, Instant},
};

use millrace_lab::{
    path::{
        Emulator, PathSettings, TunCable, behind, congestion_control,
        emulator::{LiveDirection, Records},
        knobs::Knobs,
    },
    wire::namespace,
};
use millrace_link::{Cause, Config, Direction, PipeConfig, Probability, Traces};

/// Moves the test into a network namespace of its own: a browser aborts its requests when a device appears beside it.
fn is_possible() -> bool {
    match TunCable::check().and_then(|()| namespace::enter()) {
        Ok(()) => true,
        Err(error) => {
            eprintln!("SKIPPED: no link between namespaces here: {error:#}");
            false
        }
    }
}

fn delayed(delay: Duration) -> Config {
    let pipe = PipeConfig { delay, ..PipeConfig::default() };
    Config { up: pipe.clone(), down: pipe, ..Config::default() }
}

#[test]
fn server_on_loopback_is_reached_over_the_link_with_its_delay() {
    if !is_possible() {
        return;
    }
    let cable = TunCable::new(delayed(Duration::from_millis(30)), Traces::default(), 1, None);
    let start = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    let round_trips = namespace::across(&cable, start, |listener| {
        let port = listener.local_addr()?.port();
        let echo = std::thread::spawn(move || -> std::io::Result<()> {
            let (mut stream, _) = listener.accept()?;
            let mut buffer = [0; 16];
            while let length @ 1.. = stream.read(&mut buffer)? {
                stream.write_all(&buffer[..length])?;
            }
            Ok(())
        });
        let mut stream = TcpStream::connect((namespace::FAR, port))?;
        let mut round_trips = Vec::new();
        for _ in 0..5 {
            let sent = Instant::now();
            stream.write_all(b"ping")?;
            stream.read_exact(&mut [0; 4])?;
            round_trips.push(sent.elapsed());
        }
        drop(stream);
        echo.join().expect("the echo lives")?;
        Ok(round_trips)
    });
    let fastest = round_trips.expect("five round trips").into_iter().min().expect("five");
    assert!((Duration::from_millis(60)..Duration::from_millis(120)).contains(&fastest), "{fastest:?}");
    let report = cable.finish().expect("a report");
    let lost: u64 = Cause::ALL.iter().map(|cause| report.down.dropped(*cause)).sum();
    assert_eq!(lost, 0, "{report:?}");
    assert!(report.up.delivered >= 8, "a handshake, five messages and an end");
}

#[test]
fn program_behind_a_link_reaches_this_machine_only_over_the_link() {
    if !is_possible() {
        return;
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let port = listener.local_addr().expect("it is bound").port();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("one connection");
        stream.write_all(b"hello\n").expect("it is open");
    });
    let log = tempfile::NamedTempFile::new().expect("a file");
    let options = behind::Options {
        config: delayed(Duration::from_millis(20)),
        traces: Traces::default(),
        seed: 1,
        records: Records { log: Some(log.path().to_owned()), ..Records::default() },
    };
    let mut program = Command::new("bash");
    program.args(["-c", &format!("read line < /dev/tcp/$LINK_HOST/{port} && [ \"$line\" = hello ] && exit 7")]);
    let mut host = None;
    let (status, report) =
        behind::run(options, program, &AtomicBool::new(false), |address| host = Some(address), |_| {}).expect("it ran");
    server.join().expect("the server lives");
    assert_eq!(status.code(), Some(7), "the exit code of the program");
    assert!(report.up.received >= 3 && report.down.received >= 3, "{report:?}");
    let packets = std::fs::read(log.path()).expect("a log");
    assert_eq!(packets[..4], 0x0a0d_0d0a_u32.to_le_bytes(), "a section header of pcapng");
    let host = host.expect("it was started").to_string();
    let is_left = || {
        let devices = Command::new("ip").args(["-o", "addr"]).output().expect("ip runs").stdout;
        String::from_utf8_lossy(&devices).contains(&host)
    };
    // A program that another test starts at this moment holds a copy of the descriptor until its `exec`.
    let end = Instant::now() + Duration::from_secs(5);
    while is_left() {
        assert!(Instant::now() < end, "nothing is left of the link");
    }
}

#[test]
fn link_that_cannot_start_ends_with_its_error() {
    if !is_possible() {
        return;
    }
    let records = Records { log: Some("/does/not/exist/packets.pcapng".into()), ..Records::default() };
    let options = behind::Options { config: Config::default(), traces: Traces::default(), seed: 1, records };
    let ended = behind::run(options, Command::new("true"), &AtomicBool::new(false), |_| {}, |_| {});
    let error = format!("{:#}", ended.expect_err("the log cannot be created"));
    assert!(error.contains("/does/not/exist"), "{error}");
}

#[test]
fn program_that_must_stop_is_ended() {
    if !is_possible() {
        return;
    }
    let records = Records::default();
    let options = behind::Options { config: Config::default(), traces: Traces::default(), seed: 1, records };
    let mut program = Command::new("sleep");
    program.arg("60");
    let (stop, started) = (AtomicBool::new(true), Instant::now());
    let (status, _) = behind::run(options, program, &stop, |_| {}, |_| {}).expect("it ran");
    assert!(!status.success() && started.elapsed() < Duration::from_secs(30), "{status}");
}

#[test]
fn both_ends_of_a_connection_use_the_congestion_control() {
    if !is_possible() {
        return;
    }
    // Every kernel has reno.
    for name in ["reno", "cubic"] {
        let Ok(algorithm) = congestion_control(name) else {
            eprintln!("SKIPPED: this kernel has no {name}");
            continue;
        };
        let cable = TunCable::new(Config::default(), Traces::default(), 1, None).with_congestion(algorithm);
        let start = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let used = namespace::across(&cable, start, |listener| {
            let port = listener.local_addr()?.port();
            let mut used = Vec::new();
            for source in [namespace::NEAR, namespace::device(7)] {
                let near = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
                near.bind(&std::net::SocketAddr::from((source, 0)).into())?;
                near.connect(&std::net::SocketAddr::from((namespace::FAR, port)).into())?;
                let (far, from) = listener.accept()?;
                assert_eq!(from.ip(), source);
                used.extend([near.tcp_congestion()?, socket2::SockRef::from(&far).tcp_congestion()?]);
            }
            Ok(used)
        });
        let used = used.expect("four sockets");
        let used: Vec<_> = used.iter().map(|name| String::from_utf8_lossy(name)).collect();
        assert!(used.len() == 4 && used.iter().all(|used| used.trim_end_matches('\0') == name), "{used:?}");
    }
    let error = congestion_control("vegaz").expect_err("no kernel has it").to_string();
    assert!(error.contains("vegaz") && error.contains("reno"), "{error}");
}

#[test]
fn bypass_has_neither_delay_nor_losses_and_is_not_counted() {
    if !is_possible() {
        return;
    }
    let pipe = PipeConfig { delay: Duration::from_secs(1), loss: Probability::ONE, ..PipeConfig::default() };
    let config = Config { up: pipe.clone(), down: pipe, ..Config::default() };
    let cable = TunCable::new(config, Traces::default(), 1, None).with_activity();
    let start = || Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
    let greeting = namespace::across(&cable, start, |listener| {
        let mut near = TcpStream::connect((namespace::BYPASS_FAR, listener.local_addr()?.port()))?;
        let (mut far, from) = listener.accept()?;
        assert_eq!(from.ip(), namespace::BYPASS_NEAR);
        far.write_all(b"hello")?;
        let mut greeting = [0; 5];
        near.read_exact(&mut greeting)?;
        Ok(greeting)
    });
    assert_eq!(&greeting.expect("a greeting"), b"hello");
    let report = cable.finish().expect("a report");
    assert_eq!((report.up.received, report.down.received), (0, 0));
    assert!(report.bypassed >= 4, "a handshake and a message: {report:?}");
    assert_eq!(report.activity.packets(), Some(&[][..]));
}

#[test]
fn activity_has_sent_and_received_packets_of_each_device() {
    if !is_possible() {
        return;
    }
    let cable = TunCable::new(delayed(Duration::from_millis(20)), Traces::default(), 1, None).with_activity();
    let start = || {
        let far = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 7001))?;
        far.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(far)
    };
    let done = namespace::across(&cable, start, |far| {
        let mut buffer = [0; 200];
        for (number, bytes) in [(0, 100), (1, 50)] {
            let near = std::net::UdpSocket::bind((namespace::device(number), 0))?;
            near.set_read_timeout(Some(Duration::from_secs(5)))?;
            near.send_to(&buffer[..bytes], (namespace::FAR, 7001))?;
            let (_, from) = far.recv_from(&mut buffer)?;
            far.send_to(&buffer[..10], from)?;
            near.recv(&mut buffer)?;
        }
        Ok(())
    });
    done.expect("two round trips");
    let report = cable.finish().expect("a report");
    let packets = report.activity.packets().expect("few packets");
    // IP and UDP headers are 28 bytes.
    let seen: Vec<_> = packets.iter().map(|packet| (packet.device, packet.direction, packet.bytes)).collect();
    let (first, second) = (namespace::device(0), namespace::device(1));
    let [up, down] = Direction::BOTH;
    assert_eq!(seen, [(first, up, 128), (first, down, 38), (second, up, 78), (second, down, 38)]);
    let took = packets[1].at.since(packets[0].at);
    assert!(took >= Duration::from_millis(40), "sent at the start, received at the end: {took:?}");
}

#[test]
fn command_changes_the_running_link_and_keeps_its_counters() {
    if !is_possible() {
        return;
    }
    let mut knobs = Knobs::new("r".into(), PathSettings::default(), Traces::default()).expect("a link");
    let records = Records::default();
    let options = behind::Options { config: knobs.config(), traces: Traces::default(), seed: 1, records };
    let mut program = Command::new("bash");
    program.args(["-c", "while sleep 0.01; do echo > /dev/udp/$LINK_HOST/9; done"]);
    let (stop, deadline) = (AtomicBool::new(false), Instant::now() + Duration::from_secs(60));
    let lost = |live: &LiveDirection| live.counters.dropped(Cause::Channel);
    let mut stages: Vec<LiveDirection> = Vec::new();
    let look = |emulator: &Emulator| {
        let live = emulator.live().up;
        let since = stages.last().copied().unwrap_or_default();
        let delivered = live.counters.delivered - since.counters.delivered;
        let (is_done, change) = match stages.len() {
            0 => (delivered >= 10, "up.loss=100%"),
            1 => (lost(&live) >= 10, "up.delay=70ms\", \"up.loss=0%"),
            2 => (delivered >= 20 && live.delay_max >= Duration::from_millis(70), "up.delay=0s"),
            _ => return stop.store(true, Relaxed),
        };
        if is_done {
            let answer = knobs.handle(&format!(r#"{{ "run": "r", "id": "c", "set": ["{change}"] }}"#));
            assert_eq!(answer.expect("an answer").error, None);
            emulator.configure(knobs.config(), knobs.traces().clone());
            stages.push(live);
        }
        stop.fetch_or(Instant::now() > deadline, Relaxed);
    };
    let (_, report) = behind::run(options, program, &stop, |_| {}, look).expect("it ran");
    let [before, without, late] = &stages[..] else { panic!("in time: {stages:?}") };
    assert!(lost(before) == 0 && before.delay_sum < Duration::from_millis(70), "{before:?}");
    // A command takes effect within 20 ms.
    assert!(without.counters.delivered - before.counters.delivered < 10, "{before:?} {without:?}");
    assert!(late.counters.received >= 40 && report.up.received >= late.counters.received, "{late:?} {report:?}");
    assert!(lost(late) - lost(without) < 10 && report.up.dropped(Cause::Channel) == lost(late), "{late:?} {report:?}");
}

#[test]
fn losses_of_a_link_repeat_with_its_seed() {
    if !is_possible() {
        return;
    }
    let lost = |seed| {
        let pipe = PipeConfig { loss: Probability::new(0.2).expect("a probability"), ..PipeConfig::default() };
        let cable = TunCable::new(Config { up: pipe, ..Config::default() }, Traces::default(), seed, None);
        let start = || {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 7000))?;
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
            Ok(socket)
        };
        let arrived = namespace::across(&cable, start, |far| {
            let near = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            for number in 0..200_u8 {
                near.send_to(&[number], (namespace::FAR, 7000))?;
                std::thread::sleep(Duration::from_micros(200));
            }
            let (mut numbers, mut buffer) = (Vec::new(), [0; 1]);
            while far.recv(&mut buffer).is_ok() {
                numbers.push(buffer[0]);
            }
            Ok(numbers)
        });
        let report = cable.finish().expect("a report");
        assert_eq!(report.up.received, 200, "no packet of the kernel's own is on the link");
        let arrived = arrived.expect("numbers");
        assert_eq!(arrived.len() as u64, 200 - report.up.dropped(Cause::Channel));
        arrived
    };
    let first = lost(1);
    assert!((120..190).contains(&first.len()), "{}", first.len());
    assert_eq!(first, lost(1), "the same seed");
    assert_ne!(first, lost(2), "another seed");
}
