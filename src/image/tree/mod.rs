//! Unpacking the tar of the pipeline to files below the target's root. Nothing is written outside of the root, and
//! nothing is touched that the image does not contain.
//!
//! ```text
//! tar parser ──> worker ─ ─> agent ──> untar ──> writers
//! ```
//!
//! The tar is parsed in a sandboxed process, which sends its members to this one. `untar` trusts them no more than
//! members of a tar.
//!
//! It uses no other module of `image` but `flow`, whose output it reads.
//!
//! It provides [`announce`] for the worker, and for the agent [`begins`], [`Announced`] and [`untar`] below a [`Root`],
//! with a [`Counter`] over all parts of an image. [`Beneath`] lists what is or will be mounted there, and [`Conflicts`]
//! what the image could not create.

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
