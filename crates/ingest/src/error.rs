use millrace_protocol::{Code, Error};

use crate::device::DeviceIdError;

/// Reason why a request or datagram of a device was refused. The text never contains a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text names where this sender gives its device id.
    #[error("the device id is missing: {0}")]
    NoDevice(&'static str),
    #[error(transparent)]
    Device(#[from] DeviceIdError),
    #[error("the body is not JSON: {0}")]
    Json(String),
    #[error("the body is not UTF-8")]
    Utf8,
    #[error("`{field}` {expected}")]
    Field { field: &'static str, expected: &'static str },
    #[error("line {line}: {what}")]
    Line { line: u64, what: String },
    #[error("{0}")]
    Unsupported(&'static str),
    #[error("a request has at most {0} points; send the others in further requests")]
    TooMany(usize),
}

impl From<DecodeError> for Error {
    fn from(error: DecodeError) -> Self {
        let code = match &error {
            DecodeError::Device(_) => Code::BadChannel,
            DecodeError::Json(_) => Code::BadJson,
            DecodeError::TooMany(_) => Code::TooMany,
            _ => Code::BadRequest,
        };
        Error::new(code, error.to_string())
    }
}
