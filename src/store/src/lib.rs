//! State of the server in a SQLite or PostgreSQL database. One thread owns the connection. All other threads send it
//! jobs, which `fair_queue` schedules fairly between clients. Several servers may share a PostgreSQL database.
//!
//! Each change of state is decided within the transaction that stores it, and is on disk before it is acknowledged. The
//! crate does not depend on HTTP or on the operator's files.
//!
//! The crate has three layers. Each layer uses only the layers above it in this list, and no two modules use each
//! other:
//!
//! * **Database.** `sql` is the interface to both engines, and `store_address` is the address of a PostgreSQL database.
//!   `postgres_database` opens such a database, `change_scope` lists the machines that a change affects,
//!   `change_listener` receives the changes of other servers, and `store_transfer`, `table_copy` and
//!   `moved_database_mark` copy records between the engines. `database_handle` is the handle on the database, and
//!   stores events. `group_commit` is the thread of the database, `durable_transactions` runs transactions that must
//!   not be lost, and `read_connection` is a second connection for lists. `database_file` opens the file,
//!   `database_id` distinguishes the file from others, and `schema` defines its tables. `lost_records` records that
//!   the database has replaced a lost one, and `database_loss_stop` stops the server after a loss. `database_epoch`
//!   issues fencing tokens, `json_columns` reads and writes columns of JSON, and `token_hash` and `boot_token` contain
//!   tokens.
//! * **Records.** `event_history` stores the events and the history of machines, `console_log` stores their logs, and
//!   `record_retention` deletes old events and logs. `hardware_registrations` stores the hardware of machines,
//!   `machine_contact` reads when and from which address they were seen, and `machine_identities` reads their UUIDs
//!   and MACs. `image_digest_cache` computes and caches digests. `registered_boots` stores registered boots.
//!   `unknown_machines` stores machines that have no machine file, and `freed_machines` determines which machines may
//!   still run the system of a previous tenant. `install_attempt` contains the records of attempts, `attempt_failure`
//!   contains the reasons why attempts have failed, and `installed_allocation` contains the fields with which an
//!   allocation was installed. `reinstall_order_records` stores orders for reinstalls. `machine_migration` defines
//!   the states of a migration, and `migration_records` stores migrations. `disk_boot_prohibitions` stores the
//!   allocations that a machine must no longer boot after a migration, and `incomplete_installations` finds
//!   installations that have started and are not complete. `plan_approval` defines the files with approved plans.
//!   `restore_confirmation` withholds installations and migrations after a restore until the records are confirmed,
//!   and `install_state` combines all records of an allocation. `operator_documents` stores the operator's files of
//!   servers that share a PostgreSQL database. `users` stores users with their roles, `oidc_users` logs in users of
//!   an identity provider, `user_tokens` stores the hashes of users' tokens, `login_sessions` stores the sessions of
//!   the web page of several servers, and `audit` stores the audit log. `audit_transactions` marks the entries whose
//!   request has changed the database. `server_leases` stores which server owns an action on a management controller,
//!   and `shared_clock` is the clock of all servers.
//! * **Decisions.** `success_proof` decides whether a reported success is valid. `first_install` handles the start of
//!   a first installation, and `reinstall_orders` handles reinstalls. `out_of_band_runs` handles the steps that run
//!   through management controllers before an installation, `migration_transactions` handles migrations, and
//!   `unrecorded_installations` handles installations that the operator reports, as far as `waiting_marker` accepts
//!   the marker that the operator has seen. `next_boot` decides which `boot_target` a machine boots, and
//!   `migration_boot` determines how migrations affect this decision. `boot_registration` decides which boot of the
//!   machine is the current one. `machine_summary_records` reads everything that the summary of a machine contains,
//!   and `record_copy` speeds up reading the records of many machines. `rollouts` stores rollouts, and decides which
//!   of their members are reinstalled next. `machine_rename` transfers records to a new id. `backup` and
//!   `post_restore_steps` copy and restore the database, and `postgres_backup` marks the backups of PostgreSQL
//!   databases.

