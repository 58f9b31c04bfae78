//! Runs the test cases of RFC 8867 with every congestion control algorithm, and prints a table in Markdown.
//!
//! ```sh
//! cargo run --release -p millrace-sfu --example rfc8867            # the table
//! cargo run --release -p millrace-sfu --example rfc8867 5.1 nada   # rate per second of one case, as CSV
//! ```

#[path = "../tests/it/rfc8867/mod.rs"]
mod rfc8867;

use std::time::Instant;

use millrace_sfu::congestion::Algorithm;
use rfc8867::{CASES, LIBWEBRTC, run};

fn main() {
    #[expect(clippy::disallowed_methods, reason = "an instant to count from: none can be made up")]
    let born = Instant::now();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [section, name] = &arguments[..] {
        let Some(case) = CASES.iter().chain(LIBWEBRTC).find(|case| case.section == section) else {
            eprintln!("{section}: expected a case of RFC 8867, 5.1 to 5.8, or W1 or W2");
            std::process::exit(2);
        };
        let algorithm = name.parse().unwrap_or_else(|error| {
            eprintln!("{error}");
            std::process::exit(2);
        });
        let outcome = run(case, algorithm, None, born);
        println!("second,flow,kbit_per_s");
        for second in 0..case.seconds as usize {
            let is_started = |number: &usize| case.flows[*number].start_s as usize <= second;
            for number in (0..case.flows.len()).filter(is_started) {
                println!("{second},{number},{:.0}", outcome.kbit_per_s(number, second, second + 1));
            }
        }
        return;
    }
    println!("| case | controller | use | last 30 s, kbit/s | TCP, kbit/s | Jain | queue p50 / p95, ms | loss, % |");
    println!("|---|---|---|---|---|---|---|---|");
    for case in CASES.iter().chain(LIBWEBRTC) {
        for algorithm in Algorithm::ALL {
            let outcome = run(case, algorithm, None, born);
            let rates: Vec<_> = outcome.last_kbit_per_s().iter().map(|rate| format!("{rate:.0}")).collect();
            let tcp = outcome.last_tcp_kbit_per_s().map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
            println!(
                "| {} {} | {algorithm} | {:.2} | {} | {tcp} | {:.2} | {:.0} / {:.0} | {:.2} |",
                case.section,
                case.name,
                outcome.use_of_capacity(0, case.seconds as usize),
                rates.join(", "),
                outcome.jain(),
                outcome.queuing_ms(50.0),
                outcome.queuing_ms(95.0),
                outcome.loss_percent(),
            );
        }
    }
}
