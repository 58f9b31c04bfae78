//! What every engine with a broker in the network shares: it keeps a mirror of what is watched, sends batches, tries again, waits within a
//! bound, and asks the other nodes who is present. A [`Broker`] is the small part that differs.

mod broker;
mod past;

pub(crate) use broker::{Broker, BrokerError, Event, Events, Lease, Token};
pub(crate) use past::Past;
