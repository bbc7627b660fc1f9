//! metal-api's REST API for objects that this server has too: `/v1/filesystemlayout`, `/v1/image`, `/v1/size` and `/v1/machine`; and, in
//! the same style, the Kubernetes volumes of machines.
//!
//! Requests change the files of the directory, and responses show the versions in effect.

mod answer;
mod change;
pub mod images;
pub mod kept;
pub mod layouts;
pub mod machines;
pub mod sizes;
pub mod states;
mod users;
pub mod volumes;

pub use answer::{Refusal, Refused};
pub use change::{Change, Turn};
