//! Renaming of machines whose id changes because of a new mainboard or new firmware. All records of the machine are
//! transferred to its new id.

use super::boot_activity::BootActivity;
use super::registered_boots::current_boot;
use super::{ServerState, migration_records, out_of_band_runs, required_approval, restore_confirmation, rollouts};
use crate::sql::{self, OptionalExtension, Transaction};
use common::error::Result;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RenameOutcome {
    Done,
    /// The machine cannot be renamed. Contains the reason.
    Refused(String),
}

impl ServerState {
    /// Transfers all records of the machine `old` to the id `new`, and records `old` as a former id.
    ///
    /// # Errors
    /// Returns an error if the database cannot be read or written.
    pub async fn rename_machine(&self, old: &str, new: &str) -> Result<RenameOutcome> {
        let (old, new, heard) = (old.to_owned(), new.to_owned(), self.heard.clone());
        self.run_durably(move |transaction| {
            for machine in [&old, &new] {
                if let Some(why) = migration_records::explain_block(transaction, machine)? {
                    return Ok(RenameOutcome::Refused(why));
                }
            }
            let has = |machine: &str, which: &str| -> sql::Result<Option<String>> {
                let select = format!("SELECT id FROM allocations WHERE machine = ?1 AND {which} LIMIT 1");
                transaction.query_row(&select, [machine], |row| row.get(0)).optional()
            };
            if has(&old, "true")?.is_none() {
                return Ok(RenameOutcome::Refused(format!("the server has no record of machine {old}")));
            }
            if let Some(own) = has(&new, "(succeeded = 1 OR adopted IS NOT NULL OR begun IS NOT NULL)")? {
                let message = format!("machine {new} already has an installation of its own: allocation {own}");
                return Ok(RenameOutcome::Refused(message));
            }
            if is_installing(transaction, &old, &heard)? {
                return Ok(RenameOutcome::Refused(format!(
                    "an installation of machine {old} has passed its point of no return: wait until it has ended"
                )));
            }
            rename_rows(transaction, &old, &new)?;
            Ok(RenameOutcome::Done)
        })
        .await
    }
}

/// Returns whether an installation of the machine has started and the boot that may carry it out is active. After a
/// rename, the reports of this boot would be refused, although the installation continues.
fn is_installing(transaction: &Transaction, machine: &str, heard: &BootActivity) -> sql::Result<bool> {
    let Some(boot) = current_boot(transaction, machine)?.filter(|boot| heard.is_active(boot)) else {
        return Ok(false);
    };
    let select = "SELECT 1 FROM orders WHERE machine = ?1 AND begun > 0 AND given_up = 0
         UNION ALL SELECT 1 FROM allocations WHERE machine = ?1 AND begun IS NOT NULL AND succeeded = 0";
    Ok(boot.started || transaction.prepare_cached(select)?.exists([machine])?)
}

fn rename_rows(transaction: &Transaction, old: &str, new: &str) -> sql::Result<()> {
    // The caller has verified that no installation under the new id was started, completed or adopted, so the rows of
    // the new id can be deleted.
    for table in ["allocations", "layouts", "orders"] {
        transaction.execute(&format!("DELETE FROM {table} WHERE machine = ?1"), [new])?;
        transaction.execute(&format!("UPDATE {table} SET machine = ?2 WHERE machine = ?1"), [old, new])?;
    }
    required_approval::rename_requirements(transaction, new)?;
    restore_confirmation::rename_confirmation(transaction, old, new)?;
    out_of_band_runs::rename_run(transaction, old, new)?;
    rollouts::rename_member(transaction, old, new)?;
    let replaced =
        "DELETE FROM barred WHERE machine = ?2 AND allocation IN (SELECT allocation FROM barred WHERE machine = ?1)";
    transaction.execute(replaced, [old, new])?;
    transaction.execute("UPDATE barred SET machine = ?2 WHERE machine = ?1", [old, new])?;
    for table in ["events", "history"] {
        transaction.execute(&format!("UPDATE {table} SET machine = ?2 WHERE machine = ?1"), [old, new])?;
    }
    let replaced = "DELETE FROM log WHERE machine = ?2 AND EXISTS (SELECT 1 FROM log other
         WHERE other.machine = ?1 AND other.boot = log.boot AND other.start = log.start)";
    transaction.execute(replaced, [old, new])?;
    transaction.execute("UPDATE log SET machine = ?2 WHERE machine = ?1", [old, new])?;
    // The hardware and boots that the machine has reported under its new id are newer, so they are preserved.
    let rename = "UPDATE machines SET id = ?2 WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM machines WHERE id = ?2)";
    let moved = transaction.execute(rename, [old, new])?;
    if moved > 0 {
        // The mainboard was replaced, so the UUID of the old mainboard is no longer expected, and is removed.
        transaction.execute("UPDATE machines SET smbios_uuid = '' WHERE id = ?1", [new])?;
    }
    transaction.execute("DELETE FROM machines WHERE id = ?1", [old])?;
    let boots =
        transaction.query_row("SELECT count(*) FROM boots WHERE machine = ?1", [new], |row| row.get::<_, u32>(0))?;
    if boots == 0 {
        transaction.execute("UPDATE boots SET machine = ?2 WHERE machine = ?1", [old, new])?;
    }
    transaction.execute("DELETE FROM boots WHERE machine = ?1", [old])?;
    transaction.execute("UPDATE former SET machine = ?2 WHERE machine = ?1", [old, new])?;
    transaction.execute("DELETE FROM former WHERE former = ?1", [new])?;
    let insert = "INSERT INTO former (former, machine) VALUES (?1, ?2) ON CONFLICT (former) DO UPDATE SET machine = ?2";
    transaction.execute(insert, [old, new])?;
    Ok(())
}
