//! Requests of a migration of a machine to the hardware of another one: `operator_requests` handles those of the operator and
//! `machine_requests` those of the two machines, `offer` builds the responses to these, `machine_migration` describes the role of a
//! machine, and `machine_file_update` applies the result to the operator's files. `store::migration` contains its states and their transitions.

pub(crate) mod machine_file_update;
pub mod machine_migration;
pub(crate) mod machine_requests;
pub(crate) mod offer;
pub mod operator_requests;

pub use store::migration::*;
