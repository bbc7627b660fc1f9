//! A tree of files: the tar that comes out of the flow, below the target's root. Nothing leads out of the root, and nothing is touched
//! that the image does not name.
//!
//! ```text
//! members ──> announce ─ ─> announced ──> untar ──> writers
//! ```
//!
//! What reads the tar runs in a process that has no power, and tells this one of its members: whatever it says, `untar` takes it as
//! it would take it from a tar.
//!
//! Of `image` it uses `flow` alone, which it reads. It knows nothing of `get` and `raw`.
//!
//! It gives [`announce`] for that process, and for this one [`begins`], [`Announced`] and [`untar`] below a [`Root`], with a [`Counter`]
//! over all parts of an image; [`Beneath`] says what is or will be mounted there, [`Conflicts`] what the image could not put anywhere.

mod acl;
mod agreement;
mod announce;
mod announced;
mod attributes;
mod beneath;
mod copy;
mod fresh;
mod member;
mod members;
mod names;
mod pax;
mod place;
mod record;
mod root;
mod space;
mod sparse;
mod sweep;
#[cfg(test)]
pub(super) mod tests;
mod untar;
mod walk;
mod whiteout;
mod work;
mod writers;

pub use announce::announce;
#[cfg(test)]
pub use announced::here::members_of;
pub use announced::{Announced, begins};
pub use beneath::{Beneath, Conflicts, Counter, relative};
pub use root::Root;
pub use untar::{Unpacked, untar};
