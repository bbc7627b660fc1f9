//! Removal of network settings from cloud-init's own files in a raw image. These settings take precedence over the
//! settings of the seed (`network_config_sources` in cloudinit/sources/__init__.py). Another configuration file could
//! not override them either, because cloud-init merges the settings of all files.

use crate::NewRoot;
use common::error::Result;
use common::yaml;
use marked_yaml::LoaderOptions;
use netconfig::CLOUD_FOLDER;

const CLOUD_CONFIG: &str = "/etc/cloud/cloud.cfg";

/// Removes `network` from cloud-init's configuration files. A file whose network settings cannot be removed is
/// reported.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn remove_network_settings(root: &NewRoot, say: &dyn Fn(&str)) -> Result<()> {
    let names = root.list_names(CLOUD_FOLDER).unwrap_or_default();
    let files = names.iter().filter(|name| name.ends_with(".cfg")).map(|name| format!("{CLOUD_FOLDER}/{name}"));
    for path in files.chain([CLOUD_CONFIG.to_owned()]) {
        let Ok(text) = root.read_text(&path) else { continue };
        match remove_network(&text) {
            Ok(Some(rest)) => {
                root.rewrite_file(&path, 0o644, rest.as_bytes())?;
                say(&format!(
                    "removed `network` from the image's {path}, because this key would override the network configuration of this machine"
                ));
            }
            Ok(None) => {}
            Err(why) => say(&format!(
                "WARNING: the image's {path} may override the network configuration of this machine, but was not changed: {why}"
            )),
        }
    }
    Ok(())
}

/// Removes the lines of `network` from a document; `None` if the document does not contain it.
///
/// # Errors
/// Returns the reason if the document cannot be parsed, or the top-level keys of the file are not at the start of a
/// line.
fn remove_network(text: &str) -> std::result::Result<Option<String>, String> {
    if !text.contains("network") {
        return Ok(None);
    }
    let document = yaml::read_document(text, LoaderOptions::default())?;
    let Some(mapping) = document.as_mapping() else { return Ok(None) };
    let keys = mapping.keys().filter_map(|key| Some((key.as_str(), key.span().start().copied()?)));
    let keys: Vec<(&str, usize, usize)> = keys.map(|(key, at)| (key, at.line(), at.column())).collect();
    let Some((_, start, _)) = keys.iter().find(|(key, ..)| *key == "network") else { return Ok(None) };
    if keys.iter().any(|(_, _, column)| *column != 1) {
        return Err("the top-level keys of the file are not at the start of a line".to_owned());
    }
    let end = keys.iter().map(|(_, line, _)| *line).filter(|line| line > start).min().unwrap_or(usize::MAX);
    let lines = text.split_inclusive('\n').enumerate();
    Ok(Some(lines.filter(|(at, _)| !(*start..end).contains(&(at + 1))).map(|(_, line)| line).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system_setup::testing::{capture_log, tree};

    #[test]
    fn only_the_network_section_is_removed() {
        for (text, expected) in [
            ("users: [default]\n", Ok(None)),
            ("# network: x\nusers: [default]\n", Ok(None)),
            ("hosts: {network: 1}\n", Ok(None)),
            ("network: {config: disabled}\n", Ok(Some(""))),
            (
                "#cloud-config\na: '0644'\nnetwork:\n  version: 2\n  ethernets:\n    eth0: {dhcp4: true}\nusers:\n- default\n",
                Ok(Some("#cloud-config\na: '0644'\nusers:\n- default\n")),
            ),
            ("users: []\n\"network\":\n  config: disabled", Ok(Some("users: []\n"))),
            (
                "{network: {config: disabled}, users: []}\n",
                Err("the top-level keys of the file are not at the start of a line"),
            ),
        ] {
            let removed = remove_network(text);
            let removed = removed.as_ref().map(Option::as_deref).map_err(String::as_str);
            assert_eq!(removed, expected, "{text}");
        }
        assert!(remove_network("network: [\n").is_err());
    }

    #[test]
    fn settings_that_override_the_seed_are_removed() {
        let installer = ("etc/cloud/cloud.cfg.d/subiquity.cfg", "network: {config: disabled}\n");
        let other = ("etc/cloud/cloud.cfg.d/10-network.cfg.bak", "network: {config: disabled}\n");
        let main = ("etc/cloud/cloud.cfg", "users: [default]\nnetwork:\n  config: disabled\n");
        let broken = ("etc/cloud/cloud.cfg.d/99-x.cfg", "{network: {config: disabled}}\n");
        let (_dir, root) = tree(&[installer, other, main, broken]);
        let (done, lines) = capture_log(|say| remove_network_settings(&root, say));
        done.unwrap();
        assert_eq!(root.read_text("/etc/cloud/cloud.cfg.d/subiquity.cfg").unwrap(), "");
        assert_eq!(root.read_text("/etc/cloud/cloud.cfg").unwrap(), "users: [default]\n");
        for (path, text) in [other, broken] {
            assert_eq!(root.read_text(&format!("/{path}")).unwrap(), text);
        }
        assert!(
            lines.iter().any(|line| line.starts_with("WARNING: the image's /etc/cloud/cloud.cfg.d/99-x.cfg")),
            "{lines:?}"
        );
        assert_eq!(lines.len(), 3, "{lines:?}");
    }
}
