//! Creation, changes and deletion of templates. The response is sent once the change is in force.

use super::answer::{Answered, Refused};
use super::list::is_name;
use super::writing::{put, remove};
use super::{Stored, Templates, new_uuid, patch};
use crate::problem;
use crate::serve::App;
use crate::steps::template::{Template, check, is_uuid, prune_step};
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::format_description;

/// Timeout for a change to come into force. A scan of the directory takes less, even of a large one.
const PATIENCE: Duration = Duration::from_secs(30);
/// Fields of a template that requests can set.
const FIELDS: [&str; 5] = ["uuid", "name", "steps", "extra", "description"];

/// Returns the template with this UUID or name.
pub fn find<'a>(templates: &'a Templates, ident: &str) -> Answered<&'a Arc<Stored>> {
    if !is_name(ident) && !is_uuid(ident) {
        return Err(Refused::bad(format!("{ident:?} is neither a uuid nor a name")));
    }
    let found = if is_uuid(ident) { templates.by_uuid(ident) } else { templates.by_name(ident) };
    found.ok_or_else(|| Refused::unknown(ident))
}

pub async fn create(app: &App, document: &Value) -> Answered<Arc<Stored>> {
    refuse(check(document, &[]))?;
    let mut template = Template::of_checked(document);
    let _turn = app.templates.turn().await;
    let directory = app.directory();
    let uuid = template.uuid.get_or_insert_with(new_uuid).clone();
    refuse_taken(&directory.known.templates, &template, None)?;
    template.created_at = Some(now());
    let path = app.templates.path(&template);
    if path.exists() {
        return Err(Refused::conflict(format!("{} already exists, and is not this template", path.display())));
    }
    write(app, path, &template).await?;
    in_force(app, &uuid)
}

pub async fn change(app: &App, ident: &str, document: &Value) -> Answered<Arc<Stored>> {
    let changes = patch::read(document)?;
    let _turn = app.templates.turn().await;
    let directory = app.directory();
    let stored = find(&directory.known.templates, ident)?;
    let old = &stored.template;
    let before = json!({"uuid": stored.uuid, "name": old.name, "steps": old.steps, "extra": old.extra,
        "created_at": old.created_at, "updated_at": old.updated_at});
    let mut after = patch::apply(&before, &changes)?;
    if let Some(fields) = after.as_object_mut() {
        fields.retain(|name, _| FIELDS.contains(&name.as_str()));
    }
    after.get_mut("steps").and_then(Value::as_array_mut).into_iter().flatten().for_each(prune_step);
    refuse(check(&after, &[]))?;
    let mut template = Template::of_checked(&after);
    refuse_taken(&directory.known.templates, &template, Some(&stored.uuid))?;
    template.steps = ordered(&old.steps, template.steps);
    template.created_at = old.created_at.clone();
    if (Template { updated_at: old.updated_at.clone(), ..template.clone() }).says_the_same(&with_uuid(stored)) {
        return Ok(stored.clone());
    }
    template.updated_at = Some(now());
    unchanged(stored)?;
    let (here, there) = (app.templates.path(old), app.templates.path(&template));
    let path = if stored.path == here && there != here { there } else { stored.path.clone() };
    if path != stored.path && path.exists() {
        return Err(Refused::conflict(format!("{} already exists, and is not this template", path.display())));
    }
    let is_elsewhere = path != stored.path;
    put_file(path.clone(), yaml(&template)?).await?;
    if is_elsewhere {
        remove_file(stored.path.clone()).await?;
    }
    published(app, |templates| is_in_force(templates, &path, &template)).await?;
    in_force(app, &stored.uuid)
}

pub async fn delete(app: &App, ident: &str) -> Answered<()> {
    let _turn = app.templates.turn().await;
    let directory = app.directory();
    let stored = find(&directory.known.templates, ident)?;
    unchanged(stored)?;
    remove_file(stored.path.clone()).await?;
    published(app, |templates| templates.all().all(|other| other.path != stored.path)).await
}

/// Returns the template as its file would contain it together with the UUID.
fn with_uuid(stored: &Stored) -> Template {
    Template { uuid: Some(stored.uuid.clone()), ..stored.template.clone() }
}

