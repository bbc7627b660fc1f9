//! drophammer installs bare-metal servers from a ramdisk: layout and inventory become a plan, the plan is executed,
//! the result is booted.
//!
//! Read [`agent`] first: it is the whole install, top to bottom.

#[cfg(feature = "agent")]
pub mod agent;
pub mod allocation;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod assigned;
#[cfg(feature = "agent")]
pub mod boot;
#[cfg(feature = "agent")]
pub mod burn;
pub mod cli;
pub mod command;
pub mod control;
pub mod desk;
#[cfg(test)]
mod docs;
pub mod error;
#[cfg(feature = "agent")]
pub mod execute;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod http;
#[cfg(feature = "agent")]
pub mod image;
pub mod inventory;
pub mod layout;
pub mod marker;
#[cfg(feature = "serve")]
pub mod operator;
#[cfg(all(feature = "agent", feature = "desk"))]
pub mod pack;
pub mod plan;
pub mod problem;
#[cfg(feature = "agent")]
pub mod reinstall;
#[cfg(feature = "agent")]
pub mod report;
#[cfg(feature = "serve")]
pub mod serve;
pub mod settings;
#[cfg(feature = "agent")]
pub mod storage;
#[cfg(feature = "agent")]
pub mod target;
pub mod text;
#[cfg(any(feature = "agent", feature = "serve"))]
mod yaml;
