//! Statements within a transaction, for tests that interleave them with the decisions of the server.

pub use crate::install_state::{parse_column, read_install_state};
pub use crate::migrations::{
    MigrationUpdate, apply_event, effective_files, find_last, find_live, handle_report, insert_migration, list_live,
    read_current_boots, store_migration,
};
pub use crate::next_boot::choose_boot;
pub use crate::orders::to_json_column;