fn refuse(problems: Vec<problem::Problem>) -> Answered<()> {
    match &problems[..] {
        [] => Ok(()),
        problems => Err(Refused::bad(problem::lines(problems))),
    }
}

fn refuse_taken(templates: &Templates, template: &Template, own: Option<&str>) -> Answered<()> {
    let is_other = |stored: &&Arc<Stored>| own.is_none_or(|own| stored.uuid != own);
    if templates.by_name(&template.name).filter(is_other).is_some() {
        return Err(Refused::conflict(format!("deploy template {} already exists", template.name)));
    }
    match template.uuid.as_ref().filter(|uuid| templates.by_uuid(uuid).filter(is_other).is_some()) {
        Some(uuid) => Err(Refused::conflict(format!("a deploy template with uuid {uuid} already exists"))),
        None => Ok(()),
    }
}

/// Orders steps as Ironic does: unchanged steps first, in their old order, then new ones by interface and name.
fn ordered(old: &[Value], new: Vec<Value>) -> Vec<Value> {
    let (mut kept, mut more) = (Vec::new(), Vec::new());
    kept.extend(old.iter().filter(|step| new.contains(step)).cloned());
    more.extend(new.into_iter().filter(|step| !old.contains(step)));
    let text = |step: &Value, name: &str| step[name].as_str().unwrap_or_default().to_owned();
    more.sort_by_key(|step| (text(step, "interface"), text(step, "step")));
    kept.append(&mut more);
    kept
}

/// Refuses to overwrite an edit of the operator that is not in force.
fn unchanged(stored: &Stored) -> Answered<()> {
    let now = std::fs::read_to_string(&stored.path).ok().and_then(|text| Template::read(&text).ok());
    match now.is_some_and(|now| now.says_the_same(&stored.template)) {
        true => Ok(()),
        false => {
            let why = "differs from the version in force: see the server's output, and try again";
            Err(Refused::conflict(format!("{} {why}", stored.path.display())))
        }
    }
}

async fn write(app: &App, path: PathBuf, template: &Template) -> Answered<()> {
    put_file(path.clone(), yaml(template)?).await?;
    published(app, |templates| is_in_force(templates, &path, template)).await
}

fn yaml(template: &Template) -> Answered<String> {
    template.to_yaml().map_err(|why| Refused::bad(format!("this template cannot be stored: {why}")))
}

async fn put_file(path: PathBuf, text: String) -> Answered<()> {
    let what = format!("write {}", path.display());
    done(&what, tokio::task::spawn_blocking(move || put(&path, &text)).await)
}

async fn remove_file(path: PathBuf) -> Answered<()> {
    let what = format!("remove {}", path.display());
    done(&what, tokio::task::spawn_blocking(move || remove(&path)).await)
}

fn done(what: &str, result: Result<std::io::Result<()>, tokio::task::JoinError>) -> Answered<()> {
    let failed = |error: String| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{what}: {error}"));
    result.map_err(|error| failed(error.to_string()))?.map_err(|error| failed(error.to_string()))
}

fn is_in_force(templates: &Templates, path: &Path, template: &Template) -> bool {
    templates.all().any(|stored| stored.path == path && stored.template.says_the_same(template))
}

/// Requests a scan of the directory, and waits until its snapshot satisfies the condition.
async fn published(app: &App, is_so: impl Fn(&Templates) -> bool) -> Answered<()> {
    app.state_has_changed();
    let mut directory = app.directory.clone();
    let seen = directory.wait_for(|directory| is_so(&directory.known.templates));
    match tokio::time::timeout(PATIENCE, seen).await {
        Ok(Ok(_)) => Ok(()),
        _ => {
            let why = "the file was changed, but the change is not in force yet: see the server's output";
            Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, why))
        }
    }
}

fn in_force(app: &App, uuid: &str) -> Answered<Arc<Stored>> {
    app.directory().known.templates.by_uuid(uuid).cloned().ok_or_else(|| Refused::unknown(uuid))
}

fn now() -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]+00:00");
    OffsetDateTime::now_utc().format(format).unwrap_or_default()
}
