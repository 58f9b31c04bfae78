//! Tokens that are accepted, and the many kinds that are refused.

use base64::prelude::{BASE64_URL_SAFE_NO_PAD, Engine as _};
use millrace_protocol::{Code, Permission};
use millrace_server::auth::{
    Algorithm, ApiKey, Auth, Config, Revoked, Rights, SigningKey, encode_hash, generate, generate_api_key, hash_api_key,
};
use millrace_transport::access::Authority as _;
use ring::{
    hmac,
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject};
use serde_json::{Value, json};

use crate::{NOW, auth, claims, file, made_elsewhere, may, pair, rights, verify};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn hs256() -> SigningKey {
    SigningKey::parse(SECRET.as_bytes()).expect("it is long enough")
}

fn secret() -> Config {
    Config { secret: SECRET.into(), ..Config::default() }
}

/// Builds a token by hand.
fn raw(header: &str, claims: &str, sign: impl Fn(&[u8]) -> Vec<u8>) -> String {
    let message = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part)).join(".");
    format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(sign(message.as_bytes())))
}

fn by_secret(secret: &[u8]) -> impl Fn(&[u8]) -> Vec<u8> {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
    move |message| hmac::sign(&key, message).as_ref().to_vec()
}

/// Returns the claims of a valid token with changes.
fn with(change: Value) -> Value {
    let mut claims = claims();
    for (name, value) in change.as_object().expect("it is one") {
        claims[name] = value.clone();
    }
    claims
}

#[tokio::test]
async fn tokens_of_other_libraries_are_accepted() {
    let made = made_elsewhere();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let files: Vec<_> = made["public"].as_object().unwrap().values().map(|pem| file(&text(pem))).collect();
    let keys = files.iter().map(|file| file.path().to_owned()).collect();
    let by_pem = Config { secret: text(&made["secret"]).as_str().into(), keys, ..Config::default() };
    let set = file(&made["jwks"].to_string());
    let by_set = Config { keys: vec![set.path().to_owned()], ..by_pem.clone() };
    let mut seen = 0;
    for config in [by_pem, by_set] {
        let config = Config { issuer: "https://id.example".into(), audience: "millrace".into(), ..config };
        let auth = auth(&config);
        for (library, tokens) in made["tokens"].as_object().unwrap() {
            for (algorithm, token) in tokens.as_object().unwrap() {
                for _first_and_remembered in 0..2 {
                    let grant = verify(&auth, &text(token)).await;
                    let grant = grant.unwrap_or_else(|error| panic!("{library} {algorithm}: {error}"));
                    assert_eq!((grant.subject.as_deref(), grant.id.as_deref()), (Some("car-7"), Some("t-1")));
                    assert_eq!(grant.expires_s, Some(NOW + 3600 + 10), "with the leeway");
                    assert!(
                        may(&grant, Permission::Publish, "cars/car-7/x")
                            && may(&grant, Permission::Subscribe, "cars/+/x")
                    );
                    assert!(
                        !may(&grant, Permission::Publish, "cars/car-8/x")
                            && !may(&grant, Permission::History, "cars/car-7/x")
                    );
                }
                seen += 1;
            }
        }
        for (what, token) in made["refused"].as_object().unwrap() {
            assert_eq!(verify(&auth, &text(token)).await.unwrap_err().code, Code::Unauthorized, "{what}");
        }
    }
    assert_eq!(seen, 2 * 9, "four algorithms, two libraries, one of them with a second name for EdDSA");
}

