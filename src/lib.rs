//! Bare-metal installation from a ramdisk: a plan is computed from a layout and the machine's inventory, the plan is executed, and the
//! result is booted.
//!
//! Start with [`agent`]: it runs the whole installation, from top to bottom.

#[cfg(feature = "agent")]
pub mod agent;
pub mod allocation;
#[cfg(any(feature = "agent", feature = "desk", feature = "serve"))]
pub mod assigned;
#[cfg(feature = "serve")]
pub mod bmc;
#[cfg(feature = "agent")]
pub mod boot;
#[cfg(feature = "agent")]
pub mod burn;
pub mod carried;
pub mod cli;
#[cfg(any(feature = "survey", feature = "serve"))]
pub mod command;
pub mod console;
pub mod contents;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod control;
pub mod definition;
#[cfg(feature = "desk")]
pub mod desk;
pub mod device;
#[cfg(test)]
mod docs;
#[cfg(feature = "survey")]
pub mod efi;
mod empty;
pub mod error;
pub mod exit;
pub mod facts;
#[cfg(feature = "agent")]
pub mod gpt;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod http;
#[cfg(feature = "agent")]
pub mod image;
pub mod inventory;
#[cfg(feature = "agent")]
pub mod ironic;
#[cfg(feature = "survey")]
pub mod jail;
pub mod kmsg;
pub mod layout;
#[cfg(feature = "survey")]
pub mod look;
pub mod machine_identity;
pub mod marker;
#[cfg(feature = "agent")]
pub mod moving;
pub mod network;
#[cfg(feature = "serve")]
pub mod operator;
mod order;
#[cfg(all(feature = "agent", feature = "desk"))]
pub mod pack;
#[cfg(feature = "agent")]
pub mod pem;
#[cfg(any(feature = "desk", feature = "serve"))]
pub mod picture;
pub mod plan;
pub mod problem;
pub mod pull;
pub mod raid;
#[cfg(feature = "agent")]
pub mod ready;
#[cfg(feature = "agent")]
pub mod reinstall;
#[cfg(feature = "agent")]
pub mod report;
#[cfg(test)]
mod rooms;
#[cfg(feature = "schema")]
mod schema;
#[cfg(feature = "serve")]
pub mod serve;
#[cfg(feature = "agent")]
pub mod session;
pub mod settings;
#[cfg(feature = "shell")]
pub mod shell;
pub mod stdout;
pub mod steps;
#[cfg(feature = "agent")]
pub mod storage;
#[cfg(feature = "survey")]
pub mod survey;
#[cfg(feature = "agent")]
pub mod target;
#[cfg(test)]
mod testing;
pub mod text;
pub mod topology;
#[cfg(feature = "agent")]
pub mod uplink;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod verify;
pub mod volume;
mod yaml;
