//! Requests about migrations. `operator_requests` handles requests of the operator, and `machine_requests` those of the two machines, for
//! which `offer` builds the responses. `machine_migration` describes the role of a machine, and `machine_file_update` applies the result
//! to the operator's files. `store::migration` contains the states of a migration and their transitions.

pub(crate) mod machine_file_update;
pub mod machine_migration;
pub(crate) mod machine_requests;
pub(crate) mod offer;
pub mod operator_requests;

pub use store::migration::*;
