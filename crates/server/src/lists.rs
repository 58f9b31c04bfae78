//! Metrics of the lists that the nodes keep: rosters, occupied channels and open connections.

use millrace_node::MetricKind;
use millrace_presence::Stats;

use crate::metrics::Exposition;

/// Appends the metrics of the lists.
pub fn render(stats: &Stats, out: &mut Exposition) {
    let Stats { entries, refused, writes, nodes_removed } = *stats;
    out.value(
        "millrace_list_entries",
        MetricKind::Gauge,
        "Entries of this node in all lists: members of rosters, channels and connections.",
        entries,
    );
    out.value(
        "millrace_list_entries_refused",
        MetricKind::Gauge,
        "Entries of this node that are missing because their list is full.",
        refused,
    );
    out.value(
        "millrace_list_writes_total",
        MetricKind::Counter,
        "Writes of entries, including those repeated after a change by another node.",
        writes,
    );
    out.value(
        "millrace_list_nodes_removed_total",
        MetricKind::Counter,
        "Dead nodes that this node has removed from all lists.",
        nodes_removed,
    );
}
