//! WebSocket attacks: invalid frames, and messages that expand when they are decompressed.

use std::io::Write;

use flate2::{Compression, write::DeflateEncoder};
use tokio::io::AsyncWriteExt;

use super::{frame, post, until_closed, upgrade};
use crate::trial::AttackContext;

/// Returns invalid inputs, each of which ends its connection (RFC 6455, sections 5.1, 5.2, 5.5, 8.1). The last two
/// are valid frames that only make noise.
fn broken() -> Vec<Vec<u8>> {
    let announced = |first: u8, length: u64| [&[first, 0xff][..], &length.to_be_bytes(), &[0; 4]].concat();
    vec![
        b"\x81\x05hello".to_vec(),
        frame(0xf1, b"reserved bits"),
        frame(0x83, b"an opcode that is none"),
        frame(0x81, &[0xff; 100]),
        frame(0x89, &[b'x'; 126]),
        frame(0x09, b"a ping in parts"),
        frame(0x80, b"the end of nothing"),
        [frame(0x01, b"a"), frame(0x01, b"b")].concat(),
        announced(0x81, 1 << 63),
        announced(0x81, 1 << 40),
        frame(0x88, &[0x03]),
        frame(0x88, &[0xff; 4]),
        frame(0xc1, b"compressed, which was not agreed upon"),
        frame(0x81, b"{ \"id\": 1").repeat(50),
        frame(0x89, b"ping").repeat(200),
    ]
}

pub async fn invalid(context: &AttackContext) {
    let broken = broken();
    context
        .again(32, async |lane| {
            for bytes in broken.iter().cycle().skip(lane).take(broken.len()) {
                let mut stream = context.connect(lane).await?;
                match lane % 2 {
                    0 => upgrade(&mut stream, "/v1/channels/noise", "").await?,
                    _ => upgrade(&mut stream, "/v1/connect", "Sec-WebSocket-Protocol: millrace.v1+json\r\n").await?,
                }
                stream.write_all(&[bytes, &frame(0x88, b"\x03\xe8")[..]].concat()).await?;
                until_closed(&mut stream).await?;
                context.done(1);
            }
            Ok(())
        })
        .await;
}

/// Sends 64 KiB that decompress to 64 MiB: as one message, in fragments, and as the compressed body of a request.
pub async fn bombs(context: &AttackContext) {
    let mut packed = DeflateEncoder::new(Vec::new(), Compression::best());
    packed.write_all(&vec![b'a'; 64 << 20]).and_then(|()| packed.flush()).expect("memory takes it");
    let mut packed = packed.finish().expect("memory takes it");
    packed.truncate(packed.len().min(64 * 1024 + 1024));
    let (first, second) = packed.split_at(packed.len() / 2);
    let bombs = [frame(0xc2, &packed), [frame(0x42, first), frame(0x80, second)].concat()];
    let deflate = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n";
    context
        .again(16, async |lane| {
            let mut stream = context.connect(lane).await?;
            match lane % 4 {
                0 => upgrade(&mut stream, "/v1/channels/bombs", deflate).await?,
                1 => {
                    let session = format!("{deflate}Sec-WebSocket-Protocol: millrace.v1+json\r\n");
                    upgrade(&mut stream, "/v1/connect", &session).await?;
                }
                2 => upgrade(&mut stream, "/v1/channels/bombs?subscribe=no", deflate).await?,
                _ => {
                    post(&mut stream, "/v1/channels/bombs", "Content-Encoding: deflate\r\n", &packed).await?;
                    context.done(1);
                    return Ok(());
                }
            }
            stream.write_all(&bombs[lane / 4 % 2]).await?;
            until_closed(&mut stream).await?;
            context.done(1);
            Ok(())
        })
        .await;
}
