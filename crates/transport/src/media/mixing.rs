//! The threads that mix: one for each room whose sound is mixed, so that nobody else waits for its encoders.

use std::{
    io,
    rc::Rc,
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::Instant,
};

use millrace_rtc::{
    mixer::{Input, Mixed, Mixer},
    switch::ToMixer,
};
use tokio::{
    sync::mpsc::{self, Sender},
    task::spawn_local,
};

use super::with_unit;
use crate::{
    http::Context,
    rooms::{MixerSeat, RoomName},
};

/// What comes while the thread is busy: a second of a hundred who speak.
const INPUTS_MAX: usize = 5000;
/// What the shard has not taken yet: half a second.
const MIXED_MAX: usize = 25;

/// Begins to mix for a room; it ends when what it gives is dropped.
///
/// Errors: the system has no thread to give.
pub(super) fn start(context: &Rc<Context>, room: &RoomName, seat: MixerSeat) -> io::Result<ToMixer> {
    let (tell, told) = sync_channel(INPUTS_MAX);
    let (give, mut given) = mpsc::channel::<Mixed>(MIXED_MAX);
    let thread = thread::Builder::new().name("mixer".into());
    thread.spawn(move || {
        let _seat = seat;
        mix(&told, &give);
    })?;
    tracing::info!(room = room.as_str(), "mixing audio of a room");
    let (context, room) = (context.clone(), room.clone());
    spawn_local(async move {
        while let Some(mixed) = given.recv().await {
            with_unit(&context, |unit, send| unit.pass_mixed(room.as_str(), &mixed, Instant::now(), send));
        }
    });
    // What does not fit is lost, as on any full link.
    Ok(Box::new(move |input| drop(tell.try_send(input))))
}

/// Until nobody is there any more who tells it something.
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
