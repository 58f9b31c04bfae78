//! Takes over the messages of nodes and processes that have ended.
//!
//! One node of a cluster looks for overdue messages. If two do for a short time, the claim before an attempt decides.

use std::{collections::HashMap, sync::Arc, time::Duration};

use millrace_engine::leads;
use millrace_protocol::{Error, Position, Since};
use tokio::time::sleep;

use crate::{
    metrics::MessageEvent,
    queue::{Change, Changes},
    sender::{Job, Shared},
};

/// Interval between two looks at the queue, and at which node looks.
const POLL: Duration = Duration::from_secs(1);
/// Time after which a message is overdue: its node sends it at its due time, unless it waits for a free request.
const GRACE_MS: u64 = 1000;

/// Looks for overdue messages whenever this node leads. Never returns.
pub(crate) async fn run(shared: Arc<Shared>) {
    loop {
        if let Err(error) = watch(&shared).await {
            tracing::debug!(%error, "the queue of pushes cannot be read");
        }
        sleep(POLL).await;
    }
}

/// Looks for overdue messages until another node leads. Errors: those of the engine.
async fn watch(shared: &Arc<Shared>) -> Result<(), Error> {
    let (mut since, mut waiting) = (Since::State, HashMap::<Box<str>, (Position, u64)>::new());
    while leads(&*shared.engine).await {
        let Changes { found, is_whole, next, end } = shared.queue.changes(since).await?;
        since = next;
        if is_whole {
            waiting.clear();
        }
        for Change { id, at, due_ms } in found {
            match due_ms {
                Some(due_ms) => drop(waiting.insert(id, (at, due_ms))),
                None => drop(waiting.remove(&id)),
            }
        }
        let now_ms = shared.engine.now_ms();
        let overdue: Vec<(Box<str>, Position)> = {
            let own = shared.own();
            let is_overdue = |id: &str, due_ms: u64| due_ms + GRACE_MS < now_ms && !own.contains(id);
            let all = waiting.iter().filter(|(id, (_, due_ms))| is_overdue(id, *due_ms));
            all.map(|(id, (at, _))| (id.clone(), *at)).collect()
        };
        for (id, at) in overdue {
            // The others wait until this node has sent some.
            let Ok(permit) = shared.jobs.clone().try_acquire_owned() else { break };
            let Some(mut entry) = shared.queue.find(&id, at, end).await? else {
                waiting.remove(&id);
                continue;
            };
            entry.message.attempt += 1;
            shared.metrics.count_message(MessageEvent::TakenOver);
            shared.own().insert(id);
            tokio::spawn(shared.clone().run(Job { entry, is_shared: true, permit }));
        }
        sleep(POLL).await;
    }
    Ok(())
}
