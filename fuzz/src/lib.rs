//! Code that several fuzz targets share.

pub mod file;
pub mod world;
