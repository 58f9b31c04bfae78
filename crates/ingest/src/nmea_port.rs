use std::sync::Arc;

use millrace_engine::unix_ms;
use millrace_protocol::Error;
use millrace_transport::{Context, DatagramFormat, access::Caller, admission::Publisher};

use crate::{DeviceId, Ingest, RequestResult, format::nmea};

/// Format of the datagrams of the port `ingest.nmea_udp`. A datagram has no token, so the permissions are those of
/// clients without one. The server sends no reply.
pub struct Nmea(pub Arc<Ingest>);

impl DatagramFormat for Nmea {
    async fn publish(
        &self,
        context: &Context,
        publisher: &impl Publisher,
        caller: &Caller,
        datagram: &[u8],
    ) -> Option<()> {
        let received = self.receive(context, publisher, caller, datagram).await;
        let result = received.as_ref().map_or_else(|error| RequestResult::of(error.code), |_| RequestResult::Accepted);
        self.0.metrics().count_request(result);
        received.ok()
    }
}

impl Nmea {
    async fn receive(
        &self,
        context: &Context,
        publisher: &impl Publisher,
        caller: &Caller,
        datagram: &[u8],
    ) -> Result<(), Error> {
        let reports = nmea::decode(datagram, unix_ms())?;
        let id = reports.first().and_then(|report| report.device.as_deref()).unwrap_or_default();
        let device = DeviceId::parse(id).map_err(crate::DecodeError::from)?;
        let target = caller.may_publish(device.telemetry())?;
        self.0.deliver(context, publisher, &device, target, reports).await.map(drop)
    }
}
