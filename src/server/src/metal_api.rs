//! metal-api's REST API for objects that this server has too: `/v1/filesystemlayout`, `/v1/image`, `/v1/size` and `/v1/machine`; and, in
//! the same style, the Kubernetes volumes of machines.
//!
//! Requests change the files of the directory, and responses show the versions in effect.

mod edit_turn;
pub mod edited_files;
pub mod image_states;
pub mod images;
pub mod layouts;
pub mod machines;
mod references;
mod refusal;
pub mod sizes;
pub mod volumes;

pub use edit_turn::{EditRequest, EditTurn};
pub use refusal::{ApiRefusal, RefusalBody};
