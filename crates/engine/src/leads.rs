use crate::Engine;

/// Returns true if this node has the lowest name of all live nodes, or if no other node can share the engine. Services
/// of which one node of a cluster does the work use it to choose this node.
///
/// Two nodes can be chosen for a short time: a dead node is live until its lease ends, and a node that was suspended
/// does not know yet that its own has ended. The writes of a service must therefore have conditions.
pub async fn leads(engine: &dyn Engine) -> bool {
    let Some(own) = engine.node() else { return true };
    match engine.live_nodes().await {
        Ok(Some(nodes)) => nodes.iter().min().is_some_and(|first| first == own),
        Ok(None) => true,
        Err(_) => false,
    }
}
