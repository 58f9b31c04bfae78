//! Attacks with invalid credentials. Each credential is different, so the server cannot cache any.

use std::{cell::Cell, io};

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};

use super::{get, upgrade};
use crate::trial::AttackContext;

/// Near the maximum length of a token that the server checks.
const LONG: usize = 8_000;

pub async fn bad(context: &AttackContext) {
    let next = Cell::new(0u64);
    context
        .again(16, async |lane| -> io::Result<()> {
            let mut stream = context.connect(lane).await?;
            loop {
                let n = next.replace(next.get() + 1);
                let token = token(n);
                let header = format!("Authorization: Bearer {token}\r\n");
                let status = match n % 16 {
                    0 => {
                        let offer = format!("Sec-WebSocket-Protocol: millrace.v1+json, bearer.{token}\r\n");
                        upgrade(&mut stream, "/v1/connect", &offer).await.map_or(401, |()| 101)
                    }
                    _ => get(&mut stream, "/v1/channels/honest/all", &header).await?,
                };
                assert_eq!(status, 401, "a token that is none was taken: {token}");
                context.done(1);
            }
        })
        .await;
}

/// Returns an invalid token: wrong signature, unknown key, no algorithm, large claims, or a long API key.
fn token(n: u64) -> String {
    let part = |json: String| BASE64_URL_SAFE_NO_PAD.encode(json);
    let claims = |more: &str| part(format!(r#"{{"sub":"attacker{n}","exp":4102444800{more}}}"#));
    let signature = BASE64_URL_SAFE_NO_PAD.encode(n.to_be_bytes().repeat(4));
    match n % 5 {
        0 => format!("{}.{}.{signature}", part(r#"{"alg":"HS256","typ":"JWT"}"#.into()), claims("")),
        1 => format!("{}.{}.{signature}", part(format!(r#"{{"alg":"RS256","kid":"k{n}"}}"#)), claims("")),
        2 => format!("{}.{}.", part(r#"{"alg":"none"}"#.into()), claims("")),
        3 => {
            let rules = (0..200).map(|i| format!(r#""a{i}/{n}/#""#)).collect::<Vec<_>>().join(",");
            let claims = claims(&format!(r#","millrace":{{"subscribe":[{rules}]}}"#));
            format!("{}.{claims}.{signature}", part(r#"{"alg":"HS256"}"#.into()))
        }
        _ => format!("{n}{}", "x".repeat(LONG)),
    }
}
