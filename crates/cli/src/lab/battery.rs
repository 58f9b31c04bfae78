//! `millrace lab battery`: power and battery life of a phone that forwards between data channels.

use std::{fmt::Write as _, process::ExitCode, time::Duration};

use clap::Args as ClapArgs;
use millrace_lab::energy::{
    hours,
    phone_gateway::{Duty, Forwarding, PhoneGateway, RECEIVERS, published},
};
use serde_json::json;

use crate::{argument::ArgumentError, number::number, output, retry::duration};

#[derive(Debug, ClapArgs)]
#[command(
    after_help = "The model is fitted to the power of a phone of 2013 (Karadogan, tables 3.9 and 3.12): a power in mW for each open data channel, and an energy in mJ for each message that is received or sent. The phone without forwarding needs 1195 mW, or 1058 mW in the series of demultiplexing, with its screen dimmed.\n\n\
    Example: ten peers whose messages are joined for 250 ms\n  millrace lab battery --peers 10\n\
    Example: a longer window, and heartbeats\n  millrace lab battery --peers 10 --window 1s --heartbeat 25s\n\
    Example: the tables of the thesis beside the model\n  millrace lab battery --thesis\n\
    Example: the coefficients that the page /battery uses\n  millrace lab battery --model > web/src/pages/battery/model.json"
)]
pub struct Args {
    /// Peers that send to the phone
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = number::<u32, _>(1..=1000))]
    peers: u32,
    /// Messages per second of each peer, 0.001 to 1000
    #[arg(long, value_name = "N", default_value = "4", value_parser = rate)]
    rate: f64,
    /// Join the messages of all peers for this long, 1ms to 1h
    #[arg(long, value_name = "TIME", default_value = "250ms", value_parser = interval, conflicts_with = "demultiplex")]
    window: Duration,
    /// Split each message into ten, for ten receivers, instead of joining messages
    #[arg(long)]
    demultiplex: bool,
    /// Interval of heartbeats on each channel, 1ms to 1h [default: no heartbeats]
    #[arg(long, value_name = "TIME", value_parser = interval)]
    heartbeat: Option<Duration>,
    /// Capacity of the battery in Wh, 0.001 to 1000
    #[arg(long, value_name = "WH", default_value = "8", value_parser = rate)]
    capacity: f64,
    /// Show the tables of the thesis beside the model instead
    #[arg(long, conflicts_with_all = ["peers", "rate", "window", "demultiplex", "heartbeat"])]
    thesis: bool,
    /// Print JSON: mW, mJ and hours
    #[arg(long)]
    json: bool,
    /// Print the coefficients of the model and the tables of the thesis as JSON, for the page /battery
    #[arg(long, conflicts_with_all = ["peers", "rate", "window", "demultiplex", "heartbeat", "thesis", "json", "capacity"])]
    model: bool,
}

fn rate(text: &str) -> Result<f64, ArgumentError> {
    match text.parse() {
        Ok(number) if (0.001..=1000.0).contains(&number) => Ok(number),
        _ => Err(ArgumentError::expected("a number from 0.001 to 1000")),
    }
}

