//! Tests of the chip with programs, against mspdebug, and with the firmware of the LED module.

mod elf;
