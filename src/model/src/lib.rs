//! Data types that describe a machine and its installation, with their parsers and checks, without I/O.
//!
//! [`layout`] is what an operator writes, [`inventory`] what the agent finds, [`storage_graph`] how its objects depend on
//! each other, [`allocation`] what a control plane assigns, [`install_marker`] what an installation leaves on disk, and
//! [`install_report`] what it reports.
//!
//! Everything that a document, disk, or network can contain is checked here, once, and has a type afterwards. Start with
//! [`layout`] and [`inventory`].

pub mod allocation;
pub mod bmc;
pub mod boot_contents;
pub mod cmdline;
pub mod deploy_steps;
pub mod device;
pub mod diagram;
pub mod install_marker;
pub mod install_report;
pub mod inventory;
pub mod ironic_raid;
pub mod k8s_volume;
pub mod layout;
pub mod machine_identity;
pub mod migration;
pub mod os_definition;
pub mod pool_disks;
pub mod registry_auth;
pub mod storage_graph;
