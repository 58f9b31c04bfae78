use std::rc::Rc;

use millrace_protocol::ChannelName;

use crate::{
    admission::{Publisher, access::Caller},
    route::{Context, Taking},
    transports::mqtt::TopicFormats,
};

/// Formats of topics that the routes of other crates know.
pub struct RouteTopics(pub Rc<Context>);

impl TopicFormats for RouteTopics {
    fn knows(&self, channel: &ChannelName) -> bool {
        self.0.routes().iter().any(|routes| routes.takes_mqtt(channel))
    }

    fn take<'a>(
        &'a self,
        publisher: &'a dyn Publisher,
        caller: &'a Caller,
        channel: &'a ChannelName,
        payload: &'a [u8],
    ) -> Taking<'a> {
        let taker = self.0.routes().iter().find(|routes| routes.takes_mqtt(channel)).cloned();
        Box::pin(async move {
            match taker {
                Some(routes) => routes.take_mqtt(&self.0, publisher, caller, channel, payload).await,
                None => Ok(()),
            }
        })
    }
}
