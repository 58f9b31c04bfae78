//! uWebSockets itself, which is in no package registry. Build `server.cpp` beside a checkout of uSockets and
//! uWebSockets and name the binary:
//!
//! ```sh
//! gcc -O3 -march=native -flto -DLIBUS_NO_SSL -IuSockets/src -c uSockets/src/*.c uSockets/src/eventing/*.c
//! g++ -std=c++20 -O3 -march=native -flto -DLIBUS_NO_SSL -DUWS_NO_ZLIB -IuSockets/src -IuWebSockets/src \
//!   server.cpp *.o -o uws
//! ```

use std::process::Command;

use crate::{
    load::Dialect,
    targets::{ClientOptions, Options, Server, Target, Transport, install, process::Ready, ws::bare},
};

pub struct Uws;

impl Target for Uws {
    fn name(&self) -> &'static str {
        "uws"
    }

    fn version(&self, options: &Options) -> anyhow::Result<String> {
        Ok(install::named(options, self.name(), self.name())?.display().to_string())
    }

    fn transports(&self) -> &'static [Transport] {
        &[Transport::WebSocket]
    }

    fn start(&self, options: &Options) -> anyhow::Result<Server> {
        Server::start(
            Command::new(install::named(options, self.name(), self.name())?),
            Ready::Says("listening on http://"),
            tempfile::tempdir()?,
            options,
        )
    }

    fn dialect(&self, _: Transport, ask: &ClientOptions<'_>) -> Box<dyn Dialect> {
        Box::new(bare(ask))
    }
}