#[tokio::test]
async fn invalid_tokens_are_refused() {
    let (rsa_pem, made) = (made_elsewhere()["public"]["RS256"].as_str().unwrap().to_owned(), made_elsewhere());
    let rs256 = made["tokens"]["jose"]["RS256"].as_str().unwrap();
    let p256 = generate(Algorithm::Es256).unwrap();
    let (es256, set_key) = (SigningKey::parse(p256.private.as_bytes()).unwrap(), pair(Algorithm::EdDsa).0);
    let x = "Gb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE";
    let set = json!({ "keys": [{ "kty": "OKP", "crv": "Ed25519", "x": x, "kid": "named" }] });
    let files = [file(&rsa_pem), file(&p256.public), file(&set.to_string())];
    let config = Config {
        keys: files.iter().map(|file| file.path().to_owned()).collect(),
        issuer: "https://id.example".into(),
        audience: "millrace".into(),
        ..secret()
    };
    let auth = auth(&config);
    let sign = |claims: &Value| hs256().sign(claims, None).unwrap();
    let good = with(json!({ "iss": "https://id.example", "aud": "millrace" }));
    let but = |change: Value| {
        let mut claims = good.clone();
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        sign(&claims)
    };
    let (text, hs) = (good.to_string(), by_secret(SECRET.as_bytes()));
    let headed = |header: &str| raw(header, &text, &hs);
    let der = |message: &[u8]| {
        let pkcs8 = PrivatePkcs8KeyDer::from_pem_slice(p256.private.as_bytes()).unwrap();
        let random = SystemRandom::new();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, pkcs8.secret_pkcs8_der(), &random).unwrap();
        key.sign(&random, message).unwrap().as_ref().to_vec()
    };
    assert!(
        verify(&auth, &sign(&good)).await.is_ok() && verify(&auth, &es256.sign(&good, None).unwrap()).await.is_ok()
    );
    assert!(verify(&auth, rs256).await.is_ok());

    let truncated = |token: String| {
        let (message, signed) = token.rsplit_once('.').unwrap();
        let signed = BASE64_URL_SAFE_NO_PAD.decode(signed).unwrap();
        format!("{message}.{}", BASE64_URL_SAFE_NO_PAD.encode(&signed[..signed.len() - 1]))
    };
    let other = BASE64_URL_SAFE_NO_PAD.encode(but(json!({ "sub": "car-8" })).to_string());
    let signed = sign(&good);
    let swapped = signed.split('.').enumerate().map(|(n, part)| if n == 1 { other.clone() } else { part.into() });
    let swapped = swapped.collect::<Vec<String>>().join(".");
    let table: Vec<(&str, String, &str)> = vec![
        ("nothing", ".".into(), "HEADER.CLAIMS.SIGNATURE"),
        ("garbage", "a.b$.c".into(), "HEADER.CLAIMS.SIGNATURE"),
        ("padding", format!("{}=", sign(&good)), "HEADER.CLAIMS.SIGNATURE"),
        ("four parts", format!("{}.e30", sign(&good)), "HEADER.CLAIMS.SIGNATURE"),
        ("five parts, encrypted", "e30.e30.e30.e30.e30".into(), "HEADER.CLAIMS.SIGNATURE"),
        ("standard base64", sign(&good).replace('.', "+."), "HEADER.CLAIMS.SIGNATURE"),
        ("no header", raw("[]", &text, &hs), "header"),
        ("a header that is a list", raw(r#"["HS256",null,null,null]"#, &text, &hs), "header"),
        ("no algorithm", headed(r#"{"typ":"JWT"}"#), "header"),
        ("algorithm none", raw(r#"{"alg":"none"}"#, &text, |_| Vec::new()), "algorithm"),
        ("algorithm NoNe", raw(r#"{"alg":"NoNe"}"#, &text, |_| Vec::new()), "algorithm"),
        ("algorithm twice", headed(r#"{"alg":"none","alg":"HS256"}"#), "header"),
        ("no signature", raw(r#"{"alg":"HS256"}"#, &text, |_| Vec::new()), "signature"),
        ("another secret", raw(r#"{"alg":"HS256"}"#, &text, by_secret(b"another")), "signature"),
        ("the public key as the secret", raw(r#"{"alg":"HS256"}"#, &text, by_secret(rsa_pem.as_bytes())), "signature"),
        (
            "the public key, trimmed",
            raw(r#"{"alg":"HS256"}"#, &text, by_secret(rsa_pem.trim().as_bytes())),
            "signature",
        ),
        ("RS256 called ES256", rs256.replacen("eyJhbGciOiJSUzI1NiIs", "eyJhbGciOiJFUzI1NiIs", 1), "any configured key"),
        ("a key of another algorithm", raw(r#"{"alg":"HS256","kid":"named"}"#, &text, &hs), "another algorithm"),
        ("not the key that is named", set_key.sign(&good, Some("named")).unwrap(), "signature"),
        ("a key nobody has", set_key.sign(&good, Some("other")).unwrap(), "any configured key"),
        ("a path as the key", raw(r#"{"alg":"EdDSA","kid":"../../x"}"#, &text, |_| vec![0; 64]), "any configured key"),
        (
            "the bytes of a path",
            raw(r#"{"alg":"EdDSA","kid":"x\u0000/etc/passwd"}"#, &text, |_| vec![0; 64]),
            "any configured key",
        ),
        ("a huge name of a key", headed(&format!(r#"{{"alg":"HS256","kid":"{}"}}"#, "x".repeat(256))), "kid"),
        ("unknown extensions", headed(r#"{"alg":"HS256","crit":["x"],"x":1}"#), "crit"),
        ("empty extensions", headed(r#"{"alg":"HS256","crit":[]}"#), "crit"),
        ("unencoded payload", headed(r#"{"alg":"HS256","b64":false,"crit":["b64"]}"#), "crit"),
        ("another kind", headed(r#"{"alg":"HS256","typ":"logout+jwt"}"#), "typ"),
        ("a signature cut short", truncated(sign(&good)), "signature"),
        ("RS256 cut short", truncated(rs256.to_owned()), "any configured key"),
        ("ES256 cut short", truncated(es256.sign(&good, None).unwrap()), "signature"),
        ("ES256 in DER", raw(r#"{"alg":"ES256"}"#, &text, der), "signature"),
        ("ES256 of zeros", raw(r#"{"alg":"ES256"}"#, &text, |_| vec![0; 64]), "signature"),
        ("claims of another token", swapped, "signature"),
        ("expired", sign(&but(json!({ "exp": NOW - 10 }))), "expired"),
        ("expired long ago", sign(&but(json!({ "exp": 0 }))), "expired"),
        ("no expiry", without("exp"), "exp"),
        ("expiry null", sign(&but(json!({ "exp": null }))), "exp"),
        ("expiry as text", sign(&but(json!({ "exp": "1900000000" }))), "claims"),
        ("expiry before time", sign(&but(json!({ "exp": -1 }))), "exp"),
        ("expiry never", sign(&but(json!({ "exp": 1e300 }))), "exp"),
        ("too long a life", sign(&but(json!({ "exp": NOW + 31 * 24 * 3600 }))), "lifetime_max"),
        ("not yet", sign(&but(json!({ "nbf": NOW + 11 }))), "not valid yet"),
        ("another issuer", sign(&but(json!({ "iss": "https://id.example.evil" }))), "issuer"),
        ("no issuer", without("iss"), "issuer"),
        ("another audience", sign(&but(json!({ "aud": ["millrace2", "x"] }))), "audience"),
        ("no audience", without("aud"), "audience"),
        ("an empty subject", sign(&but(json!({ "sub": "" }))), "sub"),
        ("a subject that is a wildcard", sign(&but(json!({ "sub": "#" }))), "sub"),
        ("a subject that climbs", sign(&but(json!({ "sub": "../car-8" }))), "sub"),
        ("no subject for {sub}", without("sub"), "sub"),
        ("an unknown right", sign(&but(json!({ "millrace": { "admin": ["#"] } }))), "claims"),
        ("a bad pattern", sign(&but(json!({ "millrace": { "publish": ["a/#/b"] } }))), "pattern"),
        ("claims twice", raw(r#"{"alg":"HS256"}"#, &format!(r#"{{"sub":"boss",{}"#, &text[1..]), &hs), "claims"),
        ("claims that are none", raw(r#"{"alg":"HS256"}"#, "7", &hs), "claims"),
        ("claims as a list", raw(r#"{"alg":"HS256"}"#, &format!(r#"["boss","x",{},0,0]"#, NOW + 60), &hs), "claims"),
        ("claims cut short", raw(r#"{"alg":"HS256"}"#, &text[..text.len() - 1], &hs), "claims"),
        ("deep claims", raw(r#"{"alg":"HS256"}"#, &"[".repeat(3000), &hs), "claims"),
        ("huge", sign(&but(json!({ "x": "x".repeat(8192) }))), "8192 bytes"),
        ("an API key that is none", "mrk_x".into(), "API key"),
    ];
    for (what, token, why) in table {
        let error = verify(&auth, &token).await.err().unwrap_or_else(|| panic!("{what}: it was let in"));
        assert_eq!(error.code, Code::Unauthorized, "{what}");
        assert!(error.detail.contains(why), "{what}: {error}");
        let is_said = token.split('.').any(|part| part.len() > 4 && error.detail.contains(part));
        assert!(!is_said, "{what}: the token is in the answer");
    }
}

#[tokio::test]
async fn small_clock_difference_is_tolerated() {
    let auth = auth(&secret());
    for (claims, is_good) in [
        (with(json!({ "exp": NOW - 9 })), true),
        (with(json!({ "exp": NOW - 10 })), false),
        (with(json!({ "nbf": NOW + 10 })), true),
        (with(json!({ "nbf": NOW + 11 })), false),
        (with(json!({ "exp": (NOW + 5) as f64 + 0.5 })), true),
    ] {
        assert_eq!(verify(&auth, &hs256().sign(&claims, None).unwrap()).await.is_ok(), is_good, "{claims}");
    }
}

#[tokio::test]
async fn token_without_permissions_gets_default() {
    let default = Rights { publish: vec!["cars/{sub}/#".into()], ..Rights::default() };
    let auth = auth(&Config { default, ..secret() });
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove("millrace");
    let grant = verify(&auth, &hs256().sign(&claims, None).unwrap()).await.unwrap();
    assert!(may(&grant, Permission::Publish, "cars/car-7/x") && !may(&grant, Permission::Publish, "cars/car-8/x"));
    claims["millrace"] = json!({});
    let grant = verify(&auth, &hs256().sign(&claims, None).unwrap()).await.unwrap();
    assert!(!may(&grant, Permission::Publish, "cars/car-7/x"), "a token that says what it grants says all of it");
}

#[tokio::test]
async fn api_keys_have_configured_permissions() {
    let key = generate_api_key().unwrap();
    let grants = Rights { publish: vec!["orders/#".into()], ..Rights::default() };
    let config = ApiKey { sha256: encode_hash(&hash_api_key(&key)), grants };
    let config = Config { api_keys: [("billing".to_owned(), config)].into(), ..Config::default() };
    config.check().unwrap();
    let auth = auth(&config);
    let grant = verify(&auth, &key).await.unwrap();
    assert_eq!((grant.id.as_deref(), grant.expires_s), (Some("billing"), None));
    assert!(may(&grant, Permission::Publish, "orders/1") && !may(&grant, Permission::Subscribe, "orders/1"));
    assert!(verify(&auth, &key[..key.len() - 1]).await.is_err());
    auth.revoke(Revoked::Id("billing".into()), auth.revoked_until_s()).unwrap();
    assert_eq!(verify(&auth, &key).await.unwrap_err().code, Code::Unauthorized);
}

#[tokio::test]
async fn revoked_tokens_are_refused_at_once() {
    let auth = auth(&secret());
    let (changes, token) = (auth.revocations(), hs256().sign(&claims(), None).unwrap());
    let grant = verify(&auth, &token).await.unwrap();
    assert!(!auth.is_revoked(&grant));
    auth.revoke(Revoked::Subject { subject: "car-7".into(), before_s: NOW + 1 }, auth.revoked_until_s()).unwrap();
    assert!(auth.is_revoked(&grant) && *changes.borrow() == 1);
    assert!(verify(&auth, &token).await.unwrap_err().detail.contains("revoked"), "though it was remembered as good");
    let newer = hs256().sign(&with(json!({ "iat": NOW + 1, "jti": "t-2" })), None).unwrap();
    assert!(verify(&auth, &newer).await.is_ok());
    auth.revoke(Revoked::Id("t-2".into()), auth.revoked_until_s()).unwrap();
    assert!(verify(&auth, &newer).await.is_err());
}

#[test]
fn anonymous_clients_get_permissions_of_namespaces() {
    let open = rights("news", &[Permission::Subscribe]);
    let is_open = |config: &Config, anonymous| {
        let grant = Auth::new(config, &anonymous, || NOW).unwrap().anonymous();
        [(Permission::Subscribe, "news/today"), (Permission::Publish, "news/today"), (Permission::Subscribe, "cars/7")]
            .map(|(right, target)| may(&grant, right, target))
    };
    assert_eq!(
        is_open(&Config::default(), Default::default()),
        [true; 3],
        "nothing is configured: a developer's minute"
    );
    assert_eq!(is_open(&secret(), Default::default()), [false; 3]);
    assert_eq!(is_open(&secret(), open.clone()), [true, false, false]);
    assert_eq!(
        is_open(&Config::default(), open),
        [true, false, false],
        "who names one namespace has thought of the others"
    );
}

#[tokio::test]
async fn key_files_rotate_without_restart() {
    let [old, new] = [(); 2].map(|()| generate(Algorithm::EdDsa).unwrap());
    let sign = |pair: &millrace_server::auth::Pair| {
        SigningKey::parse(pair.private.as_bytes()).unwrap().sign(&claims(), None).unwrap()
    };
    let (by_old, by_new) = (sign(&old), sign(&new));
    let file = file(&old.public);
    let config = Config { keys: vec![file.path().to_owned()], ..Config::default() };
    let auth = auth(&config);
    assert!(verify(&auth, &by_old).await.is_ok() && verify(&auth, &by_new).await.is_err());
    std::fs::write(file.path(), &new.private).unwrap();
    let error = auth.prepare(&config, &Default::default()).err().unwrap().to_string();
    assert!(error.contains("private key") && !error.contains(&new.private[40..60]), "{error}");
    assert!(verify(&auth, &by_old).await.is_ok(), "what cannot be read changes nothing");
    std::fs::write(file.path(), &new.public).unwrap();
    auth.apply(auth.prepare(&config, &Default::default()).unwrap());
    assert!(verify(&auth, &by_old).await.is_err(), "though it was remembered as good");
    assert!(verify(&auth, &by_new).await.is_ok());
}
