use millrace_protocol::ChannelName;
use serde_json::Value;

/// Maximum length of a device id in bytes.
const BYTES_MAX: usize = 64;

/// Reason why a text is not a device id. The text itself is shown only if it is short.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0} is not a device id: expected 1 to 64 characters of A-Z a-z 0-9 _ - . and :, with a letter or digit first; \
     set another device id in the app"
)]
pub struct DeviceIdError(String);

/// Id of a device, one level of a channel name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId(Box<str>);

impl DeviceId {
    /// Parses the id that a sender uses for its device.
    pub fn parse(text: &str) -> Result<Self, DeviceIdError> {
        let is_good = text.len() <= BYTES_MAX
            && text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric)
            && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte));
        match is_good {
            true => Ok(Self(text.into())),
            false if text.len() <= BYTES_MAX => Err(DeviceIdError(format!("{text:?}"))),
            false => Err(DeviceIdError(format!("a text of {} bytes", text.len()))),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the channel of the live records.
    pub fn telemetry(&self) -> ChannelName {
        self.channel("telemetry")
    }

    /// Returns the channel of the records that arrived after newer ones.
    pub fn late(&self) -> ChannelName {
        self.channel("late")
    }

    fn channel(&self, last: &str) -> ChannelName {
        ChannelName::parse(&format!("cars/{}/{last}", self.0)).expect("the id was checked when it was parsed")
    }

    /// Returns the `carId` of a record: a number if the id is the plain form of one, as simulated cars have it.
    pub fn to_json(&self) -> Value {
        let number = self.0.parse::<u32>().ok().filter(|number| number.to_string() == *self.0);
        number.map_or_else(|| Value::from(&*self.0), Value::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_is_one_level_of_a_channel() {
        let id = DeviceId::parse("jane-phone").unwrap();
        assert_eq!(
            (id.telemetry().as_str(), id.late().as_str()),
            ("cars/jane-phone/telemetry", "cars/jane-phone/late")
        );
        for good in ["7", "a", "A.b_c-d:e", &"x".repeat(64)] {
            assert_eq!(DeviceId::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a/b", "+", "#", ":members", "-x", ".", "a b", "é", "a\n", &"x".repeat(65)] {
            let error = DeviceId::parse(bad).unwrap_err().to_string();
            assert!(error.contains("1 to 64 characters") && error.len() < 400, "{error}");
        }
    }

    #[test]
    fn plain_number_stays_a_number() {
        let json = |id: &str| DeviceId::parse(id).unwrap().to_json();
        assert_eq!((json("7"), json("07"), json("7a")), (7.into(), "07".into(), "7a".into()));
        assert_eq!(json("99999999999"), "99999999999");
    }
}
