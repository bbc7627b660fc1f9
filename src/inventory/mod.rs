//! What is there: disks, what is on them and who holds them, and the rest of the hardware. Reads only.

mod types;

pub use types::*;
