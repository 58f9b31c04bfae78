//! Samples the resource use of targets and machine once per interval, in its own thread.

use std::{
    io,
    sync::{Arc, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use super::{
    machine::{MachineSample, Others},
    proc,
    process::Tree,
    series::{Sample, Series},
};

/// Root process of a sampled process tree. A target may have several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    pub name: String,
    pub pid: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub interval: Duration,
    /// Interval between readings of the proportional set size (PSS). The last sample always has a PSS reading.
    ///
    /// Cost: a PSS reading walks all pages of a process, about 10 ms per GiB. The process cannot map pages during
    /// that time.
    pub pss_interval: Duration,
    /// Maximum number of samples. When it is reached, every second sample is dropped and the interval doubles.
    /// Counters lose nothing.
    pub samples_max: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { interval: Duration::from_secs(1), pss_interval: Duration::from_secs(5), samples_max: 4096 }
    }
}

/// Sampling thread. It runs until [`Sampler::finish`] is called or this value is dropped.
pub struct Sampler {
    /// Requests for an immediate sample, each with the channel for the result. The thread ends when this sender is
    /// dropped.
    asks: Option<mpsc::Sender<mpsc::SyncSender<Sample>>>,
    thread: Option<JoinHandle<()>>,
    series: Arc<Mutex<Series>>,
}

impl Sampler {
    /// Starts the thread. Takes the first sample before it returns.
    ///
    /// `now` gives the time of every sample. It must be the same clock that the rest of the recording uses.
    /// Cost: about 20 us per process of the machine and 50 us per process of the trees, for each sample.
    /// Errors: `/proc` cannot be read, the thread cannot be started, or `samples_max` is below 2.
    pub fn start(
        roots: &[Root],
        settings: Settings,
        now: impl Fn() -> Duration + Send + 'static,
    ) -> io::Result<Sampler> {
        Self::start_beside(roots, &[], settings, now)
    }

    /// Starts the thread like [`Sampler::start`]. `ours`: processes that are not sampled, and do not count as other
    /// processes of the machine either.
    pub fn start_beside(
        roots: &[Root],
        ours: &[u32],
        settings: Settings,
        now: impl Fn() -> Duration + Send + 'static,
    ) -> io::Result<Sampler> {
        if settings.samples_max < 2 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a series needs at least two samples"));
        }
        let names = roots.iter().map(|root| root.name.clone()).collect();
        let series = Arc::new(Mutex::new(Series { trees: names, samples: Vec::new() }));
        let mut reader = Reader {
            trees: roots.iter().map(|root| Tree::new(root.pid)).collect(),
            ours: ours.to_vec(),
            others: Others::default(),
            pss_due: now(),
            pss_interval: settings.pss_interval,
            now,
        };
        lock(&series).samples.push(reader.read(true)?);
        let (asks, asked) = mpsc::channel();
        let shared = Arc::clone(&series);
        let thread = thread::Builder::new()
            .name("sampler".into())
            .spawn(move || sample(&mut reader, &shared, &asked, settings))?;
        Ok(Sampler { asks: Some(asks), thread: Some(thread), series })
    }

    /// Returns the newest sample, for a live view.
    pub fn latest(&self) -> Option<Sample> {
        lock(&self.series).samples.last().cloned()
    }

    /// Takes an additional sample now. Returns `None` if the sampling thread has ended, for example because `/proc`
    /// cannot be read.
    pub fn look(&self) -> Option<Sample> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.asks.as_ref()?.send(answer).ok()?;
        answered.recv().ok()
    }

    /// Takes a last sample, stops the thread and returns the series.
    pub fn finish(mut self) -> Series {
        self.stop();
        std::mem::take(&mut *lock(&self.series))
    }

    fn stop(&mut self) {
        self.asks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Locks the series. A poisoned lock is still usable, because every sample in it is complete.
fn lock(series: &Mutex<Series>) -> std::sync::MutexGuard<'_, Series> {
    series.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn sample<N: Fn() -> Duration>(
    reader: &mut Reader<N>,
    series: &Mutex<Series>,
    asked: &mpsc::Receiver<mpsc::SyncSender<Sample>>,
    settings: Settings,
) {
    let (mut interval, mut due) = (settings.interval, Instant::now() + settings.interval);
    loop {
        let ask = asked.recv_timeout(due.saturating_duration_since(Instant::now()));
        let is_last = matches!(ask, Err(mpsc::RecvTimeoutError::Disconnected));
        let Ok(sample) = reader.read(is_last) else { return };
        let mut series = lock(series);
        if series.samples.len() >= settings.samples_max {
            series.thin();
            interval *= 2;
        }
        series.samples.push(sample.clone());
        drop(series);
        match ask {
            // The caller may have stopped waiting for the sample.
            Ok(answer) => drop(answer.send(sample)),
            // Missed sampling times are skipped.
            Err(mpsc::RecvTimeoutError::Timeout) => due = (due + interval).max(Instant::now()),
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

struct Reader<N> {
    trees: Vec<Tree>,
    ours: Vec<u32>,
    others: Others,
    pss_due: Duration,
    pss_interval: Duration,
    now: N,
}

impl<N: Fn() -> Duration> Reader<N> {
    fn read(&mut self, pss: bool) -> io::Result<Sample> {
        let all = proc::processes()?;
        let at = (self.now)();
        let with_pss = pss || at >= self.pss_due;
        if with_pss {
            self.pss_due = at + self.pss_interval;
        }
        let trees = self.trees.iter_mut().map(|tree| tree.sample(&all, with_pss)).collect();
        let own = std::process::id();
        let is_ours =
            |pid: u32| pid == own || self.ours.contains(&pid) || self.trees.iter().any(|tree| tree.contains(pid));
        let (others_s, busiest_other) = self.others.look(&all, at.as_secs_f64(), is_ours);
        Ok(Sample {
            at_s: at.as_secs_f64(),
            trees,
            machine: MachineSample { others_s, busiest_other, ..MachineSample::read() },
        })
    }
}
