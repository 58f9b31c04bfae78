use str0m::RtcConfig;

/// Payload types of H.264 and of its retransmissions where the library uses them, too.
const PAYLOAD_TYPES: (u8, u8) = (108, 109);
/// `profile-level-id` of Constrained Baseline, level 3.1, which all browsers support.
///
/// Source: RFC 6184, section 8.1; RFC 7742, section 6.2.
const PROFILE_LEVEL: u32 = 0x42e01f;

/// Enables the one format of video that the compositor decodes and encodes.
pub fn enable_format(mut config: RtcConfig) -> RtcConfig {
    let (payload_type, retransmission) = PAYLOAD_TYPES;
    config.codec_config().add_h264(payload_type.into(), Some(retransmission.into()), true, PROFILE_LEVEL);
    config
}
