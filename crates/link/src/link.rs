use crate::{Cause, Config, ConfigError, Direction, Packet, Pipe, Shared, Time, Trace, shared::Entry};

/// Traces of a link, where its configuration names one.
#[derive(Clone, Debug, Default)]
pub struct Traces {
    pub up: Option<Trace>,
    pub down: Option<Trace>,
}

/// An emulated link between a client and a network.
///
/// Hand each packet to [`Link::handle_input`] when it arrives. Call [`Link::poll_output`] until it returns `None`, then
/// again at [`Link::poll_timeout`] or after the next packet. The times of one link must not go backwards. Calls that
/// come late change when packets leave, but not which, nor the time that is reported for them.
pub struct Link<P> {
    config: Config,
    shared: Shared,
    up: Pipe<P>,
    down: Pipe<P>,
}

impl<P: Packet> Link<P> {
    /// Errors: see [`ConfigError`].
    pub fn new(config: Config, traces: &Traces, seed: u64) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            shared: Shared::new(),
            up: Pipe::new("up", &config, &config.up, traces.up.as_ref(), seed)?,
            down: Pipe::new("down", &config, &config.down, traces.down.as_ref(), seed)?,
            config,
        })
    }

    /// Changes the settings. Packets on the link keep their place in the queue and their delay.
    ///
    /// Errors: see [`ConfigError`]; the old settings stay.
    pub fn configure(&mut self, config: Config, traces: &Traces, now: Time) -> Result<(), ConfigError> {
        config.check()?;
        // Both are checked before one is changed.
        config.up.service("up", traces.up.as_ref())?;
        config.down.service("down", traces.down.as_ref())?;
        self.up.configure(&config, &config.up, traces.up.as_ref(), now)?;
        self.down.configure(&config, &config.down, traces.down.as_ref(), now)?;
        self.config = config;
        Ok(())
    }

    /// Accepts a packet at its arrival.
    pub fn handle_input(&mut self, direction: Direction, packet: P, now: Time) {
        let entry = self.shared.enter(&self.config, &packet, direction, now);
        let bytes = packet.bytes();
        match entry {
            Entry::At(enter) => {
                self.pipe_mut(direction).count(bytes, None);
                self.pipe_mut(direction).handle_input(packet, enter, now);
            }
            Entry::Dropped(cause) => self.pipe_mut(direction).count(bytes, Some(cause)),
            Entry::Reset => {
                self.pipe_mut(direction).count(bytes, Some(Cause::Nat));
                if let Some(reset) = packet.reset() {
                    let back = self.pipe_mut(direction.opposite());
                    back.count(reset.bytes(), None);
                    back.handle_input(reset, now, now);
                }
            }
        }
    }

    /// Returns the next packet that leaves until `now`, with the exact time at which it leaves. Packets of one
    /// direction come in the order of these times.
    pub fn poll_output(&mut self, now: Time) -> Option<(Direction, Time, P)> {
        Direction::BOTH.into_iter().find_map(|direction| {
            self.pipe_mut(direction).poll_output(now).map(|(time, packet)| (direction, time, packet))
        })
    }

    /// Returns the time at which to call [`Link::poll_output`] again. It may be earlier than the next packet, never
    /// later. `None`: the link is empty.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.up.poll_timeout().into_iter().chain(self.down.poll_timeout()).min()
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn pipe(&self, direction: Direction) -> &Pipe<P> {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }

    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    fn pipe_mut(&mut self, direction: Direction) -> &mut Pipe<P> {
        match direction {
            Direction::Up => &mut self.up,
            Direction::Down => &mut self.down,
        }
    }
}
