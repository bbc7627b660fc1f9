//! Lines of a crypttab, and the origins of the keys that these lines name.

/// Directory in which systemd searches for the key of a line without a key file (crypttab(5)).
const KEY_DIRECTORY: &str = "/etc/cryptsetup-keys.d";

/// Devices with random content. With such a key, the content of the mapping is lost at every boot.
const RANDOM_DEVICES: [&str; 3] = ["/dev/urandom", "/dev/random", "/dev/hwrng"];

/// Options with which a security device unlocks the container.
const TOKEN_OPTIONS: [&str; 3] = ["tpm2-device=", "fido2-device=", "pkcs11-uri="];

/// Crypttab of the installed system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstalledCrypttab {
    pub text: String,
    /// Names of the files in `/etc/cryptsetup-keys.d`; `None` if the directory could not be read.
    pub key_files: Option<Vec<String>>,
}

/// Line of a crypttab.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CrypttabLine {
    /// Name of the mapping.
    pub name: String,
    pub source: String,
    /// Third field; empty if it is missing.
    key: String,
    options: Vec<String>,
}

/// Origin of the key of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum KeyOrigin {
    /// The system asks for a passphrase. `unchecked` is the path of the key file that systemd prefers if it exists;
    /// `None` if it is known that this file does not exist.
    Passphrase { unchecked: Option<String> },
    /// Option of a security device, such as `tpm2-device=auto`.
    Token(String),
    /// Path of a file that is required to unlock the container: a key file, or a detached header.
    File(String),
    /// A script, a device, or anything else that may depend on the installed system.
    Other(String),
    /// A random key: the mapping does not contain lasting data.
    Random,
}

impl CrypttabLine {
    /// Returns whether the system can start if the device of the line is absent.
    pub fn is_optional(&self) -> bool {
        self.options.iter().any(|option| option == "nofail" || option == "noauto")
    }

    /// Returns the file with the detached header; `None` if the header is on the device.
    pub fn detached_header(&self) -> Option<KeyOrigin> {
        self.find_option("header=").map(locate_file)
    }

    /// Returns the origin of the key. `key_files` contains the names of the files in `/etc/cryptsetup-keys.d`.
    pub fn key_origin(&self, key_files: Option<&[String]>) -> KeyOrigin {
        if RANDOM_DEVICES.contains(&self.key.as_str()) {
            return KeyOrigin::Random;
        }
        if let Some(script) = self.find_option("keyscript=") {
            return KeyOrigin::Other(format!("the script {script}"));
        }
        if !["", "none", "-"].contains(&self.key.as_str()) {
            return locate_file(&self.key);
        }
        let default = format!("{}.key", self.name);
        if key_files.is_some_and(|files| files.contains(&default)) {
            return KeyOrigin::File(format!("{KEY_DIRECTORY}/{default}"));
        }
        let mut options = self.options.iter();
        match options.find(|option| TOKEN_OPTIONS.iter().any(|prefix| option.starts_with(prefix))) {
            Some(token) => KeyOrigin::Token(token.clone()),
            None => {
                KeyOrigin::Passphrase { unchecked: key_files.is_none().then(|| format!("{KEY_DIRECTORY}/{default}")) }
            }
        }
    }

    fn find_option(&self, prefix: &str) -> Option<&str> {
        self.options.iter().find_map(|option| option.strip_prefix(prefix))
    }
}

/// Returns the origin of a key or header in a file. A file name with a colon may refer to a file on another device
/// (`/key:LABEL=usb`), and files below `/dev` and `/run` are not in a filesystem of fstab.
fn locate_file(path: &str) -> KeyOrigin {
    let is_virtual = ["/dev/", "/run/", "/proc/", "/sys/"].iter().any(|directory| path.starts_with(directory));
    let is_plain = path.starts_with('/') && !path.contains(':') && !path.contains("/..");
    match is_plain && !is_virtual {
        true => KeyOrigin::File(path.to_owned()),
        false => KeyOrigin::Other(path.to_owned()),
    }
}

/// Parses the lines of a crypttab. Comments, and lines with fewer than two fields, are skipped.
pub(crate) fn parse_crypttab(text: &str) -> Vec<CrypttabLine> {
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    let fields = lines.filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().map(str::to_owned);
        let (name, source) = (fields.next()?, fields.next()?);
        let (key, options) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
        let options = options.split(',').filter(|option| !option.is_empty()).map(str::to_owned).collect();
        Some(CrypttabLine { name, source, key, options })
    });
    fields.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin_of(line: &str, key_files: Option<&[&str]>) -> KeyOrigin {
        let [line] = &parse_crypttab(line)[..] else { panic!("{line}") };
        let key_files: Option<Vec<String>> =
            key_files.map(|files| files.iter().map(|file| (*file).to_owned()).collect());
        line.key_origin(key_files.as_deref())
    }

    #[test]
    fn lines_are_parsed_and_comments_skipped() {
        let lines =
            parse_crypttab("# <name> <device>\n\n data\tUUID=1  /root/key luks,nofail\nalone\nswap /dev/sda3\n");
        let names: Vec<(&str, &str)> = lines.iter().map(|line| (line.name.as_str(), line.source.as_str())).collect();
        assert_eq!(names, [("data", "UUID=1"), ("swap", "/dev/sda3")]);
        assert!(lines[0].is_optional() && !lines[1].is_optional());
    }

    #[test]
    fn origins_of_keys_are_recognized() {
        let file = |path: &str| KeyOrigin::File(path.to_owned());
        let other = |what: &str| KeyOrigin::Other(what.to_owned());
        let asked = KeyOrigin::Passphrase { unchecked: None };
        for (line, expected) in [
            ("data UUID=1", asked.clone()),
            ("data UUID=1 none luks,discard", asked.clone()),
            ("data UUID=1 -", asked),
            ("keyed UUID=1 none luks", file("/etc/cryptsetup-keys.d/keyed.key")),
            ("keyed UUID=1 none tpm2-device=auto", file("/etc/cryptsetup-keys.d/keyed.key")),
            ("data UUID=1 - tpm2-device=auto,nofail", KeyOrigin::Token("tpm2-device=auto".to_owned())),
            ("data UUID=1 /root/data.key luks", file("/root/data.key")),
            ("data UUID=1 none keyscript=decrypt_derived", other("the script decrypt_derived")),
            ("data UUID=1 /data.key:LABEL=usb", other("/data.key:LABEL=usb")),
            ("data UUID=1 /dev/disk/by-id/usb-1 keyfile-size=64", other("/dev/disk/by-id/usb-1")),
            ("data UUID=1 /run/key.socket", other("/run/key.socket")),
            ("data UUID=1 /srv/../root/key", other("/srv/../root/key")),
            ("swap /dev/sda3 /dev/urandom swap", KeyOrigin::Random),
        ] {
            assert_eq!(origin_of(line, Some(&["keyed.key"])), expected, "{line}");
        }
        let detached = &parse_crypttab("data UUID=1 /root/data.key luks,header=/boot/data.header")[0];
        assert_eq!(detached.detached_header(), Some(file("/boot/data.header")));
        assert_eq!(detached.key_origin(None), file("/root/data.key"));
        let unchecked = Some("/etc/cryptsetup-keys.d/data.key".to_owned());
        assert_eq!(origin_of("data UUID=1 none", None), KeyOrigin::Passphrase { unchecked });
    }
}
