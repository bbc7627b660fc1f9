//! State of the objects that a request may change, before and after the request, and the differences between both
//! states. Secrets are replaced only after the comparison, so that a changed secret is recorded as a change.

use super::AuditChange;
use crate::AppState;
use crate::access::secret_masking::{hide_secrets_at, hide_value};
use crate::metal_api::document_edits::hex_digest;
use crate::operator_api::{list_machines, summarize_machine};
use serde_json::{Value, json};
use site::deploy_templates;
use site::documents::DocumentSet;
use site::image_states;
use site::operator_files::yaml_node::{parse_document, to_json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Maximum number of changes in an entry.
const CHANGES: usize = 200;
/// Maximum length of a value in an entry, as JSON.
const VALUE_BYTES: usize = 2000;
/// Maximum size of a file whose content is compared, in bytes.
const FILE_BYTES: u64 = 1 << 20;

/// Fields of a machine's summary that change without a request.
const VOLATILE: [&str; 5] = ["last_seen", "last_event", "ended", "phase", "out_of_band"];

/// Folders and files in the server's directory that a request may change, by the prefix of the request's route.
///
/// The file of the machine in a request's path is read in addition to these files. The folder `machines` may appear
/// here only with routes of rare requests, because all of its files, which may be thousands, are parsed before and
/// after each such request.
const WATCHED: [(&str, &[&str]); 7] = [
    ("/v1/filesystemlayout", &["layouts"]),
    ("/v1/image", &["images", image_states::FILE]),
    ("/v1/size", &["sizes"]),
    ("/v1/deploy", &[deploy_templates::FOLDER]),
    ("/v1/os", &["os"]),
    ("/v1/machine/allocate", &["machines"]),
    ("/bulk/confirm", &["machines"]),
];

/// Folder of the documents in which every value can be a secret: the parameters of OS definitions.
const SECRET_FOLDER: &str = "os/";

/// Prefix of the names of rollouts.
const ROLLOUT: &str = "rollout ";

/// Contents of files, by path, and records of machines, users and rollouts, by names such as `user ann`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectState(BTreeMap<String, Value>);

impl ObjectState {
    /// Reads the state of the objects that a request to the route may change. If the state cannot be read, it is empty:
    /// the request is carried out, but its audit entry lacks the changes.
    pub async fn read(app: &AppState, route: &str, object: &str) -> ObjectState {
        let mut documents = BTreeMap::new();
        let mut paths: Vec<PathBuf> = Vec::new();
        for (_, folders) in WATCHED.iter().filter(|(start, _)| route.starts_with(start)) {
            paths.extend(folders.iter().map(|folder| app.dir.join(folder)));
        }
        if route == "/v1/users" {
            // The state of all users is read, because only the body of the request, which is not read here, contains
            // the name of the user.
            for user in app.state.list_users().await.unwrap_or_default() {
                documents.extend(read_user(app, &user.name).await);
            }
        } else if route.starts_with("/v1/users/") {
            documents.extend(read_user(app, object).await);
        }
        if route.starts_with("/v1/machine/{id}/") || route.starts_with("/machines/{id}/") {
            let id = object.to_lowercase();
            paths.extend(app.directory().machine_files.get(&id).cloned());
            documents.extend(read_machine(app, &id).await);
        }
        if route == "/bulk/confirm" || route == "/v1/machines/confirm" {
            let all = list_machines(app).await.unwrap_or_default();
            documents.extend(all.into_iter().map(|summary| record_of(&summary.id.clone(), json!(summary))));
        }
        if route.starts_with("/v1/rollouts") || route.starts_with("/rollouts/") {
            documents.extend(read_rollouts(app, object).await);
        }
        let (dir, stored) = (app.dir.clone(), app.documents.stored());
        if route == "/v1/documents/apply" {
            documents.extend(digest_documents(stored.as_deref()));
        }
        let read = move || match stored {
            Some(stored) => read_stored(&dir, &stored, &paths),
            None => read_files(&dir, &paths),
        };
        let files = tokio::task::spawn_blocking(read).await;
        documents.extend(files.unwrap_or_default());
        ObjectState(documents)
    }

    /// Returns the differences between this state and a later one.
    pub fn changes_until(&self, after: &ObjectState) -> Vec<AuditChange> {
        let mut changes = Vec::new();
        let names: BTreeSet<&String> = self.0.keys().chain(after.0.keys()).collect();
        // Rollouts are never deleted: before a rollout is created, the newest one is read, which is another one
        // afterwards.
        let is_unread = |name: &String| name.starts_with(ROLLOUT) && !after.0.contains_key(name);
        for name in names.into_iter().filter(|name| !is_unread(name)) {
            compare_values(name, "", (self.0.get(name), after.0.get(name)), &mut changes);
        }
        changes.truncate(CHANGES);
        changes
    }
}

async fn read_user(app: &AppState, name: &str) -> Option<(String, Value)> {
    let user = app.state.find_user(name).await.ok().flatten()?;
    let tokens = app.state.list_user_tokens(name).await.unwrap_or_default();
    let tokens: BTreeMap<String, Value> = tokens
        .into_iter()
        .map(|token| (token.name, json!({"expires": token.expires, "revoked": token.revoked})))
        .collect();
    let access = json!({"role": user.role, "projects": user.projects, "disabled": user.disabled, "access": tokens});
    Some((format!("user {name}"), access))
}

/// Reads a rollout or, if the request creates one, the newest rollout. Members are recorded with their states.
async fn read_rollouts(app: &AppState, object: &str) -> Option<(String, Value)> {
    let id = match object.parse() {
        Ok(id) => id,
        Err(_) => app.state.list_rollouts().await.ok()?.first()?.id,
    };
    let rollout = app.state.find_rollout(id).await.ok()??;
    let members: BTreeMap<&str, Value> =
        rollout.members.iter().map(|member| (member.machine.as_str(), json!(member.state))).collect();
    let record = &rollout.record;
    let document =
        json!({"state": rollout.state, "reason": record.reason, "limits": record.limits, "members": members});
    Some((format!("{ROLLOUT}{}", rollout.id), document))
}

async fn read_machine(app: &AppState, id: &str) -> Option<(String, Value)> {
    let directory = app.directory();
    let machine = directory.find_machine(id)?;
    let summary = summarize_machine(app, machine).await.ok()?;
    Some(record_of(id, json!(summary)))
}

fn record_of(id: &str, mut summary: Value) -> (String, Value) {
    if let Some(fields) = summary.as_object_mut() {
        fields.retain(|name, _| !VOLATILE.contains(&name.as_str()));
    }
    (format!("machine {id}"), summary)
}

/// Returns the digests of all documents in the database. The documents themselves would be too long for one entry.
fn digest_documents(stored: Option<&DocumentSet>) -> Option<(String, Value)> {
    let digests: BTreeMap<&str, String> =
        stored?.all().map(|one| (one.path.as_str(), hex_digest(one.content.text.as_bytes()))).collect();
    Some(("documents".to_owned(), json!(digests)))
}

/// Reads YAML documents in the database whose path is one of these paths, or below one of them.
fn read_stored(dir: &Path, stored: &DocumentSet, paths: &[PathBuf]) -> BTreeMap<String, Value> {
    let is_watched = |path: &Path| paths.iter().any(|watched| path.starts_with(watched));
    let watched = stored.all().filter(|one| is_watched(&dir.join(&one.path)));
    watched.filter_map(|one| Some((one.path.clone(), parse_file(Path::new(&one.path), &one.content.text)?))).collect()
}

/// Parses a YAML file for the log; `None` if the file is not YAML.
fn parse_file(path: &Path, text: &str) -> Option<Value> {
    let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    let document = parse_document(text).map(|node| to_json(&node));
    is_yaml.then(|| document.unwrap_or_else(|_| json!("(not a valid document)")))
}

/// Reads YAML files. For a folder, reads the YAML files in it and in its subfolders.
fn read_files(dir: &Path, paths: &[PathBuf]) -> BTreeMap<String, Value> {
    let mut documents = BTreeMap::new();
    let mut pending: Vec<(PathBuf, u32)> = paths.iter().map(|path| (path.clone(), 0)).collect();
    while let Some((path, depth)) = pending.pop() {
        if path.is_dir() && depth < 3 {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            pending.extend(entries.map(|entry| (entry.path(), depth + 1)));
            continue;
        }
        let is_yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        let is_small = std::fs::metadata(&path).is_ok_and(|file| file.is_file() && file.len() <= FILE_BYTES);
        if let (true, true, Ok(text)) = (is_yaml, is_small, std::fs::read_to_string(&path)) {
            let name = path.strip_prefix(dir).unwrap_or(&path).display().to_string();
            let document = parse_document(&text).map(|node| to_json(&node));
            documents.insert(name, document.unwrap_or_else(|_| json!("(not a valid document)")));
        }
    }
    documents
}

fn compare_values(name: &str, path: &str, pair: (Option<&Value>, Option<&Value>), changes: &mut Vec<AuditChange>) {
    match pair {
        (one, other) if one == other => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let fields: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            for field in fields {
                compare_values(name, &format!("{path}/{field}"), (before.get(field), after.get(field)), changes);
            }
        }
        (before, after) => changes.push(AuditChange {
            path: if path.is_empty() { name.to_owned() } else { format!("{name}: {path}") },
            before: before.map(|value| displayed_value(name, path, value)),
            after: after.map(|value| displayed_value(name, path, value)),
        }),
    }
}