pub mod address_ranges;
mod attempt_failure;
pub mod audit;
mod audit_retention;
mod audit_transactions;
pub mod backup;
pub mod boot_activity;
mod boot_registration;
mod boot_target;
pub mod boot_token;
mod change_listener;
mod change_scope;
pub mod changed_record_tracking;
mod console_log;
pub(crate) mod database_epoch;
pub mod database_file;
mod database_handle;
pub mod database_id;
mod database_loss_stop;
mod disk_boot_prohibitions;
pub mod document_protection;
mod durable_transactions;
mod event_history;
mod fair_queue;
mod first_install;
mod freed_machines;
mod group_commit;
mod hardware_registrations;
pub mod image_digest_cache;
mod incomplete_installations;
mod install_attempt;
mod install_state;
mod installed_allocation;
mod json_columns;
pub mod json_sanitizer;
pub mod login_sessions;
pub(crate) mod lost_records;
mod machine_contact;
mod machine_identities;
pub mod machine_migration;
mod machine_rename;
mod machine_summary_records;
pub mod marker_layout_comparison;
mod migration_boot;
mod migration_records;
mod migration_transactions;
mod moved_database_mark;
mod next_boot;
pub mod oidc_users;
pub mod operator_documents;
mod out_of_band_runs;
pub mod plan_approval;
pub(crate) mod post_restore_steps;
mod postgres_backup;
mod postgres_database;
mod read_connection;
mod record_copy;
pub mod record_retention;
pub mod registered_boots;
mod reinstall_order_records;
mod reinstall_orders;
pub mod required_approval;
pub mod restore_confirmation;
pub mod rollouts;
pub mod schema;
pub mod server_leases;
mod shared_clock;
pub mod sql;
pub mod store_address;
pub mod store_transfer;
mod success_proof;
mod table_copy;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;
pub mod token_hash;
mod unknown_machines;
mod unrecorded_installations;
pub mod user_tokens;
pub mod users;
mod waiting_marker;

pub use attempt_failure::AttemptFailure;
pub use boot_activity::{BootActivity, MachineBoot};
pub use boot_registration::{EnrollOutcome, RegisteringClient};
pub use boot_target::{BootTarget, FileAllocation};
pub use change_listener::ChangeReceiver;
pub use change_scope::ChangeScope;
pub use common::timestamp::now;
pub use console_log::LogChunk;
pub use database_handle::{DATABASE, ServerState, StoreHooks};
pub use event_history::{HistoryEntry, HistoryKind};
pub use first_install::FirstStartOutcome;
pub use freed_machines::ReleaseOutcome;
pub use hardware_registrations::StoredRegistration;
pub use image_digest_cache::FileStamp;
pub use install_attempt::{ATTEMPTS, AttemptStart};
pub use install_state::{FirstInstall, InstallState, ServedInstall};
pub use installed_allocation::{AllocationFields, InstalledAllocation};
pub use machine_contact::MachineContact;
pub use machine_rename::RenameOutcome;
pub use machine_summary_records::MachineRecords;
pub use migration_records::explain_migration_block;
pub use migration_transactions::{CopyStart, MigrationPlacement, MigrationUpdate};
pub use next_boot::BootDecision;
pub use out_of_band_runs::{BootAdmission, OutOfBandRequest, OutOfBandRun, RunPhase};
pub use record_copy::COPY_FROM;
pub use reinstall_order_records::{ReinstallOrder, ReinstallOutcome, ReinstallOverrides};
pub use reinstall_orders::{CancelOutcome, OrderBasis, OrderOutcome, OrderStart, ReportOutcome};
pub use restore_confirmation::ConfirmOutcome;
pub use success_proof::UnprovenReason;
pub use unknown_machines::DEFAULT_UNKNOWN_MACHINES_LIMIT;
pub use unrecorded_installations::{AdoptOutcome, explain_lasting_adoption};
pub use waiting_marker::{ConfirmedMarker, SHORT_DIGEST_DIGITS, WaitingMarker};

use database_handle::to_json;
use token_hash::TokenHash;
