//! Settings of the agent on the kernel command line: the control plane, and the data that the agent needs to connect to
//! it.

mod ironic;

pub use ironic::ConductorSettings;

use common::error::{Error, Phase, Result};

/// Settings from the kernel command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentSettings {
    pub control: ControlPlaneSource,
    /// `drophammer.machine=`: id of the machine; defaults to the SMBIOS UUID.
    pub machine: Option<String>,
    /// `drophammer.key=`: public keys whose signatures on images and machine files are trusted; may be repeated.
    pub keys: Vec<String>,
    /// `drophammer.minimum=`: for each operating system, the oldest version of a signed image that may be installed.
    /// If the ramdisk requires a later version, that version applies.
    pub minimum: Vec<String>,
    /// `console=`: all consoles, in the order of the command line. The installed system gets the same consoles.
    pub consoles: Vec<String>,
}

/// Control plane of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlPlaneSource {
    Server {
        /// `drophammer.url=`: URL of the server, without a trailing slash.
        url: String,
        /// `drophammer.token=`: token that authenticates the requests of this machine.
        token: String,
    },
    /// Machine file that is read without a server. In the file's location and in the URL for reports, `{uuid}`, `{mac}`
    /// and `{serial}` are replaced by properties of the machine.
    File {
        /// `drophammer.file=`: location of the machine file, which is a URL or a path.
        file: String,
        /// `drophammer.report=`: URL to which the report is sent with PUT.
        report: Option<String>,
    },
    /// `PIXIE_API_URL=`: metal-stack, whose service pixie provides all other settings.
    MetalStack { pixie: String },
    /// `ipa-api-url=` or `ipa-inspection-callback-url=`: an Ironic conductor.
    Conductor(Box<ConductorSettings>),
}

impl AgentSettings {
    /// Parses the text of `/proc/cmdline`.
    ///
    /// # Errors
    /// Fails if a setting is missing, unusable, or specified twice with different values. Also fails if no control
    /// plane, or more than one, is configured.
    pub fn from_cmdline(text: &str) -> Result<AgentSettings> {
        let all = |name: &str| -> Vec<String> {
            let words = text.split_whitespace();
            words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned).collect()
        };
        let one = |name: &str| match &all(name)[..] {
            [first, others @ ..] => match others.iter().find(|value| *value != first) {
                Some(other) => Err(cmdline_error(format!("{name}= is specified twice, as {first} and {other}"))),
                None => Ok(Some(first.clone()).filter(|value| !value.is_empty())),
            },
            [] => Ok(None),
        };
        Ok(AgentSettings {
            control: parse_control_plane(&one)?,
            machine: one("drophammer.machine")?.map(|id| id.to_lowercase()),
            keys: all("drophammer.key"),
            minimum: all("drophammer.minimum"),
            consoles: all("console"),
        })
    }
}

fn parse_control_plane(one: &impl Fn(&str) -> Result<Option<String>>) -> Result<ControlPlaneSource> {
    let (token, report) = (one("drophammer.token")?, one("drophammer.report")?);
    // The machine is controlled by an Ironic conductor if at least one of these two settings is specified.
    let conductor = one("ipa-api-url")?.or(one("ipa-inspection-callback-url")?);
    let named = [
        ("drophammer.url=", one("drophammer.url")?),
        ("drophammer.file=", one("drophammer.file")?),
        ("PIXIE_API_URL=", one("PIXIE_API_URL")?),
        ("ipa-api-url= or ipa-inspection-callback-url=", conductor),
    ];
    let named: Vec<(&str, String)> = named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    match &named[..] {
        [("drophammer.url=", url)] => server_control(url, token, report),
        [("drophammer.file=", file)] => file_control(file, report),
        [("PIXIE_API_URL=", pixie)] => metal_stack_control(pixie, report),
        [_] => {
            ConductorSettings::parse_settings(one).map(|conductor| ControlPlaneSource::Conductor(Box::new(conductor)))
        }
        [] => Err(cmdline_error(
            "no control plane is configured: set drophammer.url= (the iPXE script of `drophammer serve` sets it), \
             drophammer.file=, PIXIE_API_URL=, ipa-api-url= or ipa-inspection-callback-url="
                .to_owned(),
        )),
        several => {
            let names: Vec<&str> = several.iter().map(|(name, _)| *name).collect();
            Err(cmdline_error(format!(
                "several control planes are configured: {names}; set only one",
                names = names.join(" and ")
            )))
        }
    }
}

fn server_control(url: &str, token: Option<String>, report: Option<String>) -> Result<ControlPlaneSource> {
    if !is_url(url) {
        return Err(cmdline_error(format!("drophammer.url={url} must begin with http:// or https://")));
    }
    if report.is_some() {
        return Err(cmdline_error(
            "drophammer.report= cannot be combined with drophammer.url=, because the server receives the report; remove \
             drophammer.report="
                .to_owned(),
        ));
    }
    let missing =
        || cmdline_error("drophammer.token= is missing; the iPXE script of `drophammer serve` sets it".to_owned());
    Ok(ControlPlaneSource::Server { url: url.trim_end_matches('/').to_owned(), token: token.ok_or_else(missing)? })
}

fn file_control(file: &str, report: Option<String>) -> Result<ControlPlaneSource> {
    if !is_url(file) && !file.starts_with('/') {
        return Err(cmdline_error(format!(
            "drophammer.file={file} must be an http:// or https:// URL or an absolute path"
        )));
    }
    match report {
        Some(report) if !is_url(&report) => {
            Err(cmdline_error(format!("drophammer.report={report} must begin with http:// or https://")))
        }
        report => Ok(ControlPlaneSource::File { file: file.to_owned(), report }),
    }
}

