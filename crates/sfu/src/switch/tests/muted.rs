use super::*;

#[test]
fn muted_tracks_stop_and_resume_at_keyframe() {
    let mut net = Net::new();
    let a = net.join("a", Role::Member, VIDEO, &[]);
    let b = net.join("b", Role::Member, VIDEO, &[]);
    net.run(SETTLED);
    net.talk(a, 20);
    let mute = |net: &mut Net, muted| {
        let id = net.clients[a].id;
        let Net { switch, in_flight, now, .. } = net;
        switch.mute(id, muted, *now, &mut |to, datagram| in_flight.push((to, datagram)));
    };
    let sequences = |net: &Net| {
        let sequence = |event: &MediaEvent| match event {
            MediaEvent::Packet { sequence, .. } => Some(*sequence),
            _ => None,
        };
        net.clients[b].out.events.iter().filter_map(sequence).collect::<Vec<u64>>()
    };
    mute(&mut net, Muted { audio: true, video: false });
    net.talk(a, 10);
    assert_eq!(net.seen(b).0.len(), 30, "its sound alone is muted");
    mute(&mut net, Muted { audio: false, video: true });
    net.talk(a, 60);
    assert_eq!(net.seen(b).0.len(), 30);
    let sends = |net: &Net| net.switch.reports("room", net.now)[0].sends[0].clone();
    assert!(sends(&net).is_muted && sends(&net).layers_kbps[0] > 0, "it may go on sending: {:?}", sends(&net));
    mute(&mut net, Muted::default());
    let (_, keys) = net.seen(b);
    net.talk(a, 20);
    let (numbers, after) = net.seen(b);
    assert!(numbers.len() == 50 && (keys + 1..=keys + 2).contains(&after), "{keys} and {after} key frames");
    let all = sequences(&net);
    assert!(all.windows(2).all(|pair| pair[1] == pair[0] + 1), "nothing seems lost: {all:?}");
}

#[test]
fn mute_applies_to_later_tracks() {
    let mut net = Net::new();
    let b = net.join("b", Role::Member, VIDEO, &[]);
    let a = net.join("a", Role::Member, AUDIO, &[]);
    net.run(SETTLED);
    let id = net.clients[a].id;
    let Net { switch, in_flight, clients, now, .. } = &mut net;
    let send = &mut |to, datagram| in_flight.push((to, datagram));
    switch.mute(id, Muted { audio: false, video: true }, *now, send);
    let offer = clients[a].end.offer_more(MediaKind::Video);
    let answer = switch.accept_offer(id, &offer, *now, send).unwrap();
    clients[a].end.accept(&answer).unwrap();
    net.run(SETTLED);
    for n in 0..20 {
        let client = &mut net.clients[a];
        let key: Arc<[u8]> = [[0x10, 0].as_slice(), &[7; 500]].concat().into();
        client.end.send(1, (n * 1800, true, key), net.now, &mut client.out).unwrap();
        net.run(Duration::from_millis(20));
    }
    let report = &net.switch.reports("room", net.now)[1];
    assert_eq!((report.sends.len(), report.sends[1].is_muted), (2, true));
    assert_eq!(net.seen(b).0.len(), 0);
}
