//! Millrace as an MQTT broker.

use super::Millrace;
use crate::{
    load::Dialect,
    targets::{ClientOptions, Options, Server, Target, Transport, mqtt},
};

/// Millrace with `mqtt.listen`. Its clients use the same packets over WebSocket as those of Mosquitto.
pub struct MillraceMqtt;

impl Target for MillraceMqtt {
    fn name(&self) -> &'static str {
        "millrace-mqtt"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        Millrace.version(options)
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        let mut arguments = options.arguments.clone();
        arguments.extend(["--set".into(), "mqtt.listen=127.0.0.1:0".into()]);
        Millrace.start(&Options { arguments, ..options.clone() })
    }

    fn metrics(&self) -> Option<&'static str> {
        Millrace.metrics()
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        mqtt::client(ask)
    }
}
