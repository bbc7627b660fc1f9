//! The flow: the bytes of one image from whoever feeds them through digest and decoders to whoever takes them, in constant memory. Each
//! stage is a thread; what is between them is in `ring`. What would replace files waits in front of the decoders until its digest is
//! right: see `held`.
//!
//! It uses nothing of `image` but itself. `get` gives it a [`Feed`]; `tree` and `raw` read what comes out. It knows neither servers nor
//! disks.
//!
//! It gives [`Arriving`], a stream on its way with its digest; [`Reader`], what comes out of it, and [`Stages`], who waits for whom;
//! [`Meter`], how far it is; and [`Digest`].

mod arriving;
mod decode;
mod digest;
mod held;
mod progress;
mod ring;
mod room;
mod stages;

pub use arriving::{Arriving, Feed, Told};
#[cfg(test)]
pub use decode::decode;
pub use decode::{Format, Plain};
pub use digest::{Digest, Digesting, Kind};
pub use held::Hold;
pub use progress::{Meter, telling};
pub use ring::{Chunk, Reader};
#[cfg(test)]
pub use ring::{Pool, pipe};
pub use room::too_little_for;
pub use stages::{Average, Clock, Stages};
