//! Files of `inject_files`, from the step and from the node's properties.

use super::deploy_args::{IronicNode, plan_refusal};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use common::bounded_read::read_whole;
use common::error::{Context, Error, Phase, Result};
use linux::http;
use linux::http::proxies::{ProxyScope, check_proxy, describe_proxy};
use model::device_name::DevicePath;
use model::install_marker::{InstallMarker, lineage};
use model::inventory::Inventory;
use operations::InjectedFile;
use serde_json::{Map, Value};
use std::time::Duration;

/// Maximum size of a downloaded file, in bytes.
const MAXIMUM_FILE_BYTES: u64 = 16 << 20;

/// Time after which a download fails if no data arrives.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// Supported fields of a file to inject.
const FILE_FIELDS: [&str; 8] = ["path", "partition", "content", "deleted", "mode", "dirmode", "owner", "group"];

/// Mode of created directories. No other mode is supported.
const DIRECTORY_MODE: u32 = 0o755;

/// Filesystem to which a file is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FileDestination {
    Device(DevicePath),
    /// Partition number on the root disk.
    Number(u32),
    /// Filesystem that contains the install marker.
    Installed,
}

/// Downloads a file.
///
/// # Errors
/// Fails if the file cannot be downloaded completely.
pub(crate) fn download_file(url: &str) -> Result<Vec<u8>> {
    let wrong = |why: &str| Error::new(Phase::Control, format!("{url}: {why}"));
    check_proxy(url, ProxyScope::All)?;
    let what = || format!("fetch {url}{}", describe_proxy(url, ProxyScope::All));
    let answer = http::new_download_client(Some(STALL_TIMEOUT))?.get(url).send().context(Phase::Control, what)?;
    if !answer.status().is_success() {
        return Err(wrong(answer.status().as_str()));
    }
    let content = read_whole(answer, MAXIMUM_FILE_BYTES).context(Phase::Control, || format!("fetch {url}"))?;
    content.ok_or_else(|| wrong("the file is larger than 16 MiB"))
}

/// Returns all files with their destinations. `fetch` downloads content.
///
/// # Errors
/// Returns an error that lists all invalid files.
pub(crate) fn read_files(
    node: &IronicNode,
    args: &Map<String, Value>,
    fetch: &dyn Fn(&str) -> Result<Vec<u8>>,
) -> Result<Vec<(FileDestination, InjectedFile)>> {
    let of_node = node.0.get("properties").and_then(|properties| properties.get("inject_files"));
    let (mut files, mut wrong) = (Vec::new(), Vec::new());
    for (whose, listed) in [("the node's inject_files", of_node), ("files", args.get("files"))] {
        match listed {
            None | Some(Value::Null) => {}
            Some(Value::Array(listed)) => {
                for (index, one) in listed.iter().enumerate() {
                    match parse_file(one, fetch) {
                        Ok(file) => files.push(file),
                        Err(why) => wrong.push(format!("{whose}[{index}]: {why}")),
                    }
                }
            }
            Some(_) => wrong.push(format!("{whose}: must be a list")),
        }
    }
    if files.is_empty() && wrong.is_empty() {
        wrong.push("the list of files is empty: neither the step's argument `files` nor the node's inject_files contains a file".to_owned());
    }
    if wrong.is_empty() { Ok(files) } else { Err(plan_refusal(&wrong.join("; "))) }
}

