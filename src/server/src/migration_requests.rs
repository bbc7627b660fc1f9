//! Requests about migrations. `operator_requests` handles the requests of the operator, and `machine_requests` handles
//! the requests of the two machines. `offer` builds the responses to the machines. `machine_migration` describes the
//! role of a machine, and `machine_file_update` applies the result to the operator's files. `store::migration` contains
//! the states of a migration and their transitions.

pub(crate) mod machine_file_update;
pub mod machine_migration;
pub(crate) mod machine_requests;
pub(crate) mod offer;
pub mod operator_requests;

pub use store::migration::*;
