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

use crate::{
    Conference,
    rooms::{MixerSlot, RoomName},
};

/// Maximum number of queued inputs of a mixer: one second of audio of a hundred speakers.
const INPUTS_MAX: usize = 5000;
/// Maximum number of mixed frames that the shard has not yet taken: half a second.
const MIXED_MAX: usize = 25;

/// Starts the mixer thread of a room. The thread ends when the returned sender is dropped.
///
/// Errors: the system refuses a thread.
pub(super) fn start(conference: &Rc<Conference>, room: &RoomName, slot: MixerSlot) -> io::Result<MixerSender> {
    let (sender, inputs) = sync_channel(INPUTS_MAX);
    let (output, mut mixed_frames) = mpsc::channel::<Mixed>(MIXED_MAX);
    let thread = thread::Builder::new().name("mixer".into());
    thread.spawn(move || {
        let _slot = slot;
        mix(&inputs, &output);
    })?;
    tracing::info!(room = room.as_str(), "mixing audio of a room");
    let (conference, room) = (conference.clone(), room.clone());
    spawn_local(async move {
        while let Some(mixed) = mixed_frames.recv().await {
            let now = Instant::now();
            conference.media.with_switch(|switch, send| switch.send_mixed(room.as_str(), &mixed, now, send));
        }
    });
    // Drop the input if the queue is full, as on any full link.
    Ok(Box::new(move |input| drop(sender.try_send(input))))
}

/// Mixes until the sender of the inputs is dropped.
fn mix(inputs: &Receiver<Input>, output: &Sender<Mixed>) {
    let mut mixer = Mixer::new(Instant::now());
    loop {
        let input = match mixer.timeout() {
            Some(due) => inputs.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match input {
            Ok(input) => mixer.handle(input, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if let Some(mixed) = mixer.handle_timeout(Instant::now()) {
            let _ = output.try_send(mixed);
        }
    }
}