fn parse_file(
    value: &Value,
    fetch: &dyn Fn(&str) -> Result<Vec<u8>>,
) -> Result<(FileDestination, InjectedFile), String> {
    let fields = value.as_object().ok_or("each file must be a JSON object")?;
    if let Some(other) = fields.keys().find(|name| !FILE_FIELDS.contains(&name.as_str())) {
        return Err(format!(
            "unknown field `{other}`; supported fields: {known_fields}",
            known_fields = FILE_FIELDS.join(", ")
        ));
    }
    let path = fields.get("path").and_then(Value::as_str).unwrap_or_default();
    let is_whole = path.starts_with('/') && !path.ends_with('/') && path.split('/').all(|part| part != "..");
    if !is_whole {
        return Err(format!("`path` must be the absolute path of a file and must not contain `..`, found {path:?}"));
    }
    if parse_mode(fields.get("dirmode"), DIRECTORY_MODE)? != DIRECTORY_MODE {
        return Err("dirmode: only 0755 is supported".to_owned());
    }
    let content = match (fields.get("content"), fields.get("deleted")) {
        (None | Some(Value::Null), Some(Value::Bool(true))) => None,
        (Some(Value::String(url)), None | Some(Value::Bool(false))) if url.contains("://") => {
            if !url.starts_with("http://") && !url.starts_with("https://") {
                return Err(format!("content: only http:// and https:// are supported, found {url}"));
            }
            Some(fetch(url).map_err(|error| format!("content: {error}"))?)
        }
        (Some(Value::String(text)), None | Some(Value::Bool(false))) => {
            let text: String = text.split_whitespace().collect();
            Some(STANDARD.decode(text).map_err(|error| format!("`content` is not base64: {error}"))?)
        }
        _ => return Err("a file requires either `content` (base64 or a URL) or `deleted: true`".to_owned()),
    };
    let who = |word: &str| match fields.get(word) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(number)) => Ok(Some(number.to_string())),
        Some(Value::String(name)) if !name.is_empty() => Ok(Some(name.clone())),
        Some(_) => Err(format!("`{word}` must be a name or a numeric id")),
    };
    let (owner, group, mode) = (who("owner")?, who("group")?, parse_mode(fields.get("mode"), 0o644)?);
    Ok((
        parse_destination(fields.get("partition"))?,
        InjectedFile { path: path.to_owned(), content, mode, owner, group },
    ))
}

/// Parses a mode. A string contains the mode in octal; a number is the mode itself.
fn parse_mode(value: Option<&Value>, otherwise: u32) -> Result<u32, String> {
    let mode = match value {
        None | Some(Value::Null) => Some(otherwise),
        Some(Value::String(text)) => u32::from_str_radix(text.strip_prefix("0o").unwrap_or(text), 8).ok(),
        Some(Value::Number(number)) => number.as_u64().and_then(|number| number.try_into().ok()),
        Some(_) => None,
    };
    mode.filter(|mode| *mode <= 0o7777).ok_or_else(|| "a mode must be a string such as 0644".to_owned())
}

fn parse_destination(value: Option<&Value>) -> Result<FileDestination, String> {
    match value {
        None | Some(Value::Null) => Ok(FileDestination::Installed),
        Some(Value::String(device)) if device.starts_with("/dev/") => {
            Ok(FileDestination::Device(device.as_str().into()))
        }
        Some(other) => {
            let number =
                other.as_u64().or_else(|| other.as_str()?.parse().ok()).and_then(|number| number.try_into().ok());
            number
                .map(FileDestination::Number)
                .ok_or_else(|| "`partition` must be a partition number or a device path".to_owned())
        }
    }
}

