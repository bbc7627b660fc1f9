//! metal-api's REST API for the object types that metal-api and this server have in common: `/v1/filesystemlayout`,
//! `/v1/image`, `/v1/size` and `/v1/machine`. The endpoints for the Kubernetes volumes of machines have the same style,
//! although metal-api has no such endpoints.
//!
//! Requests change files in the server's directory. Responses show the versions of the files that are in effect.

mod allocation_response;
mod api_refusal;
pub mod document_edits;
mod edit_permit;
pub(crate) mod image_states;
pub(crate) mod images;
pub(crate) mod layouts;
mod machine_choice;
pub(crate) mod machine_file_edits;
pub mod machine_file_replacement;
pub mod machine_lock;
pub(crate) mod machine_response;
pub mod machines;
pub mod os_definitions;
pub mod os_parameters;
mod referencing_machines;
pub(crate) mod sizes;
pub mod volumes;

pub use api_refusal::ApiRefusal;
pub(crate) use api_refusal::RefusalBody;
pub use edit_permit::{EditPermit, EditRequest};
