//! State of the server in a SQLite database. One thread owns the connection; all others send it jobs, which `job_queue` queues fairly.
//!
//! What a transition permits is decided within its transaction; a change is on disk before it is acknowledged. The crate has no knowledge
//! of HTTP or of the operator's files.
//!
//! `server_state` contains machines, digests, and what the other modules share. `database_file` opens the database file, `database_id`
//! distinguishes it from others, and `schema` defines its tables. `history` and `console_log` store events and logs of machines,
//! `install_state` the state of an allocation, `boots` the boots that may act for a machine, `registrations` its hardware,
//! `machine_identities` its UUID and MACs, and `next_boot` what it boots. `unknown_machines` are machines without a file, `machine_rename`
//! those with a new id, `migrations` migrations, and `freed_machines` machines of a previous tenant. `first_install` handles the start of a
//! first installation, `orders` reinstalls, `success_proof` decides which success of either is valid, and `adoption` stores installations
//! that the operator reports. `migration` contains the states of a migration, `approval` approved plans, `token` and `boot_token` tokens,
//! `backup` and `restore_review` backups, `image_digests` digests. `epoch` issues fencing tokens, and `confirmation` withholds work of a restored database until it is
//! confirmed.

mod adoption;
pub mod approval;
pub mod backup;
pub mod boot_activity;
pub mod boot_token;
pub mod boots;
pub mod confirmation;
mod console_log;
pub mod database_file;
pub mod database_id;
pub(crate) mod epoch;
mod first_install;
mod freed_machines;
mod history;
pub mod image_digests;
mod install_state;
mod job_queue;
pub(crate) mod lost_database;
mod machine_identities;
mod machine_rename;
pub mod migration;
mod migrations;
mod next_boot;
mod orders;
pub mod promise_check;
mod registrations;
pub(crate) mod restore_review;
pub mod sanitize;
pub mod schema;
mod server_state;
mod success_proof;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod token;
mod unknown_machines;

pub use adoption::AdoptOutcome;
pub use boot_activity::{BootActivity, MachineBoot};
pub use boots::{EnrollOutcome, Enrollment};
pub use confirmation::ConfirmOutcome;
pub use console_log::LogChunk;
pub use first_install::FirstStartOutcome;
pub use install_state::{
    FirstInstall, InstallState, ReinstallOrder, ReinstallOutcome, ReinstallOverrides, ServedInstall,
};
pub use machine_rename::RenameOutcome;
pub use migrations::{MigrationPlacement, MigrationUpdate as MoveHeard, explain_migration_block};
pub use next_boot::{BootDecision, BootTarget, FileAllocation};
pub use orders::{ATTEMPTS, CancelOutcome, OrderOutcome, OrderStart, ReportOutcome};
pub use registrations::StoredRegistration;
pub use server_state::{DATABASE, FileStamp, ServerState, StoreHooks, now};
pub use success_proof::{AttemptStart, UnprovenReason};

use server_state::to_json;
use token::TokenHash;
