//! The pipeline of one image: from its source through digest and decoder to the consumer, in constant memory. Each
//! stage is a thread, connected by `ring`. A stream that would replace files is held back in front of the decoder until
//! its digest is verified (`held`). The decoder and the tar reader run in a sandboxed process (`worker` and `inside`).
//!
//! It uses no other module of `image`. `get` provides a [`Feed`]; `tree` and `raw` read the output. It has no knowledge
//! of servers or disks.
//!
//! It provides [`Arriving`], a stream being downloaded, with its digest; [`Inside`], the worker's side of it;
//! [`Reader`], its output; [`Stages`], the time that stages wait for each other; [`Meter`], the progress; and
//! [`Digest`].

mod arriving;
mod decode;
mod digest;
mod held;
mod inside;
mod lent;
mod progress;
mod reader;
mod ring;
mod room;
mod shared;
mod stages;
mod wire;
mod worker;

pub use arriving::{Arriving, Feed, Told};
#[cfg(test)]
pub use decode::decode;
pub use decode::{Format, Plain};
pub use digest::{Digest, Digesting, Kind};
pub use held::Hold;
pub use inside::{Inside, Outlet, pass_on};
pub use progress::{Meter, telling};
pub use reader::Reader;
pub use ring::{Chunk, Filling, Pool};
#[cfg(test)]
pub use ring::{Sender, pipe};
pub use room::too_little_for;
pub use stages::{Average, Clock, Stages};
pub use wire::{Words, add_text};

/// 16 MiB of compressed stream: a head start while the disks are partitioned, and slack for a decoder that is slow for
/// a moment. Each buffer wakes a thread of the worker and one here, so few large ones cost less than many small ones.
const BUFFERS: usize = 16;
const BUFFER_BYTES: usize = 1 << 20;

/// Buffers between the decoder and the last stage: 24 MiB.
const PLAIN_BUFFERS: usize = 12;
const PLAIN_BUFFER_BYTES: usize = 2 << 20;
