//! Unpacks the tar of the pipeline to files below the target's root. Nothing is written outside of the root, and
//! existing files that the image does not contain remain unchanged, unless a whiteout removes them.
//!
//! ```text
//! tar parser ──> worker ─ ─> agent ──> untar ──> writers
//! ```
//!
//! The tar is parsed in a sandboxed process, which sends the members to the agent. Since this process may be
//! compromised, `untar` checks the members as if it had parsed the tar itself.
//!
//! This module reads the output of `pipeline`, and uses no other module of `image`.
//!
//! For the worker, this module provides [`send_members`]. For the agent, it provides [`check_beginning`],
//! [`MemberReceiver`], and [`untar`], which unpacks below an [`UnpackRoot`] and counts hidden files with a
//! [`HiddenFileCounter`]. [`MountsBelow`] lists the filesystems that are or will be mounted below the root, and
//! [`FileConflicts`] lists the files that could not be created.

mod acl;
mod attributes;
mod capacity_limit;
mod files_hidden_by_mounts;
mod hard_link;
mod header_block_limit;
mod member_frames;
mod member_receiver;
mod name_set;
mod parent_resolution;
mod pax;
mod rollback;
mod root_entry;
mod sparse;
mod tar_header_ambiguity;
mod tar_member;
mod tar_parser;
mod tar_parser_worker;
#[cfg(test)]
pub(super) mod tests;
mod tree_removal;
mod unpack_root;
mod untar;
mod whiteout;
mod writer_pool;

pub use files_hidden_by_mounts::{FileConflicts, HiddenFileCounter, MountsBelow, relative_paths};
#[cfg(test)]
pub(crate) use member_receiver::here::members_of;
pub(crate) use member_receiver::{MemberReceiver, check_beginning};
pub(crate) use tar_parser_worker::send_members;
pub(crate) use unpack_root::UnpackRoot;
pub(crate) use untar::{UnpackResult, untar};
