//! Remote procedure calls of a session. Calls run beside other commands, so their replies come in any order.

use std::rc::Rc;

use millrace_delivery::ConnId;
use millrace_protocol::{
    Code, Error, RpcCall,
    session::{encode_reply, encode_reply_raw},
};

use crate::{
    admission::{Publisher, limits::Direction},
    connection::{CALLS_MAX, EventLoop, SessionPublisher},
};

/// Starts a call. Its reply is sent when the back end has answered. The call is withdrawn when the connection ends.
///
/// Errors: [`Code::TooMany`] above [`CALLS_MAX`] calls of the connection; those of the quota of publications.
pub fn begin(event_loop: &Rc<EventLoop>, id: ConnId, command_id: u64, call: RpcCall) -> Result<(), Error> {
    if event_loop.shard().sockets().calls.count(id) >= CALLS_MAX {
        let detail = format!("a connection has at most {CALLS_MAX} calls in progress; wait for an answer");
        return Err(Error::new(Code::TooMany, detail));
    }
    let bytes = call.params.as_ref().map_or(0, |params| params.len());
    SessionPublisher { event_loop, id }.take_quota(bytes)?;
    let client = event_loop.client(id);
    let this = event_loop.clone();
    let running = tokio::task::spawn_local(async move {
        let reply = match this.admission().rpc(client, call).await {
            Ok(result) => encode_reply_raw(command_id, format!("{{\"result\":{result}}}").as_bytes()),
            Err(error) => {
                this.admission().limits.count_error(&error);
                encode_reply(command_id, &Err(error))
            }
        };
        this.shard().sockets().calls.end(id, command_id);
        this.send_text(id, &reply);
        this.update_pending_bytes(id, Direction::Out);
    });
    event_loop.shard().sockets().calls.begin(id, command_id, running.abort_handle());
    Ok(())
}
