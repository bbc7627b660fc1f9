//! Changes of machine files by API requests.

use super::api_refusal::{ApiRefusal, ApiResult};
use super::document_edits::file_edits::StagedFile;
use super::document_edits::{self, EditedObject, change_text, log_removed_comments, wait_until_in_effect};
use super::machines::{FIELDS, KIND};
use crate::AppState;
use crate::install_state_enrichment::add_template_results;
use common::yaml::edit::{self, EditedYaml};
use serde_json::{Map, Value};
use site::allocation_resolution::resolve_allocation;
use site::ganeti_os_definition_state::DefinitionState;
use site::operator_files::{self, AllocationSpec, MachineSpec};
use site::site_objects::SiteObjects;
use site::snapshot::SiteSnapshot;
use std::path::{Path as File, PathBuf};
use store::InstallState;

/// Change of a machine file that has passed all checks. Its new content is written next to the file, but not in effect.
pub(super) struct PreparedEdit {
    path: PathBuf,
    old: String,
    edited: EditedYaml,
    /// New content of the file; `None` if the document is in the database.
    staged: Option<StagedFile>,
}

/// Changes the machine file, provided that the machine meets the condition `was`. Waits until the machine in the
/// published snapshot meets the condition `becomes`. In error messages, `rename` replaces the path of a field in the
/// file by the field's name in the request.
pub(super) async fn rewrite_machine_file(
    app: &AppState,
    id: &str,
    was: impl Fn(&MachineSpec) -> bool,
    change: impl Fn(&mut Map<String, Value>),
    becomes: impl Fn(&MachineSpec) -> bool,
    rename: impl Fn(&str) -> String,
) -> ApiResult<()> {
    let mut edit = prepare_machine_edit(app, id, was, change, rename).await?;
    edit.write(app, id).await?;
    edit.wait_until_in_effect(app, id, becomes).await
}

/// Checks a change of a machine file as [`rewrite_machine_file`] does, and writes the new content next to the file.
pub(super) async fn prepare_machine_edit(
    app: &AppState,
    id: &str,
    was: impl Fn(&MachineSpec) -> bool,
    change: impl Fn(&mut Map<String, Value>),
    rename: impl Fn(&str) -> String,
) -> ApiResult<PreparedEdit> {
    let directory = app.directory();
    let missing = || EditedObject { kind: KIND, id }.not_found();
    let path: &File = directory.machine_files.get(id).ok_or_else(missing)?;
    let text = document_edits::read_file(app, path).await?.ok_or_else(|| changed(path, id))?;
    let before =
        operator_files::parse_machine(&text).map_err(|problems| document_edits::invalid_file(path, &problems))?;
    Some(before).filter(|machine| machine.id == id && was(machine)).ok_or_else(|| changed(path, id))?;
    let old = operator_files::parse_unvalidated(&text).map_err(ApiRefusal::internal_error)?;
    let mut new = old.clone();
    new.as_object_mut().into_iter().for_each(change);
    let anew = edit::format_document(&new, &FIELDS);
    let named = |problems: String| operator_files::replace_positions(&anew, &problems, &rename);
    let wanted = operator_files::parse_machine(&anew).map_err(|why| ApiRefusal::bad_request(named(why)))?;
    // The allocation is not checked if only the lock changes, so that a machine whose allocation has become invalid can
    // also be locked.
    if without_lock(&old) != without_lock(&new) {
        let resolved = check_allocation(app, &wanted, &directory.known).await?;
        resolved.map_err(|why| ApiRefusal::unprocessable(named(why)))?;
    }
    let edited = change_text(
        path,
        &text,
        |text| edit::edit_values(text, &old, &new),
        anew.clone(),
        |text| {
            operator_files::parse_unvalidated(text).as_ref() == Ok(&new) && operator_files::parse_machine(text).is_ok()
        },
    )?;
    let staged = document_edits::stage_file(app, path, &edited.text).await?;
    // The checks can take seconds, so the file is compared again.
    if document_edits::read_file(app, path).await?.as_ref() != Some(&text) {
        return Err(changed(path, id));
    }
    Ok(PreparedEdit { path: path.to_owned(), old: text, edited, staged })
}

