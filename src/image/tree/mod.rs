//! A tree of files: the tar that comes out of the flow, below the target's root. Nothing leads out of the root, and nothing is touched
//! that the image does not name.
//!
//! ```text
//! members ──> untar ──> writers
//! ```
//!
//! Of `image` it uses `flow` alone, which it reads. It knows nothing of `get` and `raw`.
//!
//! It gives [`untar`] below a [`Root`], with a [`Counter`] over all parts of an image; [`Beneath`] says what is or will be mounted there,
//! [`Conflicts`] what the image could not put anywhere.

mod acl;
mod attributes;
mod beneath;
mod copy;
mod fresh;
mod members;
mod names;
mod pax;
mod place;
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

pub use beneath::{Beneath, Conflicts, Counter, relative};
pub use place::Root;
pub use untar::{Unpacked, untar};