fn metal_stack_control(pixie: &str, report: Option<String>) -> Result<ControlPlaneSource> {
    if !is_url(pixie) {
        return Err(cmdline_error(format!("PIXIE_API_URL={pixie} must begin with http:// or https://")));
    }
    if report.is_some() {
        return Err(cmdline_error(
            "drophammer.report= cannot be combined with metal-stack, because metal-stack receives the report; remove drophammer.report="
                .to_owned(),
        ));
    }
    Ok(ControlPlaneSource::MetalStack { pixie: pixie.to_owned() })
}

fn is_url(text: &str) -> bool {
    text.starts_with("http://") || text.starts_with("https://")
}

fn cmdline_error(why: String) -> Error {
    Error::new(Phase::Settings, format!("kernel command line: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_settings_are_parsed_from_the_command_line() {
        let settings = AgentSettings::from_cmdline(
            "initrd=initrd console=tty0 console=ttyS0,115200n8 drophammer.url=http://10.0.0.1:8080/ \
             drophammer.token=abc drophammer.machine=4C4C4544-0051 drophammer.key=RWa= drophammer.key=RWb quiet \
             drophammer.minimum=debian-12.0.20261101 drophammer.minimum=ubuntu-24.04\n",
        )
        .unwrap();
        let server = ControlPlaneSource::Server { url: "http://10.0.0.1:8080".into(), token: "abc".into() };
        assert_eq!(settings.control, server);
        assert_eq!(settings.machine.as_deref(), Some("4c4c4544-0051"));
        assert_eq!(settings.keys, ["RWa=", "RWb"]);
        assert_eq!(settings.minimum, ["debian-12.0.20261101", "ubuntu-24.04"]);
        assert_eq!(settings.consoles, ["tty0", "ttyS0,115200n8"]);
    }

    #[test]
    fn optional_settings_default_to_empty() {
        let settings = AgentSettings::from_cmdline("drophammer.url=https://c drophammer.token=t").unwrap();
        assert_eq!(settings.machine, None);
        assert!(settings.consoles.is_empty() && settings.keys.is_empty() && settings.minimum.is_empty());
    }

    #[test]
    fn allocation_file_needs_no_token() {
        for (cmdline, file, report) in [
            ("drophammer.file=https://c/{uuid}.json", "https://c/{uuid}.json", None),
            ("drophammer.file=/m/{mac} drophammer.report=http://c/{uuid}", "/m/{mac}", Some("http://c/{uuid}")),
        ] {
            let (file, report) = (file.to_owned(), report.map(str::to_owned));
            assert_eq!(
                AgentSettings::from_cmdline(cmdline).unwrap().control,
                ControlPlaneSource::File { file, report }
            );
        }
    }

    /// The kernel command line is the one that pixie provides in a partition of mini-lab.
    #[test]
    fn pixie_url_selects_metal_stack() {
        let cmdline =
            "ip=dhcp carrier_timeout=10 console=ttyS0,115200n8 PIXIE_API_URL=http://172.17.0.1:4242/certs DEBUG=1";
        let settings = AgentSettings::from_cmdline(cmdline).unwrap();
        assert_eq!(settings.control, ControlPlaneSource::MetalStack { pixie: "http://172.17.0.1:4242/certs".into() });
        assert_eq!(settings.consoles, ["ttyS0,115200n8"]);
    }

    #[test]
    fn reports_unusable_settings_by_name() {
        let cases = [
            ("drophammer.token=t", "set drophammer.url="),
            ("drophammer.url=http://c", "drophammer.token= is missing"),
            ("drophammer.url= drophammer.token=t", "set drophammer.url="),
            ("drophammer.url=ftp://c drophammer.token=t", "must begin with http:// or https://"),
            ("drophammer.url=http://c drophammer.token=t drophammer.token=u", "specified twice, as t and u"),
            ("PIXIE_API_URL=pixie", "PIXIE_API_URL=pixie must begin with http:// or https://"),
            ("PIXIE_API_URL=http://p drophammer.report=http://r", "cannot be combined with metal-stack"),
            ("drophammer.file=c", "drophammer.file=c must be an http:// or https:// URL"),
            ("drophammer.file=/c drophammer.report=/d", "drophammer.report=/d must begin with"),
            (
                "drophammer.url=http://c drophammer.token=t drophammer.report=http://d",
                "cannot be combined with drophammer.url=",
            ),
        ];
        for (cmdline, expected) in cases {
            let error = AgentSettings::from_cmdline(cmdline).unwrap_err().to_string();
            assert!(error.contains(expected), "{cmdline}: {error}");
        }
    }

    #[test]
    fn requires_exactly_one_control_plane() {
        let conductor = "ipa-api-url= or ipa-inspection-callback-url=";
        for (cmdline, names) in [
            (
                "quiet",
                vec![
                    "drophammer.url=",
                    "drophammer.file=",
                    "PIXIE_API_URL=",
                    "ipa-api-url=",
                    "ipa-inspection-callback-url=",
                ],
            ),
            (
                "drophammer.url=http://c drophammer.token=t drophammer.file=/f",
                vec!["drophammer.url= and drophammer.file="],
            ),
            ("PIXIE_API_URL=http://p drophammer.file=/f", vec!["drophammer.file= and PIXIE_API_URL="]),
            (
                "drophammer.file=/f ipa-api-url=http://i ipa-inspection-callback-url=http://j",
                vec!["drophammer.file= and ", conductor],
            ),
            ("PIXIE_API_URL=http://p drophammer.url=http://c", vec!["drophammer.url= and PIXIE_API_URL="]),
        ] {
            let error = AgentSettings::from_cmdline(cmdline).unwrap_err().to_string();
            names.iter().for_each(|name| assert!(error.contains(name), "{cmdline}: {error}"));
        }
    }
}
