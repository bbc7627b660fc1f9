//! Functions with which tests make single decisions of the server within their own transactions, and boots without
//! activity.

pub use crate::install_state::read_install_state;
pub use crate::json_columns::{parse_column, to_json_column};
pub use crate::migration_boot::effective_files;
pub use crate::migration_records::{find_last, find_live, list_live, read_current_boots, store_migration};
pub use crate::migration_transactions::install_reports::handle_report;
pub use crate::migration_transactions::{MigrationUpdate, apply_event, insert_migration};
pub use crate::next_boot::choose_boot;

/// Returns a record of boot activity in which no boot has contacted the server.
pub fn silent_boots() -> crate::boot_activity::BootActivity {
    crate::boot_activity::BootActivity::new(std::time::Duration::ZERO)
}
