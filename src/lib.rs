//! drophammer installs bare-metal servers from a ramdisk: layout and inventory become a plan, the plan is executed,
//! the result is booted.
//!
//! Read [`agent`] first: it is the whole install, top to bottom.

pub mod allocation;
pub mod boot;
pub mod command;
pub mod control;
pub mod error;
pub mod http;
pub mod execute;
pub mod image;
pub mod inventory;
pub mod layout;
pub mod plan;
pub mod problem;
pub mod report;
#[cfg(feature = "serve")]
pub mod serve;
pub mod settings;
pub mod text;
pub mod storage;
pub mod target;
