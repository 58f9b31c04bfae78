//! Mixer threads: one for each room whose audio is mixed, and another one if its video is composed. So neither audio
//! nor video encoding ever delays a shard, and video never delays audio.

use std::{
    io,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};

use millrace_node::Metrics;
use millrace_room::{Cell, Composite};
use millrace_sfu::{
    compositor::{self, Compositor, Output, SIZE, Statistics},
    mixer::{Input, Mixed, Mixer},
    switch::{CompositorSender, MixerSender, Switch},
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
/// Maximum number of queued inputs of a compositor: one second of video of sixteen participants.
const VIDEO_INPUTS_MAX: usize = 4000;
/// Maximum number of results of a compositor that the shard has not yet taken: half a second.
const COMPOSED_MAX: usize = 15;

/// The threads of a room.
pub(super) struct Mixing {
    pub mixer: MixerSender,
    pub compositor: Option<CompositorSender>,
}

/// Callback that receives the layout of each composite frame.
pub(super) type LayoutListener = fn(&Rc<Conference>, &RoomName, Composite);

/// Results of one turn of a compositor.
struct Composed {
    outputs: Vec<Output>,
    statistics: Statistics,
}

/// Starts the mixer thread of a room, and its compositor thread if `rooms.mixer_video` is set. The threads end when the
/// returned senders are dropped.
///
/// Errors: the system refuses a thread.
pub(super) fn start(
    conference: &Rc<Conference>,
    room: &RoomName,
    slot: MixerSlot,
    listener: LayoutListener,
) -> io::Result<Mixing> {
    let slot = Arc::new(slot);
    let compositor = match conference.rooms.has_composite_video(room) {
        true => Some(start_compositor(conference, room, slot.clone(), listener)?),
        false => None,
    };
    let (sender, inputs) = sync_channel(INPUTS_MAX);
    let (output, mut mixed_frames) = mpsc::channel::<Mixed>(MIXED_MAX);
    let delays = compositor.clone();
    let thread = thread::Builder::new().name("mixer".into());
    thread.spawn(move || {
        let _slot = slot;
        mix(&inputs, &output, delays.as_ref());
    })?;
    tracing::info!(room = room.as_str(), video = compositor.is_some(), "mixing the audio of a room");
    let (conference, room) = (conference.clone(), room.clone());
    spawn_local(async move {
        while let Some(mixed) = mixed_frames.recv().await {
            let now = Instant::now();
            conference.media.with_switch(|switch, send| switch.send_mixed(room.as_str(), &mixed, now, send));
        }
    });
    // Drop the input if the queue is full, as on any full link.
    let compositor =
        compositor.map(|inputs| -> CompositorSender { Box::new(move |input| drop(inputs.try_send(input))) });
    Ok(Mixing { mixer: Box::new(move |input| drop(sender.try_send(input))), compositor })
}

/// Mixes until the sender of the inputs is dropped. Notifies `compositor` of the delay of the audio.
fn mix(inputs: &Receiver<Input>, output: &Sender<Mixed>, compositor: Option<&SyncSender<compositor::Input>>) {
    let mut mixer = Mixer::new(Instant::now());
    let mut delay = None;
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
        let newest = Some(mixer.delay()).filter(|newest| delay != Some(*newest));
        if let (Some(compositor), Some(newest)) = (compositor, newest)
            && compositor.try_send(compositor::Input::AudioDelay(newest)).is_ok()
        {
            delay = Some(newest);
        }
    }
}

fn start_compositor(
    conference: &Rc<Conference>,
    room: &RoomName,
    slot: Arc<MixerSlot>,
    listener: LayoutListener,
) -> io::Result<SyncSender<compositor::Input>> {
    let (sender, inputs) = sync_channel(VIDEO_INPUTS_MAX);
    let (output, mut composed) = mpsc::channel::<Composed>(COMPOSED_MAX);
    let thread = thread::Builder::new().name("compositor".into());
    thread.spawn(move || {
        let _slot = slot;
        compose(&inputs, &output);
    })?;
    let (conference, room) = (conference.clone(), room.clone());
    spawn_local(async move {
        while let Some(Composed { outputs, statistics }) = composed.recv().await {
            let metrics = &conference.shard.socket_metrics;
            Metrics::add(&metrics.composite_frames, statistics.frames);
            Metrics::add(&metrics.composite_frames_skipped, statistics.frames_skipped);
            Metrics::add(&metrics.composite_units_dropped, statistics.units_dropped);
            let now = Instant::now();
            let layout = conference.media.with_switch(|switch, send| {
                let mut layout = None;
                for output in &outputs {
                    match output {
                        Output::Frame(frame) => {
                            switch.send_composite(room.as_str(), frame, now, send);
                            layout = Some(layout_of(frame, switch));
                        }
                        Output::KeyframeWanted { from, track } => {
                            switch.request_composed_keyframe(*from, *track, now, send);
                        }
                    }
                }
                layout
            });
            // Each frame has its layout, so no layout is lost with a frame that is dropped.
            if let Some(layout) = layout.flatten() {
                listener(&conference, &room, layout);
            }
        }
    });
    Ok(sender)
}

/// Returns who is shown in which part of a frame.
fn layout_of(frame: &compositor::Composite, switch: &Switch) -> Composite {
    let (width, height) = SIZE;
    let cells = frame.cells.iter().filter_map(|(id, cell)| {
        let compositor::Cell { x, y, width, height } = *cell;
        Some(Cell { participant: switch.name_of(*id)?.to_owned(), x, y, width, height })
    });
    Composite { width, height, cells: cells.collect() }
}

/// Composes until the senders of the inputs are dropped.
fn compose(inputs: &Receiver<compositor::Input>, output: &Sender<Composed>) {
    let mut compositor = Compositor::new(Instant::now());
    loop {
        let input = match compositor.timeout() {
            Some(due) => inputs.recv_timeout(due.saturating_duration_since(Instant::now())),
            None => inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match input {
            Ok(input) => compositor.handle(input, Instant::now()),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        compositor.handle_timeout(Instant::now());
        let outputs: Vec<Output> = std::iter::from_fn(|| compositor.poll_output()).collect();
        if outputs.is_empty() {
            continue;
        }
        let _ = output.try_send(Composed { outputs, statistics: compositor.take_statistics() });
    }
}
