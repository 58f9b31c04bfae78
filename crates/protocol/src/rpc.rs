use std::time::Duration;

use crate::{ChannelName, Code, Error, JSON_DEPTH_MAX, publication::is_too_deep};

/// Maximum deadline of a call. The server's own limit is usually shorter.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Remote procedure call of a client, which the app's back end answers.
///
/// Source: docs/reference/protocol.md, "Remote procedure calls".
#[derive(Clone, Debug, PartialEq)]
pub struct RpcCall {
    /// Name of the method, with the syntax of a channel name. Its first level is the namespace.
    pub method: ChannelName,
    /// Parameters as JSON.
    pub params: Option<Box<str>>,
    /// Time in which the client needs the answer; `None`: the server's limit.
    pub timeout: Option<Duration>,
}

impl RpcCall {
    /// Creates a call. `params` must be JSON. `timeout_s` is in seconds.
    ///
    /// Errors: [`Code::BadRequest`] for a method that is no name, or a timeout that is not positive;
    /// [`Code::BadJson`] for parameters that are nested too deeply.
    pub fn new(method: &str, params: Option<&str>, timeout_s: Option<f64>) -> Result<Self, Error> {
        let name = ChannelName::parse(method).map_err(|error| {
            Error::new(Code::BadRequest, format!("a method has the syntax of a channel name: {}", error.detail))
        })?;
        if params.is_some_and(is_too_deep) {
            return Err(Error::new(Code::BadJson, format!("`params` is nested deeper than {JSON_DEPTH_MAX} levels")));
        }
        let timeout = match timeout_s {
            None => None,
            Some(seconds) if seconds.is_finite() && seconds > 0.0 => {
                Some(Duration::from_secs_f64(seconds.min(TIMEOUT_MAX.as_secs_f64())))
            }
            Some(_) => {
                return Err(Error::new(Code::BadRequest, "the timeout must be a positive number of seconds"));
            }
        };
        Ok(Self { method: name, params: params.map(Into::into), timeout })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Command, decode_command};

    #[test]
    fn call_is_decoded_and_checked() {
        let (_, command) = decode_command(r#"{"id":1,"rpc":{"method":"cars/start","params":{"a" : 1},"timeout":1.5}}"#);
        let call = RpcCall {
            method: ChannelName::parse("cars/start").unwrap(),
            params: Some(r#"{"a" : 1}"#.into()),
            timeout: Some(Duration::from_millis(1500)),
        };
        assert_eq!(command, Ok(Command::Rpc(call)));
        let code =
            |method: &str, params: Option<&str>, timeout| RpcCall::new(method, params, timeout).unwrap_err().code;
        assert_eq!(code("a b", None, None), Code::BadRequest);
        assert_eq!(code("a", None, Some(0.0)), Code::BadRequest);
        assert_eq!(code("a", None, Some(f64::NAN)), Code::BadRequest);
        let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(code("a", Some(&deep), None), Code::BadJson);
        assert!(RpcCall::new("a", None, Some(1e300)).is_ok());
    }
}
