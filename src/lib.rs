//! Bare-metal installation from a ramdisk: a plan is computed from a layout and the machine's inventory, the plan is executed, and the
//! result is booted.
//!
//! Start with [`agent`]: it runs the whole installation, from top to bottom.

#[cfg(feature = "agent")]
pub mod agent;
pub mod allocation;
#[cfg(feature = "serve")]
pub mod bmc;
#[cfg(feature = "agent")]
pub mod boot;
pub mod boot_contents;
#[cfg(feature = "agent")]
pub mod burn;
pub mod cli;
pub mod cmdline;
#[cfg(feature = "desk")]
pub mod commands;
#[cfg(feature = "shell")]
pub mod completions;
pub mod console;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod control_plane;
pub mod deploy_steps;
pub mod device;
pub mod diagnostic;
#[cfg(any(feature = "desk", feature = "serve"))]
pub mod diagram;
#[cfg(test)]
mod docs;
#[cfg(feature = "survey")]
pub mod efi;
pub mod error;
#[cfg(feature = "agent")]
pub mod executor;
pub mod exit_code;
pub mod format;
#[cfg(feature = "agent")]
pub mod gpt;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod http;
#[cfg(feature = "agent")]
pub mod image;
#[cfg(all(feature = "agent", feature = "desk"))]
pub mod image_pack;
pub mod install_marker;
pub mod install_report;
pub mod inventory;
#[cfg(feature = "survey")]
pub mod inventory_command;
#[cfg(feature = "agent")]
pub mod ironic;
pub mod ironic_raid;
#[cfg(feature = "schema")]
mod json_schema;
pub mod k8s_volume;
pub mod kernel_log;
pub mod layout;
pub mod machine_identity;
pub mod migration;
pub mod netconfig;
#[cfg(feature = "agent")]
pub mod newroot;
#[cfg(feature = "serve")]
pub mod operator_client;
pub mod os_definition;
pub mod output;
#[cfg(feature = "agent")]
pub mod pem;
pub mod plan;
#[cfg(any(feature = "agent", feature = "desk", feature = "serve"))]
pub mod plan_request;
#[cfg(feature = "agent")]
pub mod preflight;
#[cfg(feature = "survey")]
pub mod probe;
#[cfg(any(feature = "survey", feature = "serve"))]
pub mod process;
#[cfg(feature = "agent")]
pub mod ramdisk_network;
pub mod registry_auth;
#[cfg(feature = "agent")]
pub mod reinstall;
#[cfg(feature = "agent")]
pub mod report;
#[cfg(test)]
mod rooms;
#[cfg(feature = "survey")]
pub mod safe_open;
mod serde_empty;
#[cfg(feature = "serve")]
pub mod server;
mod small_sort;
#[cfg(feature = "agent")]
pub mod storage;
pub mod storage_graph;
#[cfg(test)]
mod testing;
#[cfg(feature = "agent")]
pub mod transfer;
#[cfg(any(feature = "agent", feature = "serve"))]
pub mod verify;
mod yaml;
