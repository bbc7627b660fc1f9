//! Creation, change and deletion of templates. The response to a request is sent once its change is in effect.

use super::ironic_response::{IronicRefusal, TemplateResult};
use super::listing::is_name;
use super::template_files::{remove_file, write_file};
use super::{json_patch, new_uuid};
use crate::AppState;
use crate::access::set_audited_object;
use crate::metal_api::document_edits;
use crate::metal_api::document_edits::database_edits::{self, StoredChange};
use axum::http::StatusCode;
use common::diagnostic;
use model::deploy_steps::template::{DeployTemplate, check_template, is_uuid, prune_step};
use serde_json::{Value, json};
use site::deploy_templates::{DeployTemplates, StoredTemplate};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::format_description;

/// Maximum time until a change is in effect. A scan of the directory takes less time, even if the directory is large.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Fields of a template that requests can set.
const CHANGEABLE_FIELDS: [&str; 5] = ["uuid", "name", "steps", "extra", "description"];

/// Returns the template with this UUID or name.
pub(crate) fn find_template<'a>(
    templates: &'a DeployTemplates,
    ident: &str,
) -> TemplateResult<&'a Arc<StoredTemplate>> {
    if !is_name(ident) && !is_uuid(ident) {
        return Err(IronicRefusal::bad_request(format!("{ident:?} is neither a uuid nor a name")));
    }
    let found = if is_uuid(ident) { templates.find_by_uuid(ident) } else { templates.find_by_name(ident) };
    found.ok_or_else(|| IronicRefusal::unknown_template(ident))
}

pub(crate) async fn create_template(app: &AppState, document: &Value) -> TemplateResult<Arc<StoredTemplate>> {
    set_audited_object(document.get("name").and_then(Value::as_str).unwrap_or_default());
    reject_problems(check_template(document, &[]))?;
    let mut template = DeployTemplate::from_checked(document);
    let _lock = app.templates.lock_changes().await;
    let directory = app.directory();
    let uuid = template.uuid.get_or_insert_with(new_uuid).clone();
    reject_taken(&directory.known.templates, &template, None)?;
    template.created_at = Some(format_now());
    let path = app.templates.template_path(&template);
    if app.documents.stamp(&path).is_ok() {
        return Err(IronicRefusal::conflict(format!(
            "{path} already exists, but is not the file of this template",
            path = path.display()
        )));
    }
    write_template(app, path, &template).await?;
    find_in_force(app, &uuid)
}

pub(crate) async fn change_template(
    app: &AppState,
    ident: &str,
    document: &Value,
) -> TemplateResult<Arc<StoredTemplate>> {
    let changes = json_patch::parse_patch(document)?;
    let _lock = app.templates.lock_changes().await;
    let directory = app.directory();
    let stored = find_template(&directory.known.templates, ident)?;
    let old = &stored.template;
    let before = json!({"uuid": stored.uuid, "name": old.name, "steps": old.steps, "extra": old.extra,
        "created_at": old.created_at, "updated_at": old.updated_at});
    let mut after = json_patch::apply_patch(&before, &changes)?;
    if let Some(fields) = after.as_object_mut() {
        fields.retain(|name, _| CHANGEABLE_FIELDS.contains(&name.as_str()));
    }
    after.get_mut("steps").and_then(Value::as_array_mut).into_iter().flatten().for_each(prune_step);
    reject_problems(check_template(&after, &[]))?;
    let mut template = DeployTemplate::from_checked(&after);
    reject_taken(&directory.known.templates, &template, Some(&stored.uuid))?;
    template.steps = order_steps(&old.steps, template.steps);
    template.created_at = old.created_at.clone();
    if (DeployTemplate { updated_at: old.updated_at.clone(), ..template.clone() })
        .equals_ignoring_locations(&with_uuid(stored))
    {
        return Ok(stored.clone());
    }
    template.updated_at = Some(format_now());
    let present = check_unchanged(app, stored).await?;
    let (here, there) = (app.templates.template_path(old), app.templates.template_path(&template));
    let path = if stored.path == here && there != here { there } else { stored.path.clone() };
    if path != stored.path && app.documents.stamp(&path).is_ok() {
        return Err(IronicRefusal::conflict(format!(
            "{path} already exists, but is not the file of this template",
            path = path.display()
        )));
    }
    let is_elsewhere = path != stored.path;
    let expected = Some(present.as_str()).filter(|_| !is_elsewhere);
    put_file(app, path.clone(), expected, render_template(&template)?).await?;
    if is_elsewhere {
        remove_template_file(app, stored.path.clone(), &present).await?;
    }
    wait_until_published(app, |templates| is_in_force(templates, &path, &template)).await?;
    find_in_force(app, &stored.uuid)
}

pub(crate) async fn delete_template(app: &AppState, ident: &str) -> TemplateResult<()> {
    let _lock = app.templates.lock_changes().await;
    let directory = app.directory();
    let stored = find_template(&directory.known.templates, ident)?;
    let present = check_unchanged(app, stored).await?;
    remove_template_file(app, stored.path.clone(), &present).await?;
    wait_until_published(app, |templates| templates.all().all(|other| other.path != stored.path)).await
}

/// Returns the template with its UUID, which the operator's file may omit.
fn with_uuid(stored: &StoredTemplate) -> DeployTemplate {
    DeployTemplate { uuid: Some(stored.uuid.clone()), ..stored.template.clone() }
}

