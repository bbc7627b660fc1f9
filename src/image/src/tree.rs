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
//! It uses no other module of `image` but `pipeline`, whose output it reads.
//!
//! It provides [`send_members`] for the worker, and for the agent [`check_beginning`], [`MemberReceiver`] and [`untar`] below a [`UnpackRoot`],
//! with a [`HiddenFileCounter`] over all parts of an image. [`MountsBelow`] lists what is or will be mounted there, and [`FileConflicts`]
//! what the image could not create.

mod acl;
mod ambiguity;
mod attributes;
mod dirfd;
mod hard_link;
mod header_budget;
mod member;
mod member_codec;
mod mounts;
mod name_set;
mod pax;
mod quota;
mod remove_tree;
mod resolve;
mod rollback;
mod root;
mod sparse;
mod tar_client;
mod tar_parser;
#[cfg(test)]
pub(super) mod tests;
mod untar;
mod whiteout;
mod worker_tar;
mod writers;

pub use mounts::{FileConflicts, HiddenFileCounter, MountsBelow, relative_paths};
pub(crate) use root::UnpackRoot;
#[cfg(test)]
pub(crate) use tar_client::here::members_of;
pub(crate) use tar_client::{MemberReceiver, check_beginning};
pub(crate) use untar::{UnpackResult, untar};
pub(crate) use worker_tar::send_members;
