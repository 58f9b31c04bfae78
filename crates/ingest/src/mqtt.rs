//! OwnTracks over MQTT: publications of `owntracks/{user}/{device}`, and of topics below it, are also records of the
//! device `{user}-{device}`. The publication itself stays on its channel, where the other apps of the user read it.

use millrace_protocol::{ChannelName, Error};
use millrace_transport::{Context, access::Caller, admission::Publisher};

use crate::{DecodeError, DeviceId, Ingest, format::owntracks};

/// Publishes the reports of a publication.
///
/// A payload that is none of OwnTracks, and a client without the permission to publish the records of the device, are
/// no errors: the client can be one that uses the topic for something else, and a repetition would not help.
/// Errors: those of [`Ingest::deliver`] after which a repetition can succeed.
pub async fn take(
    ingest: &Ingest,
    context: &Context,
    publisher: &dyn Publisher,
    caller: &Caller,
    channel: &ChannelName,
    payload: &[u8],
) -> Result<(), Error> {
    match deliver(ingest, context, publisher, caller, channel, payload).await {
        Err(error) if error.code.may_retry() => Err(error),
        Err(error) => {
            // Without the text of the error, which can quote the payload.
            tracing::debug!(%channel, code = error.code.name(), "a message of OwnTracks is no record");
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

async fn deliver(
    ingest: &Ingest,
    context: &Context,
    publisher: &dyn Publisher,
    caller: &Caller,
    channel: &ChannelName,
    payload: &[u8],
) -> Result<(), Error> {
    // The topic names the device, not the payload: the permission to publish was checked for the topic.
    let Some(id) = owntracks::device_of_topic(channel.as_str()) else { return Ok(()) };
    let points_max = context.admission.config().batch_lines_max;
    let reports = owntracks::decode(payload, points_max)?;
    if reports.is_empty() {
        return Ok(());
    }
    let device = DeviceId::parse(&id).map_err(DecodeError::from)?;
    let target = caller.may_publish(device.telemetry())?;
    ingest.deliver(context, publisher, &device, target, reports).await.map(drop)
}
