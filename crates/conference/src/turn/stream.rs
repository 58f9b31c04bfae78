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

use super::desk::TurnDriver;
use millrace_transport::{
    datagram::framed,
    limits::ConnectionSlot,
    tls::{self, Accepted, Stream},
};

/// Idle timeout of a client without an allocation.
const SILENCE_MAX: Duration = Duration::from_secs(30);
/// Maximum size of a message from a client without an allocation, in bytes; enough for all names and credentials.
const STRANGER_BYTES_MAX: usize = 2048;
/// First byte of a TLS handshake; no TURN message begins with it. Source: RFC 8446, section 5.1; RFC 7983.
const HANDSHAKE: u8 = 22;

pub async fn accept(desk: Rc<TurnDriver>, listener: TcpListener) {
    let acceptor = desk.tls.clone().map(|settings| Rc::new(tls::Acceptor::new(settings)));
    let begin = |stream, from, connection_slot| {
        drop(spawn_local(connection(desk.clone(), stream, from, acceptor.clone(), connection_slot)));
    };
    framed::accept(listener, &desk.limits, begin).await;
}

async fn connection(
    desk: Rc<TurnDriver>,
    stream: TcpStream,
    from: SocketAddr,
    acceptor: Option<Rc<tls::Acceptor>>,
    _connection_slot: ConnectionSlot,
) {
    let stream = match begin(stream, acceptor).await {
        Ok(stream) => stream,
        Err(error) => return tracing::debug!(%error, "a TURN client has not begun"),
    };
    let (client, outgoing) = desk.connect(from);
    let (reading, writing) = tokio::io::split(stream);
    let reader = Reader { desk: &desk, client };
    let ended = tokio::select! {
        ended = framed::read(reading, &reader) => ended,
        ended = outgoing.write(writing, desk.write_timeout) => ended,
    };
    desk.disconnect(client);
    if let Err(error) = ended {
        tracing::debug!(%error, "a TURN client's connection broke");
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
    let _under_way = acceptor.connection_slot().ok_or(io::ErrorKind::ConnectionRefused)?;
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
    desk: &'a Rc<TurnDriver>,
    client: Client,
}

impl framed::Reader for Reader<'_> {
    fn message_bytes(&self, received: &[u8]) -> io::Result<Option<usize>> {
        let Some(head) = received.first_chunk() else { return Ok(None) };
        let length = framed_bytes(*head).ok_or(io::ErrorKind::InvalidData)?;
        match length > STRANGER_BYTES_MAX && !self.desk.is_known(self.client) {
            true => Err(io::ErrorKind::InvalidData.into()),
            false => Ok(Some(length)),
        }
    }

    fn handle(&self, message: &[u8]) {
        self.desk.handle(self.client, message);
    }

    fn deadline(&self) -> Instant {
        Instant::now() + SILENCE_MAX
    }

    fn outlives_deadline(&self) -> bool {
        self.desk.is_known(self.client)
    }
}
