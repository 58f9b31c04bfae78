//! Simulates a buffer whose process and disk fail at any write, in front of a server that fails, too.

mod disk;
mod simulation;