fn reject_problems(problems: Vec<diagnostic::Diagnostic>) -> TemplateResult<()> {
    match &problems[..] {
        [] => Ok(()),
        problems => Err(IronicRefusal::bad_request(diagnostic::join_problems(problems))),
    }
}

fn reject_taken(templates: &DeployTemplates, template: &DeployTemplate, own: Option<&str>) -> TemplateResult<()> {
    let is_other = |stored: &&Arc<StoredTemplate>| own.is_none_or(|own| stored.uuid != own);
    if templates.find_by_name(&template.name).filter(is_other).is_some() {
        return Err(IronicRefusal::conflict(format!("deploy template {name} already exists", name = template.name)));
    }
    match template.uuid.as_ref().filter(|uuid| templates.find_by_uuid(uuid).filter(is_other).is_some()) {
        Some(uuid) => Err(IronicRefusal::conflict(format!("a deploy template with uuid {uuid} already exists"))),
        None => Ok(()),
    }
}

/// Sorts the steps as Ironic does: unchanged steps come first, in their old order, followed by the new steps, sorted by
/// interface and name.
fn order_steps(old: &[Value], new: Vec<Value>) -> Vec<Value> {
    let (mut kept, mut more) = (Vec::new(), Vec::new());
    kept.extend(old.iter().filter(|step| new.contains(step)).cloned());
    more.extend(new.into_iter().filter(|step| !old.contains(step)));
    let text = |step: &Value, name: &str| step[name].as_str().unwrap_or_default().to_owned();
    more.sort_by_key(|step| (text(step, "interface"), text(step, "step")));
    kept.append(&mut more);
    kept
}

/// Refuses a change if the template's file differs from the version in effect, so that the operator's edit is not
/// overwritten. Returns the text of the file.
async fn check_unchanged(app: &AppState, stored: &StoredTemplate) -> TemplateResult<String> {
    let now = document_edits::read_file(app, &stored.path).await.ok().flatten();
    let is_same = |text: &String| {
        DeployTemplate::parse_file(text).is_ok_and(|now| now.equals_ignoring_locations(&stored.template))
    };
    now.filter(is_same).ok_or_else(|| {
        let why =
            "the file differs from the template that the server currently uses: see the server's output, and try again";
        IronicRefusal::conflict(format!("{file}: {why}", file = stored.path.display()))
    })
}

async fn write_template(app: &AppState, path: PathBuf, template: &DeployTemplate) -> TemplateResult<()> {
    put_file(app, path.clone(), None, render_template(template)?).await?;
    wait_until_published(app, |templates| is_in_force(templates, &path, template)).await
}

fn render_template(template: &DeployTemplate) -> TemplateResult<String> {
    template.to_yaml().map_err(|why| IronicRefusal::bad_request(format!("this template cannot be stored: {why}")))
}

/// Writes the text of a template. If templates are stored in the database, fails unless the stored text is `expected`;
/// a file is overwritten without this check.
async fn put_file(app: &AppState, path: PathBuf, expected: Option<&str>, text: String) -> TemplateResult<()> {
    if change_stored(app, &path, expected, Some(&text)).await? {
        return Ok(());
    }
    let what = format!("write {}", path.display());
    map_io_error(&what, tokio::task::spawn_blocking(move || write_file(&path, &text)).await)
}

async fn remove_template_file(app: &AppState, path: PathBuf, expected: &str) -> TemplateResult<()> {
    if change_stored(app, &path, Some(expected), None).await? {
        return Ok(());
    }
    let what = format!("remove {}", path.display());
    map_io_error(&what, tokio::task::spawn_blocking(move || remove_file(&path)).await)
}

/// Changes a template in the database. Returns false if templates are stored as files.
async fn change_stored(app: &AppState, path: &Path, expected: Option<&str>, new: Option<&str>) -> TemplateResult<bool> {
    match database_edits::change(app, path, expected, new).await? {
        None => Ok(false),
        Some(StoredChange::Stored) => Ok(true),
        Some(StoredChange::Conflict(author)) => {
            Err(IronicRefusal::conflict(database_edits::describe_conflict(path, author.as_ref())))
        }
    }
}

fn map_io_error(what: &str, result: Result<std::io::Result<()>, tokio::task::JoinError>) -> TemplateResult<()> {
    let failed = |error: String| IronicRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{what}: {error}"));
    result.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

fn is_in_force(templates: &DeployTemplates, path: &Path, template: &DeployTemplate) -> bool {
    templates.all().any(|stored| stored.path == path && stored.template.equals_ignoring_locations(template))
}

/// Requests a scan of the directory, and waits until a snapshot of the directory satisfies the condition.
async fn wait_until_published(app: &AppState, is_so: impl Fn(&DeployTemplates) -> bool) -> TemplateResult<()> {
    app.request_reload();
    let mut directory = app.directory.clone();
    let seen = directory.wait_for(|directory| is_so(&directory.known.templates));
    match tokio::time::timeout(EFFECT_TIMEOUT, seen).await {
        Ok(Ok(_)) => Ok(()),
        _ => {
            let why = "the file was changed, but the change is not in effect yet: see the server's output";
            Err(IronicRefusal::new(StatusCode::INTERNAL_SERVER_ERROR, why))
        }
    }
}

fn find_in_force(app: &AppState, uuid: &str) -> TemplateResult<Arc<StoredTemplate>> {
    app.directory().known.templates.find_by_uuid(uuid).cloned().ok_or_else(|| IronicRefusal::unknown_template(uuid))
}

fn format_now() -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]+00:00");
    OffsetDateTime::now_utc().format(format).unwrap_or_default()
}
