//! The flow: the bytes of one image from whoever feeds them through digest and decoders to whoever takes them, in constant memory. Each
//! stage is a thread; what is between them is in `ring`. What would replace files waits in front of the decoders until its digest is
//! right: see `held`. The decoders, and what takes a tar apart, run in a process that has no power: see `worker` and `inside`.
//!
//! It uses nothing of `image` but itself. `get` gives it a [`Feed`]; `tree` and `raw` read what comes out. It knows neither servers nor
//! disks.
//!
//! It gives [`Arriving`], a stream on its way with its digest; [`Inside`], the other process's end of it; [`Reader`], what comes out of it,
//! and [`Stages`], who waits for whom; [`Meter`], how far it is; and [`Digest`].

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

/// 16 MiB of compressed stream: a head start while the disks are made, and patience with a decoder that is slow for a moment.
/// Each buffer wakes a thread of the worker and one here: few large ones cost less than many small ones.
const BUFFERS: usize = 16;
const BUFFER_BYTES: usize = 1 << 20;

/// Between decoder and the last stage: 24 MiB.
const PLAIN_BUFFERS: usize = 12;
const PLAIN_BUFFER_BYTES: usize = 2 << 20;
