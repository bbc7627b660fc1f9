//! metal-api's REST for what it shares with this server: `/v1/filesystemlayout`.
//!
//! What the calls change are the files of the directory, and what they show is what is in force of them.

mod answer;
mod kept;
pub mod layouts;
mod users;
