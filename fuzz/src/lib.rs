//! Code that several fuzz targets share.

pub mod device;
pub mod file;
pub mod world;
