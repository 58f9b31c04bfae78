use super::nal::Truncated;

/// Reason why an access unit is not decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("a NAL unit is truncated")]
    Truncated,
    #[error("the profile is not Baseline")]
    Profile,
    #[error("the frame is larger than 1280x720, or needs too many reference frames")]
    FrameSize,
    #[error("the stream is interlaced, or its pictures are not output in the order of decoding")]
    Order,
    #[error("a parameter set has an invalid id")]
    Id,
    #[error("the stream uses CABAC or slice groups")]
    Tool,
    #[error("the access unit has B, SP or SI slices, too many slices, or more than one picture")]
    Slices,
}

impl From<Truncated> for Unsupported {
    fn from(Truncated: Truncated) -> Self {
        Self::Truncated
    }
}
