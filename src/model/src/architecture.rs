//! Processor architectures of machines and images, under Debian's names, and their recognition from executable files.

use serde::{Deserialize, Deserializer, Serialize};
use std::fmt::{self, Display};
use std::str::FromStr;

/// Processor architecture that drophammer supports.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Architecture {
    /// x86-64. Inventories of earlier versions, which ran only on x86-64, do not contain the architecture.
    #[default]
    Amd64,
    /// 64-bit Arm, which the kernel calls aarch64.
    Arm64,
}

/// Number of bytes at the beginning of a file that are sufficient to recognize its architecture.
pub const RECOGNIZED_BYTES: u64 = 4096;

/// Values of `e_machine` in ELF headers.
const ELF_MACHINES: [(u16, Architecture); 2] = [(62, Architecture::Amd64), (183, Architecture::Arm64)];

/// Values of `Machine` in PE headers.
const PE_MACHINES: [(u16, Architecture); 2] = [(0x8664, Architecture::Amd64), (0xaa64, Architecture::Arm64)];

impl Architecture {
    /// All supported architectures.
    pub const ALL: [Architecture; 2] = [Architecture::Amd64, Architecture::Arm64];

    /// Architecture for which this program was compiled.
    pub const NATIVE: Architecture =
        if cfg!(target_arch = "aarch64") { Architecture::Arm64 } else { Architecture::Amd64 };

    /// Returns whether documents omit the architecture.
    pub fn is_default(&self) -> bool {
        *self == Architecture::default()
    }

    /// Returns Debian's name, which is also the name in OCI indexes.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "amd64",
            Architecture::Arm64 => "arm64",
        }
    }

    /// Returns the suffix in the names of EFI programs: `x64` in `grubx64.efi`.
    pub const fn efi_suffix(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x64",
            Architecture::Arm64 => "aa64",
        }
    }

    /// Returns GRUB's name of UEFI on this architecture, as in `/usr/lib/grub/x86_64-efi`.
    pub const fn grub_efi_platform(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64-efi",
            Architecture::Arm64 => "arm64-efi",
        }
    }

    /// Returns the kernel's name, which `uname -m` prints.
    pub const fn kernel_name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64",
            Architecture::Arm64 => "aarch64",
        }
    }

    /// Returns the Debian multiarch tuple, which names the library directory below `/usr/lib`.
    pub const fn multiarch_name(self) -> &'static str {
        match self {
            Architecture::Amd64 => "x86_64-linux-gnu",
            Architecture::Arm64 => "aarch64-linux-gnu",
        }
    }

    /// Recognizes the architecture of a program, a kernel or an EFI program by the first [`RECOGNIZED_BYTES`] of the
    /// file. Returns `None` for other files and other architectures.
    pub fn recognize(bytes: &[u8]) -> Option<Architecture> {
        let half = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let find = |table: [(u16, Architecture); 2], machine: u16| {
            table.into_iter().find(|(number, _)| *number == machine).map(|(_, architecture)| architecture)
        };
        // 64-bit ELF, least significant byte first.
        if bytes.starts_with(b"\x7fELF\x02\x01") {
            return find(ELF_MACHINES, half(18)?);
        }
        // EFI programs and kernels with an EFI stub are PE files. The offset of the PE header is stored at 0x3c.
        if bytes.starts_with(b"MZ") {
            let header = usize::from(half(0x3c)?);
            return match bytes.get(header..header + 4)? {
                b"PE\0\0" => find(PE_MACHINES, half(header + 4)?),
                _ => None,
            };
        }
        // Header of an arm64 kernel (Documentation/arch/arm64/booting.rst of Linux).
        if bytes.get(0x38..0x3c) == Some(b"ARM\x64") {
            return Some(Architecture::Arm64);
        }
        // Setup header of an x86 kernel (Documentation/arch/x86/boot.rst). Bit 0 of `xloadflags` is set for a 64-bit
        // kernel.
        let is_64_bit = bytes.get(0x202..0x206) == Some(b"HdrS") && half(0x236)? & 1 == 1;
        is_64_bit.then_some(Architecture::Amd64)
    }
}

impl Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(text: &str) -> Result<Architecture, String> {
        let found = Architecture::ALL.into_iter().find(|architecture| architecture.name() == text);
        found.ok_or_else(|| "the architecture is neither amd64 nor arm64".to_owned())
    }
}

/// Reads an architecture that another version may have written. Returns `None` for an unknown name.
pub(crate) fn deserialize_known<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Architecture>, D::Error> {
    let name: Option<String> = Option::deserialize(from)?;
    Ok(name.and_then(|name| name.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        for (at, part) in parts {
            bytes[*at..at + part.len()].copy_from_slice(part);
        }
        bytes
    }

    #[test]
    fn architecture_is_recognized_by_header() {
        let (amd64, arm64) = (Some(Architecture::Amd64), Some(Architecture::Arm64));
        let elf: &[u8] = b"\x7fELF\x02\x01\x01";
        let pe = |machine: &'static [u8]| file(&[(0, b"MZ"), (0x3c, &[0x80]), (0x80, b"PE\0\0"), (0x84, machine)]);
        for (bytes, expected) in [
            (file(&[(0, elf), (18, &[62, 0])]), amd64),
            (file(&[(0, elf), (18, &[183, 0])]), arm64),
            // RISC-V, and 32-bit x86.
            (file(&[(0, elf), (18, &[243, 0])]), None),
            (file(&[(0, b"\x7fELF\x01\x01\x01"), (18, &[3, 0])]), None),
            (pe(b"\x64\x86"), amd64),
            (pe(b"\x64\xaa"), arm64),
            // IA-32.
            (pe(b"\x4c\x01"), None),
            (file(&[(0, b"MZ"), (0x3c, &[0xff, 0xff])]), None),
            (file(&[(0x38, b"ARM\x64")]), arm64),
            (file(&[(0x202, b"HdrS"), (0x236, &[1])]), amd64),
            (file(&[(0x202, b"HdrS")]), None),
            (b"#!/bin/sh\n".to_vec(), None),
            (Vec::new(), None),
            (elf.to_vec(), None),
            (b"MZ".to_vec(), None),
        ] {
            assert_eq!(Architecture::recognize(&bytes), expected, "{:?}", &bytes[..bytes.len().min(8)]);
        }
    }

    #[test]
    fn running_program_has_the_native_architecture() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(Architecture::recognize(&program), Some(Architecture::NATIVE));
    }

    #[test]
    fn names_are_those_of_debian() {
        for architecture in Architecture::ALL {
            assert_eq!(architecture.name().parse(), Ok(architecture));
            assert_eq!(serde_json::to_value(architecture).unwrap(), architecture.name());
        }
        assert!("x86_64".parse::<Architecture>().is_err());
    }
}