/// Returns a value of the document `name` without secrets.
fn displayed_value(name: &str, path: &str, value: &Value) -> Value {
    let mut value = value.clone();
    match name.starts_with(SECRET_FOLDER) {
        true => hide_value(&mut value),
        false => hide_secrets_at(path, &mut value),
    }
    let length = value.to_string().len();
    if length > VALUE_BYTES { json!(format!("({length} bytes)")) } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(document: Value) -> ObjectState {
        ObjectState(BTreeMap::from([("machines/one.yaml".to_owned(), document)]))
    }

    #[test]
    fn new_rollout_does_not_remove_the_previous_one() {
        let state = |id: u32| ObjectState(BTreeMap::from([(format!("{ROLLOUT}{id}"), json!({"state": "running"}))]));
        let changes = json!(state(1).changes_until(&state(2)));
        assert_eq!(changes, json!([{"path": "rollout 2", "after": {"state": "running"}}]));
        assert_eq!(state(1).changes_until(&state(1)), []);
    }

    #[test]
    fn changes_contain_values_but_hide_secrets() {
        let before = state(json!({"id": "x", "allocation": {"image": "a", "user_data": "one", "tags": [1]}}));
        let after = state(
            json!({"id": "x", "allocation": {"image": "b", "user_data": "two", "tags": [1]}, "bmc": {"password": "w"}}),
        );
        let changes = json!(before.changes_until(&after));
        assert_eq!(
            changes,
            json!([
                {"path": "machines/one.yaml: /allocation/image", "before": "a", "after": "b"},
                {"path": "machines/one.yaml: /allocation/user_data", "before": "(hidden)", "after": "(hidden)"},
                {"path": "machines/one.yaml: /bmc", "after": {"password": "(hidden)"}},
            ])
        );
        assert_eq!(before.changes_until(&before), []);
        let removed = before.changes_until(&ObjectState::default());
        assert!(removed.len() == 1 && removed[0].after.is_none() && !json!(removed).to_string().contains("one\""));
    }

    /// The fields of these documents are the names of OS definitions, which do not show that the values are secret.
    #[test]
    fn all_parameters_of_os_definitions_are_hidden() {
        let state = |document: Value| ObjectState(BTreeMap::from([("os/parameters.yaml".to_owned(), document)]));
        let (before, after) = (state(json!({"web": ["key=hunter2"]})), state(json!({"web": ["key=hunter3", "b=1"]})));
        assert_eq!(
            json!(before.changes_until(&after)),
            json!([{"path": "os/parameters.yaml: /web", "before": ["(hidden)"], "after": ["(hidden)", "(hidden)"]}])
        );
        assert_eq!(
            json!(ObjectState::default().changes_until(&before)),
            json!([{"path": "os/parameters.yaml", "after": {"web": ["(hidden)"]}}])
        );
    }

    #[test]
    fn entries_are_bounded() {
        let many = state((0..5000).map(|number| (format!("f{number}"), json!(number))).collect());
        assert_eq!(state(json!({})).changes_until(&many).len(), CHANGES);
        let long = state(json!({"a": "x".repeat(100_000)}));
        assert_eq!(state(json!({"a": 1})).changes_until(&long)[0].after, Some(json!("(100002 bytes)")));
    }
}