fn interval(text: &str) -> Result<Duration, ArgumentError> {
    let interval = duration(text)?;
    match (Duration::from_millis(1)..=Duration::from_secs(3600)).contains(&interval) {
        true => Ok(interval),
        false => Err(ArgumentError::expected("a duration from 1ms to 1h, for example 250ms")),
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let phone = PhoneGateway::thesis();
    let text = match (args.model, args.thesis, args.json) {
        (true, ..) => model(&phone),
        (false, true, json) => tables(&phone, args.capacity, json),
        (false, false, json) => one(&phone, args, json),
    };
    output::line(text)?;
    Ok(ExitCode::SUCCESS)
}

fn one(phone: &PhoneGateway, args: &Args, json: bool) -> String {
    let forwarding = if args.demultiplex { Forwarding::Demultiplexing } else { Forwarding::Multiplexing };
    let duty =
        Duty { forwarding, peers: args.peers.into(), rate: args.rate, window: args.window, heartbeat: args.heartbeat };
    let (channels, messages_per_s) = (duty.channels(), duty.messages_per_s());
    let (increment_mw, power_mw) = (phone.increment_mw(&duty), phone.power_mw(&duty));
    let hours = hours(args.capacity, power_mw / 1000.0);
    if json {
        return json!({
            "channels": channels, "messages_per_s": messages_per_s, "idle_mw": forwarding.idle_mw(),
            "increment_mw": increment_mw, "power_mw": power_mw, "hours": hours,
            "per_channel_mw": phone.per_channel_mw, "per_message_mj": phone.per_message_mj,
        })
        .to_string();
    }
    let active_mw = increment_mw - channels * phone.per_channel_mw - messages_per_s * phone.per_message_mj;
    format!(
        "idle phone    {:>8.1} mW\nforwarding    {active_mw:>8.1} mW\nchannels      {:>8.1} mW = {channels} x {:.2} mW\n\
         messages      {:>8.1} mW = {messages_per_s:.1}/s x {:.3} mJ\npower         {power_mw:>8.1} mW\n\
         battery life  {hours:>8.2} h of {} Wh",
        forwarding.idle_mw(),
        channels * phone.per_channel_mw,
        phone.per_channel_mw,
        messages_per_s * phone.per_message_mj,
        phone.per_message_mj,
        args.capacity,
    )
}

/// Returns the coefficients of the model, and the rows of tables 3.9 and 3.12.
fn model(phone: &PhoneGateway) -> String {
    let rows = published().into_iter().map(
        |row| json!({"series": name(row.forwarding), "peers": row.peers, "mean_mw": row.mean_mw, "sd_mw": row.sd_mw}),
    );
    let by_series = |multiplexing: f64, demultiplexing: f64| json!({"multiplexing": multiplexing, "demultiplexing": demultiplexing});
    let model = json!({
        "idle_mw": by_series(Forwarding::Multiplexing.idle_mw(), Forwarding::Demultiplexing.idle_mw()),
        "active_mw": by_series(phone.active_multiplexing_mw, phone.active_demultiplexing_mw),
        "per_channel_mw": phone.per_channel_mw,
        "per_message_mj": phone.per_message_mj,
        "receivers": RECEIVERS,
        "published": rows.collect::<Vec<_>>(),
    });
    format!("{model:#}")
}

fn name(forwarding: Forwarding) -> &'static str {
    match forwarding {
        Forwarding::Multiplexing => "multiplexing",
        Forwarding::Demultiplexing => "demultiplexing",
    }
}

/// Returns tables 3.9 and 3.12 beside the model.
fn tables(phone: &PhoneGateway, capacity_wh: f64, json: bool) -> String {
    let rows = published().into_iter().map(|row| (row, phone.power_mw(&Duty::thesis(row.forwarding, row.peers))));
    let lasts = |power_mw: f64| hours(capacity_wh, power_mw / 1000.0);
    if json {
        let rows = rows.map(|(row, model_mw)| {
            json!({
                "series": name(row.forwarding), "peers": row.peers, "mean_mw": row.mean_mw, "sd_mw": row.sd_mw,
                "model_mw": model_mw, "hours": lasts(row.mean_mw), "model_hours": lasts(model_mw),
            })
        });
        return json!(rows.collect::<Vec<_>>()).to_string();
    }
    let mut text = format!(
        "{:<15}{:>6}{:>11}{:>9}{:>11}{:>9}{:>9}",
        "", "peers", "thesis, mW", "sd", "model, mW", "hours", "model"
    );
    for (row, model_mw) in rows {
        let (hours, model_hours) = (lasts(row.mean_mw), lasts(model_mw));
        let _ = write!(
            text,
            "\n{:<15}{:>6}{:>11.1}{:>9.1}{model_mw:>11.1}{hours:>9.2}{model_hours:>9.2}",
            name(row.forwarding),
            row.peers,
            row.mean_mw,
            row.sd_mw
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_show_the_published_battery_lives() {
        let text = tables(&PhoneGateway::thesis(), 8.0, false);
        assert_eq!(text.lines().count(), 19, "{text}");
        for (series, peers, hours) in [
            ("multiplexing", "10", "6.06"),
            ("multiplexing", "49", "4.72"),
            ("demultiplexing", "10", "5.14"),
            ("demultiplexing", "40", "3.44"),
        ] {
            let is = |line: &&str| line.starts_with(series) && line.split_whitespace().nth(1) == Some(peers);
            let line = text.lines().find(is).expect("a row");
            assert_eq!(line.split_whitespace().nth(5), Some(hours), "{line}");
        }
    }

    #[test]
    fn page_has_the_coefficients_of_the_model() {
        let page = include_str!("../../../../web/src/pages/battery/model.json");
        let is = format!("{}\n", model(&PhoneGateway::thesis()));
        assert_eq!(page, is, "run `millrace lab battery --model > web/src/pages/battery/model.json`");
    }

    #[test]
    fn numbers_and_intervals_have_limits() {
        for wrong in ["0", "-1", "1001", "NaN", "inf", "many"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        for wrong in ["0s", "2h", "soon"] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
        assert_eq!((rate("0.5"), interval("250ms")), (Ok(0.5), Ok(Duration::from_millis(250))));
    }
}
