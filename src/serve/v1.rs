//! metal-api's REST for what it shares with this server: `/v1/filesystemlayout`, `/v1/image`, `/v1/size` and
//! `/v1/machine`; and in the same manner the volumes of Kubernetes of machines.
//!
//! What the calls change are the files of the directory, and what they show is what is in force of them.

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
