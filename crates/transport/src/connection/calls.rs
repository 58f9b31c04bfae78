use std::collections::HashMap;

use millrace_delivery::ConnId;
use tokio::task::AbortHandle;

/// Maximum number of remote procedure calls in progress per connection.
pub(crate) const CALLS_MAX: usize = 64;

/// Remote procedure calls in progress of a shard's sessions. The calls of a connection are withdrawn when it ends.
#[derive(Default)]
pub(crate) struct Calls(HashMap<ConnId, HashMap<u64, AbortHandle>>);

impl Calls {
    /// Returns the number of calls of a connection.
    pub fn count(&self, id: ConnId) -> usize {
        self.0.get(&id).map_or(0, HashMap::len)
    }

    /// Adds a call, by the id of its command. A client that uses an id twice withdraws its earlier call.
    pub fn begin(&mut self, id: ConnId, command_id: u64, call: AbortHandle) {
        if let Some(earlier) = self.0.entry(id).or_default().insert(command_id, call) {
            earlier.abort();
        }
    }

    /// Removes a call that has ended.
    pub fn end(&mut self, id: ConnId, command_id: u64) {
        let Some(calls) = self.0.get_mut(&id) else { return };
        calls.remove(&command_id);
        if calls.is_empty() {
            self.0.remove(&id);
        }
    }

    /// Withdraws all calls of a connection that ends. Cost without calls: one comparison.
    pub fn withdraw(&mut self, id: ConnId) {
        if self.0.is_empty() {
            return;
        }
        self.0.remove(&id).into_iter().flatten().for_each(|(_, call)| call.abort());
    }
}
