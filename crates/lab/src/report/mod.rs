//! A run as a page that anyone can open, with what the theses printed beside it.

pub mod published;
