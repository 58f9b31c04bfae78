//! The generator processes of one run, and their common clock.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};

use super::{
    Network,
    merge::{self, Marks, Part, Reading},
    message::{Assignment, Message},
};
use crate::{
    load::{Milestone, Outcome, Plan, Sample},
    recording::{Second, Spread},
    targets::own_program,
};

/// Generator processes, before they have an assignment. Dropping this value ends them.
pub struct Generators<'a> {
    network: &'a Network,
    children: Vec<Generator>,
    inbox: Receiver<(usize, Option<Message>)>,
}

struct Generator {
    child: Child,
    input: ChildStdin,
}

impl Drop for Generator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl<'a> Generators<'a> {
    /// Starts this number of generators.
    ///
    /// Errors: the `millrace` program is missing, or does not start.
    pub fn start(network: &'a Network, count: usize) -> anyhow::Result<Self> {
        let program = own_program()?;
        let (sender, inbox) = channel();
        let mut children = Vec::new();
        for index in 0..count {
            let mut command = Command::new(&program);
            command.args(["lab", "worker"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            let mut child = network.spawn_generator(index, command).context("a generator does not start")?;
            let input = child.stdin.take().context("it was piped")?;
            let output = BufReader::new(child.stdout.take().context("it was piped")?);
            children.push(Generator { child, input });
            let sender = sender.clone();
            thread::Builder::new().name("lab-generator".into()).spawn(move || forward(index, output, &sender))?;
        }
        Ok(Self { network, children, inbox })
    }

    pub fn pids(&self) -> Vec<u32> {
        self.children.iter().map(|generator| generator.child.id()).collect()
    }

    /// Runs the assignments, one per generator, to their end. `whole`: the plan that they divide. Calls `observe` once
    /// a second and at the start and the end of each phase, and `see` with each second when it is complete.
    ///
    /// Errors: a generator fails or is late; not all connections could be opened; an error of `observe`.
    pub fn run(
        mut self,
        whole: &Plan,
        assignments: &[Assignment],
        observe: &mut dyn FnMut() -> anyhow::Result<Sample>,
        see: &mut dyn FnMut(&Second),
    ) -> anyhow::Result<(Outcome, Spread)> {
        let mut course = Course {
            started: Instant::now(),
            inbox: &self.inbox,
            observe,
            see,
            reached: BTreeMap::new(),
            offsets_s: Vec::new(),
            parts: Vec::new(),
            seconds: BTreeMap::new(),
            last: Reading::default(),
            next_second: 1,
        };
        let begun = course.read()?;
        course.last = begun;
        for (generator, assignment) in self.children.iter_mut().zip(assignments) {
            course.offsets_s.push(course.started.elapsed().as_secs_f64());
            writeln!(generator.input, "{}", serde_json::to_string(assignment)?).context("a generator has ended")?;
        }
        let all = self.children.len();
        let links = whole.clients + whole.streams() + 2;
        let ramp = Duration::from_secs_f64(links as f64 / whole.ramp_per_s) + 2 * whole.patience;
        course.until("all connections are open", ramp, |course| course.count(Milestone::Connected) == all)?;
        let connected = course.read()?;
        go_on(&mut self.children)?;
        let idle = course.read()?;
        let within = |lasts: Duration| lasts + 2 * whole.patience;
        course.until("the test begins", within(whole.idle), |course| course.count(Milestone::Test) == all)?;
        let (test, before) = (course.read()?, self.network.carried_bytes());
        course.until("the test ends", within(whole.test), |course| course.count(Milestone::Drained) == all)?;
        let (drained, after) = (course.read()?, self.network.carried_bytes());
        go_on(&mut self.children)?;
        course.until("all results are there", within(whole.after), |course| course.parts.len() == all)?;
        let marks = Marks { begun, connected, idle, test, drained, end: course.read()? };
        let bytes = before.zip(after);
        let spread = Spread {
            nodes: all as u64,
            namespaces: self.network.namespaces() as u64,
            up_bytes: bytes.map(|(before, after)| after.0 - before.0),
            down_bytes: bytes.map(|(before, after)| after.1 - before.1),
        };
        let (started, seconds) = (course.started, std::mem::take(&mut course.seconds).into_values().collect());
        let outcome = merge::outcome(whole, started, std::mem::take(&mut course.parts), seconds, &marks);
        Ok((outcome, spread))
    }
}

/// Lets all generators go on after a milestone.
fn go_on(generators: &mut [Generator]) -> anyhow::Result<()> {
    generators.iter_mut().try_for_each(|generator| writeln!(generator.input)).context("a generator has ended")
}

/// Forwards the messages of a generator, and `None` at its end.
fn forward(index: usize, output: impl BufRead, sender: &Sender<(usize, Option<Message>)>) {
    for line in output.lines().map_while(Result::ok) {
        let message = serde_json::from_str(&line)
            .unwrap_or_else(|error| Message::Failed(format!("an unexpected line: {error}: {line:.200}")));
        let _ = sender.send((index, Some(message)));
    }
    let _ = sender.send((index, None));
}

/// State of a run.
struct Course<'a, 'h> {
    started: Instant,
    inbox: &'a Receiver<(usize, Option<Message>)>,
    observe: &'h mut dyn FnMut() -> anyhow::Result<Sample>,
    see: &'h mut dyn FnMut(&Second),
    reached: BTreeMap<Milestone, usize>,
    /// Start of each generator's clock on the clock of this run.
    offsets_s: Vec<f64>,
    parts: Vec<Part>,
    seconds: BTreeMap<u64, Second>,
    /// Reading at the last full second.
    last: Reading,
    next_second: u64,
}

impl Course<'_, '_> {
    fn now_s(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn read(&mut self) -> anyhow::Result<Reading> {
        let sample = (self.observe)()?;
        Ok(Reading { at_s: self.now_s(), sample })
    }

    fn count(&self, milestone: Milestone) -> usize {
        self.reached.get(&milestone).copied().unwrap_or_default()
    }

    fn until(&mut self, what: &str, within: Duration, done: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let end_s = self.now_s() + within.as_secs_f64();
        while !done(self) {
            let now_s = self.now_s();
            if now_s >= end_s {
                bail!("{what}: not within {within:?}");
            }
            if now_s >= self.next_second as f64 {
                self.turn_second()?;
                continue;
            }
            let wait = Duration::from_secs_f64(end_s.min(self.next_second as f64) - now_s);
            match self.inbox.recv_timeout(wait) {
                Ok((index, Some(message))) => self.take(index, message)?,
                Ok((index, None)) if !self.parts.iter().any(|part| part.index == index) => {
                    bail!("generator {index} has ended without a result")
                }
                Ok((_, None)) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => bail!("{what}: all generators have ended"),
            }
        }
        Ok(())
    }

    fn take(&mut self, index: usize, message: Message) -> anyhow::Result<()> {
        match message {
            Message::Reached(milestone) => *self.reached.entry(milestone).or_default() += 1,
            Message::Second(part) => {
                let second = self.second((self.offsets_s[index] + part.at_s) as u64);
                second.counts += part.counts;
                second.latency_us.add(&part.latency_us);
                second.generator_cpu_s += part.generator_cpu_s;
            }
            Message::Done { phases, validity } => self.parts.push(Part { index, phases, validity }),
            Message::Failed(why) => bail!("generator {index}: {why}"),
        }
        Ok(())
    }

    fn second(&mut self, index: u64) -> &mut Second {
        self.seconds.entry(index).or_insert_with(|| Second { at_s: index as f64, ..Second::default() })
    }

    fn turn_second(&mut self) -> anyhow::Result<()> {
        let reading = self.read()?;
        let last = std::mem::replace(&mut self.last, reading);
        let second = self.second(self.next_second - 1);
        second.server_cpu_s = reading.sample.server.since(&last.sample.server).cpu_s();
        second.server_pss_bytes = reading.sample.server.pss_bytes;
        second.steal_s = reading.sample.steal_s - last.sample.steal_s;
        // A generator reports a second one second later, on a clock that differs by less than a second.
        if let Some(complete) = self.next_second.checked_sub(4).and_then(|index| self.seconds.get(&index)) {
            (self.see)(complete);
        }
        self.next_second = reading.at_s as u64 + 1;
        Ok(())
    }
}