/// Returns the error for a file that was changed concurrently. A machine file contains secrets, so the error omits its
/// text.
fn changed(path: &File, id: &str) -> ApiRefusal {
    EditedObject { kind: KIND, id }.conflict(path, None, &Value::Null)
}

impl PreparedEdit {
    /// Replaces the content of the machine file.
    ///
    /// # Errors
    /// Returns an error if the file was changed concurrently, or cannot be replaced.
    pub(super) async fn write(&mut self, app: &AppState, id: &str) -> ApiResult<()> {
        let is_replaced = match self.staged.take() {
            Some(staged) => document_edits::replace_staged(&self.path, staged, &self.old).await?,
            None => document_edits::replace_file(app, &self.path, &self.old, &self.edited.text).await?,
        };
        if !is_replaced {
            return Err(changed(&self.path, id));
        }
        app.request_machine_reload(id, Some(self.path.clone()));
        Ok(())
    }

    /// Waits until the machine in the published snapshot meets the condition `becomes`.
    pub(super) async fn wait_until_in_effect(
        self,
        app: &AppState,
        id: &str,
        becomes: impl Fn(&MachineSpec) -> bool,
    ) -> ApiResult<()> {
        let has_changed = |directory: &SiteSnapshot| directory.find_machine(id).is_some_and(&becomes);
        wait_until_in_effect(app, &self.path, Some(&self.edited.text), has_changed).await?;
        log_removed_comments(app, &self.path, &self.edited.removed_comments);
        Ok(())
    }
}

/// Returns the document of a machine file without the field `locked`, which does not affect the allocation.
fn without_lock(document: &Value) -> Value {
    let mut document = document.clone();
    document.as_object_mut().and_then(|fields| fields.remove("locked"));
    document
}

/// Checks that the machine's allocation can be installed. The inner error lists all problems, with their positions in
/// the machine file.
pub(super) async fn check_allocation(
    app: &AppState,
    machine: &MachineSpec,
    known: &SiteObjects,
) -> ApiResult<Result<(), String>> {
    let Some(allocation) = &machine.allocation else { return Ok(Ok(())) };
    let mut machine = machine.clone();
    if let Some(own) = &mut machine.allocation {
        copy_definition(app, &machine.id, own);
    }
    if app.state.read_install_state(&machine.id, &allocation.id).await?.is_installed() {
        // The check of the templates is skipped: they apply only during an installation, and the installation of this
        // allocation is already completed.
        machine.traits.clear();
    }
    check_templates(app, &machine, known).await
}

/// Copies the OS definition and its image from the allocation in effect to the new allocation if both name the same OS
/// definition. Does nothing if the new allocation already has a definition. If the definition in effect is unusable,
/// the copy counts as not verified yet, since the new allocation may have corrected parameters.
fn copy_definition(app: &AppState, id: &str, allocation: &mut AllocationSpec) {
    if !matches!(allocation.definition, DefinitionState::Unnamed) {
        return;
    }
    let directory = app.directory();
    let current = directory.find_machine(id).and_then(|machine| machine.allocation.as_ref());
    let is_same = |current: &&AllocationSpec| current.os.is_some() && current.os == allocation.os;
    let Some(current) = current.filter(is_same) else { return };
    allocation.image = current.image.clone();
    allocation.definition = match &current.definition {
        DefinitionState::Unusable(_) => DefinitionState::Verifying,
        other => other.clone(),
    };
}

/// Checks that the machine can run the templates that its traits enable. If the machine has an allocation, also
/// checks that the allocation can be installed. The inner error lists all problems.
pub(crate) async fn check_templates(
    app: &AppState,
    machine: &MachineSpec,
    known: &SiteObjects,
) -> ApiResult<Result<(), String>> {
    let install_state = add_template_results(app, machine, InstallState::default(), known).await?;
    Ok(resolve_allocation(machine, &install_state, known).map(drop))
}
