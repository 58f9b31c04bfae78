//! Scaling from an eighth of a core: a larger part of a CPU for one shard, and more shards. Measures whether the
//! scaling is linear, and where it bends.

use millrace_lab::stats::usl::Usl;

use crate::{
    args::Args,
    capped::{self, CappedRun},
    figures::median,
    quota,
    shards::works,
};

/// Shards, and the part of a CPU for each: one shard with larger and larger parts, two shards with the same total as
/// one, and more and more shards with [`SMALL`] (several of them share a CPU then).
const STEPS: [(usize, f64); 9] =
    [(1, SMALL), (1, 0.25), (1, 0.5), (1, 0.75), (2, 0.25), (2, SMALL), (3, SMALL), (4, SMALL), (6, SMALL)];
/// A part that is small enough for six shards to leave the generator sufficient CPU.
const SMALL: f64 = 0.125;
const READERS_PER_SHARD: usize = 1000;

/// Number of shards, cores of each shard, and the results of all passes.
struct Step {
    shards: usize,
    cores: f64,
    seen: Vec<CappedRun>,
}

pub fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(why) = quota::unavailable() {
        println!("\nscaling: SKIPPED, nothing was measured: {why}");
        return Ok(());
    }
    for index in 0..works(0).len() {
        println!(
            "\nscaling: {}, {READERS_PER_SHARD} WebSockets per shard, {} passes, in turns",
            works(0)[index].name,
            args.passes
        );
        let mut steps = STEPS.map(|(shards, cores)| Step { shards, cores, seen: Vec::new() });
        for _ in 0..args.passes {
            for step in &mut steps {
                let work = works(step.shards * READERS_PER_SHARD)[index];
                step.seen.push(capped::run(work, step.shards, step.cores, args.seconds)?);
            }
        }
        steps.iter().for_each(Step::print);
        by_quota(&steps);
        by_shards(&steps);
    }
    Ok(())
}

impl Step {
    /// Returns the deliveries per second of the passes in which the shards were the limit.
    fn proven(&self) -> impl Iterator<Item = f64> {
        self.seen.iter().filter(|seen| seen.is_by_shards()).map(|seen| seen.per_s)
    }

    fn total(&self) -> f64 {
        self.shards as f64 * self.cores
    }

    fn print(&self) {
        let per_s = median(self.seen.iter().map(|seen| seen.per_s).collect());
        let unproven = self.seen.len() - self.proven().count();
        println!(
            "  {} x {:.3} = {:.3} cores: {:5.0} k/s, {:5.0} per core; {}{}",
            self.shards,
            self.cores,
            self.total(),
            per_s / 1000.0,
            per_s / 1000.0 / self.total(),
            CappedRun::middle(&self.seen),
            if unproven > 0 {
                format!("; NOT LIMITED BY THE SHARDS in {unproven} passes, not fitted")
            } else {
                String::new()
            }
        );
    }
}

/// Fits a line through zero for one shard, and prints the deviation of the steps from it.
fn by_quota(steps: &[Step]) {
    let alone: Vec<(f64, f64)> = steps
        .iter()
        .filter(|step| step.shards == 1)
        .flat_map(|step| step.proven().map(|per_s| (step.cores, per_s)))
        .collect();
    // Least squares of relative errors, as in `Usl::fit`.
    let inverse: f64 = alone.iter().map(|(cores, per_s)| cores / per_s).sum();
    let squares: f64 = alone.iter().map(|(cores, per_s)| (cores / per_s).powi(2)).sum();
    let slope = inverse / squares;
    println!(
        "  one shard by quota: {:.0} k/s per core; off that line: {}",
        slope / 1000.0,
        off(&alone, |cores| slope * cores)
    );
}

/// Fits the Universal Scalability Law to shards with the same quota.
fn by_shards(steps: &[Step]) {
    let many: Vec<(f64, f64)> = steps
        .iter()
        .filter(|step| step.cores == SMALL)
        .flat_map(|step| step.proven().map(|per_s| (step.shards as f64, per_s)))
        .collect();
    let Some(usl) = Usl::fit(&many) else {
        println!("  too few sizes for a fit");
        return;
    };
    let peak = usl.peak().map_or("none".to_owned(), |n| format!("{n:.0} shards"));
    println!(
        "  shards of {SMALL} of a CPU, by the Universal Scalability Law: lambda {:.0} k/s, sigma {:.4}, kappa {:.5}, peak {peak}; off: {}",
        usl.lambda / 1000.0,
        usl.sigma,
        usl.kappa,
        off(&many, |shards| usl.at(shards))
    );
    println!(
        "  The fit sees what shards of one process cost each other by locks, mailboxes and unequal connections. It does not see more than two \
         CPUs: what caches and memory cost beyond that, it cannot say, nor is a peak beyond the last size measured."
    );
}

/// Formats, per size, the median deviation of its points from the fit.
fn off(points: &[(f64, f64)], fit: impl Fn(f64) -> f64) -> String {
    let mut sizes: Vec<f64> = points.iter().map(|point| point.0).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let show = |size: &f64| {
        let here = points.iter().filter(|point| point.0 == *size).map(|point| (point.1 / fit(*size) - 1.0) * 100.0);
        format!("{size}: {:+.1} %", median(here.collect()))
    };
    sizes.iter().map(show).collect::<Vec<_>>().join(", ")
}
