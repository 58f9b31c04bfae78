//! Mixer threads: one for each room whose audio is mixed, so that audio encoding never delays a shard.

use std::{
    io,
    rc::Rc,
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Instant,
};

use millrace_sfu::{
    mixer::{Input, Mixed, Mixer},
    switch::MixerSender,
};
use tokio::{
    sync::mpsc::{self, Sender},
    task::spawn_local,
};

use super::with_unit;
use crate::{
    Conference,
    rooms::{MixerSeat, RoomName},
};

/// Maximum number of queued inputs of a mixer: one second of audio of a hundred speakers.
const INPUTS_MAX: usize = 5000;
/// Maximum number of mixed frames that the shard has not yet taken: half a second.
const MIXED_MAX: usize = 25;

/// Starts the mixer thread of a room. The thread ends when the returned sender is dropped.
///
/// Errors: the system refuses a thread.
pub(super) fn start(conference: &Rc<Conference>, room: &RoomName, seat: MixerSeat) -> io::Result<MixerSender> {
    let (tell, told) = sync_channel(INPUTS_MAX);
    let (give, mut given) = mpsc::channel::<Mixed>(MIXED_MAX);
    let thread = thread::Builder::new().name("mixer".into());
    thread.spawn(move || {
        let _seat = seat;
        mix(&told, &give);
    })?;
    tracing::info!(room = room.as_str(), "mixing audio of a room");
    let (conference, room) = (conference.clone(), room.clone());
    spawn_local(async move {
        while let Some(mixed) = given.recv().await {
            with_unit(&conference, |unit, send| unit.send_mixed(room.as_str(), &mixed, Instant::now(), send));
        }
    });
    // Drop the input if the queue is full, as on any full link.
    Ok(Box::new(move |input| drop(tell.try_send(input))))
}

/// Mixes until the sender of the inputs is dropped.
fn mix(told: &Receiver<Input>, give: &Sender<Mixed>) {
    let mut mixer = Mixer::new(Instant::now());
    loop {
        let input = match mixer.timeout() {
            Some(due) => told.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => told.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match input {
            Ok(input) => mixer.handle(input, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if let Some(mixed) = mixer.handle_timeout(Instant::now()) {
            let _ = give.try_send(mixed);
        }
    }
}
