//! Update of the operator's files after a migration: the allocation is moved from the machine file of the old owner
//! to that of the new owner. The database records the new owner first, and takes precedence until the files agree
//! with it. If a crash or an edit interrupts the update, it is completed at the next scan of the directory. If several
//! servers share the database, but each has its own files, each of them updates its files from the database.

use super::Migration;
use crate::AppState;
use crate::metal_api::machines::FIELDS;
use crate::metal_api::{ApiRefusal, document_edits};
use common::yaml::edit;
use model::machine_migration::MigrationSide;
use serde_json::Value;
use site::operator_files::{self, MachineSpec};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Updates the files with the results of migrations, when the server starts and whenever a new snapshot of the
/// directory is published. Returns when the server exits.
pub async fn update_migrated_files(app: Arc<AppState>) {
    let (mut directory, mut said) = (app.directory.clone(), BTreeSet::new());
    loop {
        directory.mark_unchanged();
        for migration in list_missing_results(&app).await {
            // While a machine needs confirmation after a restore, the record of the migration may be older than the
            // files, so the files are not changed.
            let unconfirmed =
                app.state.explain_unconfirmed(vec![migration.source.clone(), migration.target.clone()]).await;
            if !matches!(unconfirmed, Ok(None)) {
                continue;
            }
            let _lock = app.templates.lock_changes().await;
            match move_allocation(&app, &migration).await {
                Ok(()) => {
                    if migration.files {
                        // An error is ignored here: if the database is unavailable, its next use also fails, and
                        // reports the error.
                        let _ = app.state.record_files_updated(&migration.id, migration.state).await;
                    }
                    app.request_reload();
                }
                Err(why) if said.insert(why.clone()) => app.watch.log_problem(why),
                Err(_) => {}
            }
        }
        if directory.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the migrations whose results are missing from the files of this server. The migrations that another server
/// has already applied to its own files follow those that no server has applied yet.
async fn list_missing_results(app: &AppState) -> Vec<Migration> {
    let live = app.state.list_live_migrations().await.unwrap_or_default();
    let mut missing: Vec<Migration> = live.into_iter().filter(|migration| migration.files).collect();
    let outdated = app.directory().outdated_migrations.clone();
    let applied = outdated.iter().filter(|outdated| missing.iter().all(|migration| migration.id != outdated.id));
    let applied: Vec<Migration> = applied.map(|outdated| Migration { files: false, ..outdated.clone() }).collect();
    missing.extend(applied);
    missing
}

/// Machine file with its current text, which the published snapshot might not contain yet.
struct CurrentMachineFile {
    path: PathBuf,
    text: String,
    machine: MachineSpec,
}

impl CurrentMachineFile {
    async fn read_current(app: &AppState, id: &str) -> Result<Option<CurrentMachineFile>, String> {
        let Some(path) = app.directory().machine_files.get(id).cloned() else { return Ok(None) };
        let Some(text) = document_edits::read_file(app, &path).await.map_err(|why| why.into_message())? else {
            return Ok(None);
        };
        let wrong = |why: String| format!("{}: {why}", path.display());
        let machine = operator_files::parse_machine(&text).map_err(wrong)?;
        if machine.id != id {
            return Err(wrong(format!(
                "the machine file now describes machine {machine} instead of machine {id}",
                machine = machine.id
            )));
        }
        Ok(Some(CurrentMachineFile { path, text, machine }))
    }

    fn allocation_id(&self) -> Option<&str> {
        self.machine.allocation.as_ref().map(|allocation| allocation.id.as_str())
    }

    fn parse_document(&self) -> Result<Value, String> {
        operator_files::parse_unvalidated(&self.text)
    }

    async fn replace_text(&self, app: &AppState, new: &str) -> Result<(), String> {
        match document_edits::replace_file(app, &self.path, &self.text, new).await.map_err(|why| why.into_message())? {
            true => Ok(()),
            false => {
                app.request_reload();
                Err(format!("{file} was changed by another process in the meantime", file = self.path.display()))
            }
        }
    }
}

/// Moves the allocation to the file of the machine that owns it. The allocation is added to the new owner's file before
/// it is removed from the old owner's file, so that at least one file always contains the allocation.
async fn move_allocation(app: &AppState, migration: &Migration) -> Result<(), String> {
    let (owner, other) = match migration.state.owner_role() {
        MigrationSide::Source => (&migration.source, &migration.target),
        MigrationSide::Target => (&migration.target, &migration.source),
    };
    let said = |why: &str| {
        format!(
            "migration from machine {source} to machine {target}: cannot move allocation {allocation} to the file of \
             machine {owner}: {why}",
            allocation = migration.allocation,
            source = migration.source,
            target = migration.target
        )
    };
    let to = CurrentMachineFile::read_current(app, owner)
        .await?
        .ok_or_else(|| said("this file does not exist; create a machine file with the id of this machine"))?;
    let from = CurrentMachineFile::read_current(app, other)
        .await?
        .filter(|file| file.allocation_id() == Some(&migration.allocation));
    let now = match (to.allocation_id(), &from) {
        (Some(own), _) if own == migration.allocation => to.text.clone(),
        (Some(own), _) => {
            return Err(said(&format!("this file contains allocation {own}; remove allocation {own} from the file")));
        }
        (None, Some(from)) => {
            let text = add_allocation(&to, from).map_err(|why| said(&why))?;
            to.replace_text(app, &text).await?;
            text
        }
        (None, None) => {
            return Err(said(
                "no machine file contains the allocation; add the allocation to the file of this machine",
            ));
        }
    };
    if let Some(from) = from {
        let edited = remove_allocation(&from).map_err(|why| said(&why))?;
        from.replace_text(app, &edited.text).await?;
        // A comment that was moved with the allocation is not reported as removed.
        let gone: Vec<String> = edited.removed_comments.into_iter().filter(|comment| !now.contains(comment)).collect();
        document_edits::log_removed_comments(app, &from.path, &gone);
    }
    Ok(())
}

fn add_allocation(to: &CurrentMachineFile, from: &CurrentMachineFile) -> Result<String, String> {
    let allocation = from.parse_document()?.get("allocation").cloned().unwrap_or_default();
    let old = to.parse_document()?;
    let mut new = old.clone();
    new.as_object_mut().into_iter().for_each(|all| drop(all.insert("allocation".to_owned(), allocation.clone())));
    let is_right = |text: &str| {
        operator_files::parse_unvalidated(text).as_ref() == Ok(&new) && operator_files::parse_machine(text).is_ok()
    };
    // If possible, copies the text of the allocation with the operator's comments.
    if let Some(block) = find_allocation_block(&from.text) {
        let end = if to.text.is_empty() || to.text.ends_with('\n') { "" } else { "\n" };
        let text = format!("{}{end}{block}", to.text);
        if is_right(&text) {
            return Ok(text);
        }
    }
    edit_file(&to.path, &to.text, &old, &new, is_right).map(|edited| edited.text)
}

fn remove_allocation(from: &CurrentMachineFile) -> Result<edit::EditedYaml, String> {
    let old = from.parse_document()?;
    let mut new = old.clone();
    new.as_object_mut().into_iter().for_each(|all| drop(all.remove("allocation")));
    let is_right = |text: &str| {
        operator_files::parse_unvalidated(text).as_ref() == Ok(&new) && operator_files::parse_machine(text).is_ok()
    };
    edit_file(&from.path, &from.text, &old, &new, is_right)
}

fn edit_file(
    path: &Path,
    text: &str,
    old: &Value,
    new: &Value,
    is_right: impl Fn(&str) -> bool,
) -> Result<edit::EditedYaml, String> {
    let anew = edit::format_document(new, &FIELDS);
    document_edits::change_text(path, text, |text| edit::edit_values(text, old, new), anew, is_right)
        .map_err(ApiRefusal::into_message)
}

/// Returns the lines of the field `allocation`, or `None` if no line begins with this field.
fn find_allocation_block(text: &str) -> Option<&str> {
    let mut at = 0;
    let mut begin = None;
    for line in text.split_inclusive('\n') {
        let is_top = line.starts_with(|c: char| !c.is_whitespace() && c != '#');
        match begin {
            None if line.starts_with("allocation:") => begin = Some(at),
            Some(begin) if is_top => return text.get(begin..at),
            _ => {}
        }
        at += line.len();
    }
    text.get(begin?..)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "id: 4c4c4544-0051-3010-8031-b2c04f333633
name: a # the old one
allocation: # of the shop
  id: a1
  hostname: h # as it is called
  # the image
  image: debian-12
size: c1
";
    const B: &str = "# new\nid: 4c4c4544-0051-3010-8031-b2c04f333634\nname: b # the new one";

    fn file(text: &str) -> CurrentMachineFile {
        CurrentMachineFile {
            path: PathBuf::new(),
            text: text.to_owned(),
            machine: operator_files::parse_machine(text).unwrap(),
        }
    }

    #[test]
    fn allocation_moves_between_files_with_its_comments() {
        let with = add_allocation(&file(B), &file(A)).unwrap();
        let block =
            "allocation: # of the shop\n  id: a1\n  hostname: h # as it is called\n  # the image\n  image: debian-12\n";
        assert_eq!(with, format!("{B}\n{block}"));
        let without = remove_allocation(&file(A)).unwrap();
        assert!(
            without.text.contains("name: a # the old one") && without.text.contains("size: c1"),
            "{}",
            without.text
        );
        assert!(operator_files::parse_machine(&without.text).unwrap().allocation.is_none());
        // The allocation is moved back to the first file.
        let back = add_allocation(&file(&without.text), &file(&with)).unwrap();
        assert!(back.ends_with(block), "{back}");
    }

    #[test]
    fn flow_style_machine_file_is_edited() {
        let a = "{id: 4c4c4544-0051-3010-8031-b2c04f333633, allocation: {id: a1, hostname: h, image: i}}\n";
        let with = add_allocation(&file(B), &file(a)).unwrap();
        assert!(with.starts_with(B), "{with}");
        assert_eq!(*operator_files::parse_machine(&with).unwrap().allocation.unwrap().id, "a1");
        let without = remove_allocation(&file(a)).unwrap();
        assert!(operator_files::parse_machine(&without.text).unwrap().allocation.is_none(), "{}", without.text);
    }
}
