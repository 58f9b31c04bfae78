use std::{
    io,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_turn::{Client, framed_bytes};
use tokio::{
    net::{TcpListener, TcpStream},
    task::spawn_local,
    time::timeout,
};

use super::driver::TurnDriver;
use millrace_transport::{
    datagram::framed,
    limits::ConnectionSlot,
    tls::{self, Accepted, Stream},
};

/// Idle timeout of a client without an allocation.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum size of a message from a client without an allocation, in bytes; enough for all names and credentials.
const UNAUTHENTICATED_BYTES_MAX: usize = 2048;
/// First byte of a TLS handshake; no TURN message begins with it. Source: RFC 8446, section 5.1; RFC 7983.
const HANDSHAKE: u8 = 22;

pub async fn accept(driver: Rc<TurnDriver>, listener: TcpListener) {
    let acceptor = driver.tls.clone().map(|settings| Rc::new(tls::Acceptor::new(settings)));
    let begin = |stream, from, connection_slot| {
        drop(spawn_local(connection(driver.clone(), stream, from, acceptor.clone(), connection_slot)));
    };
    framed::accept(listener, &driver.connection_limits, begin).await;
}

async fn connection(
    driver: Rc<TurnDriver>,
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Option<Rc<tls::Acceptor>>,
    _connection_slot: ConnectionSlot,
) {
    let stream = match begin(stream, acceptor).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "TURN stream closed before its first message"),
    };
    let (client, outgoing) = driver.connect(from);
    let (reading, writing) = tokio::io::split(stream);
    let reader = Reader { driver: &driver, client };
    let ended = tokio::select! {
        ended = framed::read(reading, &reader) => ended,
        ended = outgoing.write(writing, driver.write_timeout) => ended,
    };
    driver.disconnect(client);
    if let Err(error) = ended {
        tracing::debug!(%error, "TURN stream failed");
    }
}

/// Returns the stream, after a TLS handshake if the first byte begins one.
async fn begin(stream: TcpStream, acceptor: Option<Rc<tls::Acceptor>>) -> io::Result<Stream> {
    let mut first = [0];
    timeout(SILENCE_MAX, stream.peek(&mut first)).await??;
    if first[0] != HANDSHAKE {
        return Ok(Stream::plain(stream));
    }
    let acceptor = acceptor.ok_or(io::ErrorKind::Unsupported)?;
    let _handshake = acceptor.handshake_slot().ok_or(io::ErrorKind::ConnectionRefused)?;
    let mut settings = acceptor.settings();
    // Clear the ALPN protocols: this port does not speak HTTP. Few clients send the names that RFC 7443 defines for
    // TURN.
    let mut config = (*settings.config).clone();
    config.alpn_protocols.clear();
    settings.config = Arc::new(config);
    settings.challenge = None;
    match timeout(settings.handshake_timeout, tls::accept(stream, &settings)).await?? {
        Accepted::Client(stream, _) => Ok(stream),
        Accepted::Challenge => Err(io::ErrorKind::ConnectionRefused.into()),
    }
}

struct Reader<'a> {
    driver: &'a Rc<TurnDriver>,
    client: Client,
}

impl framed::Reader for Reader<'_> {
    fn message_bytes(&self, received: &[u8]) -> io::Result<Option<usize>> {
        let Some(head) = received.first_chunk() else { return Ok(None) };
        let length = framed_bytes(*head).ok_or(io::ErrorKind::InvalidData)?;
        match length > UNAUTHENTICATED_BYTES_MAX && !self.driver.is_known(self.client) {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(Some(length)),
        }
    }

    fn handle(&self, message: &[u8]) {
        self.driver.handle(self.client, message);
    }

    fn deadline(&self) -> Instant {
        Instant::now() + SILENCE_MAX
    }

    fn outlives_deadline(&self) -> bool {
        self.driver.is_known(self.client)
    }
}
