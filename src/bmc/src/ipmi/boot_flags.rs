//! Boot flags of a controller (IPMI 2.0, 28.12, parameter 5). They cause a single boot over PXE, in the boot mode of
//! the machine.

use super::IpmiController;
use crate::{READS_AFTER_REJECTION, WriteKind, bmc_refusal, read_until};
use common::error::Result;
use model::inventory::FirmwareType;

const VALID: u8 = 0x80;
const EFI: u8 = 0x20;
const DEVICE: u8 = 0x3c;
const PXE: u8 = 0x04;
/// Boot flags with the device, but without the valid bit. A controller reports these flags after the requested flags
/// have expired, or always, if it never sets the valid bit (such as ipmi_sim).
const DEVICE_ONLY: [u8; 2] = [0, PXE];

impl IpmiController<'_> {
    /// Lets the machine boot over PXE once, in EFI mode unless the machine has registered with BIOS firmware. Returns a
    /// warning if the controller does not report the resulting flags.
    pub(super) fn boot_pxe(&self, firmware: Option<FirmwareType>) -> Result<Option<String>> {
        // Without this command, the flags would expire after 60 seconds. An error is ignored, because not all
        // controllers support this parameter.
        let _ = self.change(WriteKind::Settings, &["raw", "0x00", "0x08", "0x03", "0x08"]);
        let mut before = self.read_boot_flags().ok().flatten();
        if before == Some(DEVICE_ONLY) {
            // The flags are cleared first, so that flags of an earlier request cannot be mistaken for the result of
            // this request.
            self.change(WriteKind::Settings, &["chassis", "bootdev", "none"])?;
            before = self.read_boot_flags().ok().flatten();
        }
        let is_bios = firmware == Some(FirmwareType::Bios);
        let (options, wanted): (&[&str], _) =
            if is_bios { (&[], [VALID, PXE]) } else { (&["options=efiboot"], [VALID | EFI, PXE]) };
        self.change(WriteKind::Settings, &[&["chassis", "bootdev", "pxe"], options].concat())?;
        let is_device_only = |flags: [u8; 2]| flags == DEVICE_ONLY && before != Some(DEVICE_ONLY);
        let is_set = |flags: &Option<[u8; 2]>| flags.is_some_and(|flags| flags == wanted || is_device_only(flags));
        let host = self.host;
        match read_until(READS_AFTER_REJECTION, || self.read_boot_flags(), is_set) {
            Ok(Some(flags)) if flags == wanted => Ok(None),
            Ok(Some(flags)) if is_device_only(flags) => Ok(Some(format!(
                "management controller {host} reports the boot device, but neither whether this device is in force \
                nor the boot mode"
            ))),
            Ok(Some([flags, device])) => Err(bmc_refusal(format!(
                "management controller {host} accepted the boot device, but reports the boot flags {flags:02x} {device:02x}, not {wanted_flags:02x} {wanted_device:02x}",
                wanted_flags = wanted[0],
                wanted_device = wanted[1]
            ))),
            Ok(None) | Err(_) => Ok(Some(format!(
                "management controller {host} does not report its boot flags, so they were not verified"
            ))),
        }
    }

    /// Reads the flags [`VALID`] and [`EFI`] (first byte), and the boot device (second byte). Returns `None` if the
    /// controller does not report them.
    fn read_boot_flags(&self) -> Result<Option<[u8; 2]>> {
        let output = self.run(&["chassis", "bootparam", "get", "5"])?;
        let data = output.lines().find_map(|line| line.trim().strip_prefix("Boot parameter data:"));
        let byte = |at: usize| u8::from_str_radix(data?.trim().get(at..at + 2)?, 16).ok();
        Ok(byte(0).zip(byte(2)).map(|(flags, device)| [flags & (VALID | EFI), device & DEVICE]))
    }
}
