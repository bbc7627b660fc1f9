//! The operator's YAML files: machines, layouts, images, sizes, deploy templates, OS definitions and approvals.
//!
//! An invalid file is reported, and its last valid version stays in force. A machine file also counts as invalid if
//! its image or layout does not exist. The crate does not handle requests: `api` publishes its snapshots, and `site
//! plan` and `serve --check` read the same directory.
//!
//! Start with `loader`, which builds a `snapshot` of all files in force; `machine_refresh` updates single machines
//! in a snapshot. `controller_index` finds management controllers that several machine files contain.
//! `operator_files` parses and validates files, `effective_allocation` determines the allocation that applies,
//! `allocation_resolution` resolves its references, and `requested_steps` merges the deploy templates that the
//! allocation requests. `documents` is the source of the files: the directory, or the database that several servers
//! share.

pub mod allocation_resolution;
pub mod approved_input_digests;
pub mod boot_value_validation;
pub mod controller_index;
pub mod deploy_templates;
pub mod documents;
mod duplicate_ids;
pub mod effective_allocation;
pub mod ganeti_os_definition_state;
pub mod ganeti_os_definitions;
pub mod image_states;
pub mod loader;
pub mod machine_refresh;
pub mod migrated_allocations;
pub mod operator_files;
pub mod plan_approvals;
pub mod readable_secrets;
mod registry_credentials;
pub mod requested_steps;
pub mod site_objects;
pub mod sizes;
pub mod snapshot;
#[cfg(test)]
mod test_store;
pub mod unusable_files;
pub mod watched_file;
pub mod yaml_folder;

#[cfg(test)]
testing::workers!(linux::verify_program::WORKER => || -> std::io::Result<()> { linux::verify_program::worker::run_verify_worker() });
