//! Data types that describe a machine and its installation, with their parsers and checks, without I/O.
//!
//! [`layout`] describes the disks as specified by the operator. [`inventory`] describes the hardware and disks that the
//! agent finds. [`storage_graph`] describes the stacking of block devices. [`allocation`] describes the image, layout
//! and settings that a control plane assigns to a machine. [`install_marker`] is the record of an installation on the
//! disks, and [`install_report`] is the report to the control plane.
//!
//! All data from documents, disks or the network is checked once, in this crate, and is then represented by types.
//! Start with [`layout`] and [`inventory`].

pub mod agent_kernel_arguments;
pub mod allocation;
pub mod architecture;
pub mod bmc;
pub mod deploy_steps;
pub mod device_name;
pub mod disk_identifiers;
pub mod ganeti_os_definition;
pub mod image_boot_contents;
pub mod install_marker;
pub mod install_report;
pub mod inventory;
pub mod ironic_raid;
pub mod k8s_volume;
pub mod kernel_command_line;
pub mod layout;
pub mod machine_identity;
pub mod machine_migration;
pub mod pool_machine_disks;
pub mod registry_auth;
pub mod secret_text;
pub mod storage_graph;
