//! What the agent was told at boot: the kernel command line.

use crate::error::{Error, Phase, Result};

/// Where the control plane is and who this machine is to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// `drophammer.url=`: the control plane, without a trailing slash.
    pub url: String,
    /// `drophammer.token=`: opens this machine's part of the API.
    pub token: String,
    /// `drophammer.machine=`: the machine's id; the SMBIOS UUID when absent.
    pub machine: Option<String>,
    /// `drophammer.key=`: who may sign images, any number of them.
    pub keys: Vec<String>,
    /// `drophammer.minimum=`: the oldest signed image of each operating system that may be installed. The ramdisk may ask for more.
    pub minimum: Vec<String>,
    /// `console=`, all of them in order; handed to the installed system.
    pub consoles: Vec<String>,
}

impl Settings {
    /// Reads `/proc/cmdline`'s text.
    ///
    /// # Errors
    /// A setting that is missing, given twice with different values, or unusable.
    pub fn from_cmdline(text: &str) -> Result<Settings> {
        let one = |name: &str| -> Result<Option<String>> {
            let mut values = text.split_whitespace().filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            let first = values.next();
            match values.find(|value| Some(*value) != first) {
                None => Ok(first.filter(|value| !value.is_empty()).map(str::to_owned)),
                Some(other) => Err(Error::new(
                    Phase::Settings,
                    format!(
                        "kernel command line: {name}= is given twice, as {} and {other}",
                        first.unwrap_or_default()
                    ),
                )),
            }
        };
        let needed = |name: &str| -> Result<String> {
            one(name)?.ok_or_else(|| {
                Error::new(
                    Phase::Settings,
                    format!("kernel command line: {name}= is missing; the iPXE script of `drophammer serve` sets it"),
                )
            })
        };
        let url = needed("drophammer.url")?;
        if !url.starts_with("http://") && !url.starts_with("https://") {
            return Err(Error::new(
                Phase::Settings,
                format!("kernel command line: drophammer.url={url} is neither http:// nor https://"),
            ));
        }
        let all = |prefix: &str| {
            text.split_whitespace().filter_map(|word| word.strip_prefix(prefix)).map(str::to_owned).collect()
        };
        Ok(Settings {
            url: url.trim_end_matches('/').to_owned(),
            token: needed("drophammer.token")?,
            machine: one("drophammer.machine")?.map(|id| id.to_lowercase()),
            keys: all("drophammer.key="),
            minimum: all("drophammer.minimum="),
            consoles: all("console="),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read() {
        let settings = Settings::from_cmdline(
            "initrd=initrd console=tty0 console=ttyS0,115200n8 drophammer.url=http://10.0.0.1:8080/ \
             drophammer.token=abc drophammer.machine=4C4C4544-0051 drophammer.key=RWa= drophammer.key=RWb quiet \
             drophammer.minimum=debian-12.0.20261101 drophammer.minimum=ubuntu-24.04\n",
        )
        .unwrap();
        assert_eq!(settings.url, "http://10.0.0.1:8080");
        assert_eq!(settings.token, "abc");
        assert_eq!(settings.machine.as_deref(), Some("4c4c4544-0051"));
        assert_eq!(settings.keys, ["RWa=", "RWb"]);
        assert_eq!(settings.minimum, ["debian-12.0.20261101", "ubuntu-24.04"]);
        assert_eq!(settings.consoles, ["tty0", "ttyS0,115200n8"]);
    }

    #[test]
    fn defaults() {
        let settings = Settings::from_cmdline("drophammer.url=https://c drophammer.token=t").unwrap();
        assert_eq!(settings.machine, None);
        assert!(settings.consoles.is_empty() && settings.keys.is_empty() && settings.minimum.is_empty());
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let cases = [
            ("drophammer.token=t", "drophammer.url= is missing"),
            ("drophammer.url=http://c", "drophammer.token= is missing"),
            ("drophammer.url= drophammer.token=t", "drophammer.url= is missing"),
            ("drophammer.url=ftp://c drophammer.token=t", "neither http:// nor https://"),
            ("drophammer.url=http://c drophammer.token=t drophammer.token=u", "given twice, as t and u"),
        ];
        for (cmdline, expected) in cases {
            let error = Settings::from_cmdline(cmdline).unwrap_err().to_string();
            assert!(error.contains(expected), "{cmdline}: {error}");
        }
    }
}
