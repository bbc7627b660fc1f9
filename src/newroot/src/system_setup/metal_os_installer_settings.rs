//! `/etc/metal/os-installer.yaml`: settings that control how a metal-stack image is finished. The file is read by
//! `os-installer` in the image. If an image contains the file but not `os-installer`, drophammer finishes the image
//! according to the file.

use super::metal_os_installer::CustomScript;
use crate::NewRoot;
use common::error::{Context, Phase, Result};
use common::yaml;
use marked_yaml::{LoaderOptions, Node};

pub(crate) const SETTINGS: &str = "/etc/metal/os-installer.yaml";

/// Names, in os-installer, of the tasks that drophammer also performs.
pub(crate) mod task {
    pub(crate) const PERSIST: &str = "persist configuration data from metal-hammer";
    pub(crate) const HOSTNAME: &str = "write hostname";
    pub(crate) const HOSTS: &str = "write /etc/hosts";
    pub(crate) const RESOLV_CONF: &str = "write /etc/resolv.conf";
    pub(crate) const NTP: &str = "write ntp configuration";
    pub(crate) const USER: &str = "create metal user";
    pub(crate) const NETWORK: &str = "configure network";
    pub(crate) const SSH_KEYS: &str = "authorized ssh keys";
    pub(crate) const USER_DATA: &str = "process userdata";
    pub(crate) const BOOT_LOADER: &str = "write booatloader config";
    pub(crate) const MACHINE_ID: &str = "unset machine id";
    pub(crate) const SCRIPT: &str = "execute custom executable";

    pub(crate) const ALL: [&str; 12] = [
        PERSIST,
        HOSTNAME,
        HOSTS,
        RESOLV_CONF,
        NTP,
        USER,
        NETWORK,
        SSH_KEYS,
        USER_DATA,
        BOOT_LOADER,
        MACHINE_ID,
        SCRIPT,
    ];
}

/// Settings of the image. If the image does not contain the settings file, all settings are empty, and no task is
/// disabled.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct OsInstallerSettings {
    /// Whether the image contains the settings file. Some tasks of os-installer are performed only in images with this
    /// file.
    pub is_metal: bool,
    /// Name of the distribution that is assumed for the image instead of the detected one.
    pub system: Option<String>,
    pub bootloader_id: Option<String>,
    pub script: Option<CustomScript>,
    only: Vec<String>,
    except: Vec<String>,
}

impl OsInstallerSettings {
    /// Reads the settings.
    ///
    /// # Errors
    /// Returns an error if the file is not valid YAML.
    pub(crate) fn read_settings(root: &NewRoot) -> Result<OsInstallerSettings> {
        let Ok(text) = root.read_text(SETTINGS) else { return Ok(OsInstallerSettings::default()) };
        // A file that contains only comments is not a YAML document, and is treated as empty.
        if text.lines().all(|line| ["", "---"].contains(&line.split('#').next().unwrap_or_default().trim())) {
            return Ok(OsInstallerSettings { is_metal: true, ..OsInstallerSettings::default() });
        }
        let what = || format!("read the image's {SETTINGS}");
        let yaml = yaml::read_document(&text, LoaderOptions::default()).context(Phase::Target, what)?;
        let word = |within: Option<&str>, name: &str| read_word(&yaml, within, name);
        let program = word(Some("custom_script"), "executable_path");
        let directory = word(Some("custom_script"), "workdir").unwrap_or_default();
        Ok(OsInstallerSettings {
            is_metal: true,
            system: word(None, "os_name").map(|name| name.to_lowercase()),
            bootloader_id: word(Some("overwrites"), "bootloader_id"),
            script: program.map(|program| CustomScript { program, directory }),
            only: read_words(&yaml, "only"),
            except: read_words(&yaml, "except"),
        })
    }

    /// Returns whether this task of os-installer is enabled.
    pub(crate) fn is_task_enabled(&self, task: &str) -> bool {
        let is_named = |names: &[String]| names.iter().any(|name| name == task);
        (self.only.is_empty() || is_named(&self.only)) && !is_named(&self.except)
    }

    /// Returns a message that lists the disabled tasks, if any.
    pub(crate) fn describe_disabled_tasks(&self) -> Option<String> {
        let out: Vec<&str> = task::ALL.into_iter().filter(|task| !self.is_task_enabled(task)).collect();
        (!out.is_empty())
            .then(|| format!("the image's {SETTINGS} disables these tasks: {tasks}", tasks = out.join(", ")))
    }
}

fn read_word(yaml: &Node, within: Option<&str>, name: &str) -> Option<String> {
    let mut fields = yaml.as_mapping()?;
    if let Some(within) = within {
        fields = fields.get_mapping(within)?;
    }
    fields
        .get_scalar(name)
        .map(|word| word.as_str().to_owned())
        .filter(|word| !["", "~", "null"].contains(&word.as_str()))
}

fn read_words(yaml: &Node, name: &str) -> Vec<String> {
    let list = yaml.as_mapping().and_then(|fields| fields.get_sequence(name));
    let words = list.into_iter().flat_map(|list| list.iter()).filter_map(Node::as_scalar);
    words.map(|word| word.as_str().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::tree;
    use super::*;

    fn of(text: &str) -> OsInstallerSettings {
        OsInstallerSettings::read_settings(&tree(&[("etc/metal/os-installer.yaml", text)]).1).unwrap()
    }

    #[test]
    fn settings_of_the_image_are_parsed() {
        let all = of("os_name: Debian\nexcept: [configure network, write ntp configuration]\n\
                      custom_script:\n  executable_path: ./own\n  workdir: /opt\noverwrites:\n  bootloader_id: metal-own\n");
        assert_eq!((all.system.as_deref(), all.bootloader_id.as_deref()), (Some("debian"), Some("metal-own")));
        let script = CustomScript { program: "./own".to_owned(), directory: "/opt".to_owned() };
        assert_eq!((all.is_metal, all.script.as_ref()), (true, Some(&script)));
        assert!(
            all.is_task_enabled(task::HOSTNAME)
                && !all.is_task_enabled(task::NETWORK)
                && !all.is_task_enabled(task::NTP)
        );
        let said = all.describe_disabled_tasks().unwrap();
        assert!(
            said.ends_with("os-installer.yaml disables these tasks: write ntp configuration, configure network"),
            "{said}"
        );

        let one = of(
            "only:\n- write hostname\n- execute custom executable\n- write hosts\nexcept: [execute custom executable]\n",
        );
        let done: Vec<&str> = task::ALL.into_iter().filter(|task| one.is_task_enabled(task)).collect();
        assert_eq!(done, [task::HOSTNAME]);
    }

    #[test]
    fn missing_settings_enable_all_tasks() {
        for overrides in
            [of("os_name: ~\noverwrites: {bootloader_id: ''}\n"), of("{}\n"), of("---\n# only: []\n"), of("")]
        {
            assert!(
                task::ALL.into_iter().all(|task| overrides.is_task_enabled(task))
                    && overrides.describe_disabled_tasks().is_none()
            );
            assert_eq!(overrides, OsInstallerSettings { is_metal: true, ..OsInstallerSettings::default() });
        }
        assert_eq!(OsInstallerSettings::read_settings(&tree(&[]).1).unwrap(), OsInstallerSettings::default());
        let error = OsInstallerSettings::read_settings(&tree(&[("etc/metal/os-installer.yaml", "[")]).1)
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("read the image's /etc/metal/os-installer.yaml: "), "{error}");
    }
}