/// Returns the filesystem that contains the install marker of this node's newest installation.
///
/// # Errors
/// Fails if there is no installation, or if the newest installation cannot be determined.
pub(crate) fn find_installation(node: &IronicNode, inventory: &Inventory) -> Result<DevicePath> {
    let with_marker =
        inventory.filesystems.iter().filter_map(|filesystem| Some((&filesystem.device, filesystem.marker.as_ref()?)));
    let ours = with_marker.filter(|(_, marker)| marker.machine == node.uuid());
    let (devices, markers): (Vec<&DevicePath>, Vec<&InstallMarker>) = ours.unzip();
    let newest = lineage::find_newest(&markers).map(|newest| devices[newest].clone());
    newest.ok_or_else(|| match devices.is_empty() {
        true => plan_refusal("no disk contains an install marker of this node: specify `partition` for each file, as a partition number or a device path"),
        false => plan_refusal("the disks contain several installations of this node, and it is unknown which one is the newest: specify the \
            partition of each file, as a number or a device"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::inventory::FilesystemContents;
    use serde_json::json;
    use testing::http::{ResponseBehavior, Server};

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn files_of_the_node_and_the_step_are_read() {
        let node = map(json!({"properties": {"inject_files": [{"path": "/etc/a", "content": "YQ=="}]}}));
        let told = map(json!({"files": [
            {"path": "/etc/b", "partition": 2, "content": "Yg==\n", "mode": "0600", "owner": "web", "group": 7},
            {"path": "/c", "partition": "/dev/sdb1", "deleted": true, "mode": 384},
            {"path": "/d", "content": "http://h/d"},
        ]}));
        let files = read_files(&IronicNode(&node), &told, &|url| Ok(url.as_bytes().to_vec())).unwrap();
        let of = |index: usize| (&files[index].0, files[index].1.content.as_deref(), files[index].1.mode);
        assert_eq!(of(0), (&FileDestination::Installed, Some(&b"a"[..]), 0o644));
        assert_eq!(of(1), (&FileDestination::Number(2), Some(&b"b"[..]), 0o600));
        assert_eq!((files[1].1.owner.as_deref(), files[1].1.group.as_deref()), (Some("web"), Some("7")));
        assert_eq!(of(2), (&FileDestination::Device("/dev/sdb1".into()), None, 0o600));
        assert_eq!(of(3), (&FileDestination::Installed, Some(&b"http://h/d"[..]), 0o644));
    }

    #[test]
    fn every_invalid_file_is_named() {
        let away = |_: &str| Err(Error::new(Phase::Control, "the server does not respond"));
        let read = |files: Value| {
            super::read_files(&IronicNode(&Map::new()), &map(json!({"files": files})), &away).unwrap_err().to_string()
        };
        for (file, why) in [
            (json!(7), "each file must be a JSON object"),
            (json!({"path": "etc/a", "content": ""}), "`path` must be the absolute path"),
            (json!({"path": "/a/../b", "content": ""}), "must not contain `..`"),
            (json!({"path": "/a", "content": "", "colour": 1}), "unknown field `colour`"),
            (json!({"path": "/a"}), "or `deleted: true`"),
            (json!({"path": "/a", "content": "", "deleted": true}), "or `deleted: true`"),
            (json!({"path": "/a", "content": "http://h/a"}), "the server does not respond"),
            (json!({"path": "/a", "content": "ftp://h/a"}), "only http:// and https:// are supported, found ftp"),
            (json!({"path": "/a", "content": "*"}), "not base64"),
            (json!({"path": "/a", "content": "", "mode": "rw"}), "a mode must be a string"),
            (json!({"path": "/a", "content": "", "dirmode": "0700"}), "only 0755"),
            (json!({"path": "/a", "content": "", "partition": "x"}), "`partition` must be a partition number"),
            (json!({"path": "/a", "content": "", "owner": []}), "`owner` must be a name"),
        ] {
            let error = read(json!([{"path": "/good", "content": ""}, file]));
            assert!(
                error.contains(why) && error.contains("files[1]") && error.contains("nothing was written"),
                "{error}"
            );
        }
        assert!(read(json!([])).contains("the list of files is empty"));
        assert!(read(json!({})).contains("must be a list"));
        let inventory = Inventory::default();
        assert!(
            find_installation(&IronicNode(&Map::new()), &inventory)
                .unwrap_err()
                .to_string()
                .contains("specify `partition` for each file")
        );
    }

    #[test]
    fn files_are_injected_into_the_superseding_installation() {
        let node = map(json!({"uuid": "n-1"}));
        let marker = |image: &str, time: &str, supersedes: Vec<String>| InstallMarker {
            machine: "n-1".into(),
            image: image.into(),
            time: time.into(),
            supersedes,
            ..InstallMarker::default()
        };
        let old = marker("old", "2099-01-01T00:00:00Z", vec![]);
        for (supersedes, expected) in [(vec![old.digest()], Some("/dev/sdb2")), (vec![], None)] {
            let new = marker("new", "1970-01-01T00:00:00Z", supersedes);
            let filesystems = [("/dev/sda2", old.clone()), ("/dev/sdb2", new)].map(|(device, marker)| {
                FilesystemContents { device: device.into(), marker: Some(marker), ..FilesystemContents::default() }
            });
            let inventory = Inventory { filesystems: filesystems.into(), ..Inventory::default() };
            let found = find_installation(&IronicNode(&node), &inventory).map_err(|error| error.to_string());
            match expected {
                Some(expected) => assert_eq!(found.unwrap().as_str(), expected),
                None => assert!(found.unwrap_err().contains("specify the partition of each file")),
            }
        }
    }

    #[test]
    fn refuses_incomplete_or_oversized_downloads() {
        let server = Server::start(b"hello".to_vec(), |request| match request.path.as_str() {
            "/long" => ResponseBehavior::body(vec![0; MAXIMUM_FILE_BYTES as usize + 1]),
            "/gone" => ResponseBehavior::status(404),
            "/cut" => ResponseBehavior::cut_after(2),
            _ => ResponseBehavior::default(),
        });
        assert_eq!(download_file(&server.url("whole")).unwrap(), b"hello");
        for (path, why) in [("long", "larger than 16 MiB"), ("gone", "404"), ("cut", "/cut")] {
            let error = download_file(&server.url(path)).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
