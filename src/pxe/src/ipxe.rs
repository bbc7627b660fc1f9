//! iPXE scripts, and validation of those values in the scripts that unauthenticated clients control.

use model::architecture::Architecture;
use std::path::Path;
use time::OffsetDateTime;

/// Parameters for booting the ramdisk: addresses of the server, and identity of the machine.
pub struct RamdiskBoot<'a> {
    /// Base URL of the API, without a trailing slash.
    pub url: &'a str,
    /// Base URL from which the firmware loads kernel and ramdisk.
    pub files: &'a str,
    pub token: &'a str,
    pub machine: &'a str,
    pub consoles: &'a [String],
    /// Network configuration for a network without DHCP, encoded as the value of `drophammer.network=`.
    pub network: Option<&'a str>,
    /// Additional kernel arguments that the operator has specified.
    pub cmdline: &'a str,
    /// True if the ramdisk offers a shell at the console instead of starting the agent.
    pub stop: bool,
    /// Architecture of the machine.
    pub architecture: Architecture,
    /// File name of the ramdisk for amd64.
    pub initrd: &'a str,
}

/// File name of the kernel in the boot directory.
pub const KERNEL: &str = "vmlinuz";

/// Returns the name of a boot file for machines of this architecture: `vmlinuz`, or `vmlinuz-arm64`.
pub fn boot_file_name(name: &str, architecture: Architecture) -> String {
    match architecture {
        Architecture::Amd64 => name.to_owned(),
        Architecture::Arm64 => format!("{name}-{architecture}"),
    }
}

/// Returns whether the path of a kernel or ramdisk is a file that is not empty.
pub fn is_usable_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.len() > 0)
}

/// Returns the architecture for a value of iPXE's setting `buildarch`. iPXE for BIOS is built for `i386`, and earlier
/// versions of the start script did not send the setting.
pub fn parse_buildarch(buildarch: &str) -> Architecture {
    if buildarch == "arm64" { Architecture::Arm64 } else { Architecture::Amd64 }
}

impl RamdiskBoot<'_> {
    pub fn kernel_url(&self) -> String {
        format!("{}/boot/{}", self.files, boot_file_name(KERNEL, self.architecture))
    }

    pub fn initrd_url(&self) -> String {
        format!("{}/boot/{}", self.files, boot_file_name(self.initrd, self.architecture))
    }

    /// Returns the kernel command line, which is the same for iPXE and kexec.
    pub fn kernel_arguments(&self) -> String {
        let RamdiskBoot { url, token, machine, .. } = self;
        let mut arguments = vec![
            format!("drophammer.url={url}"),
            format!("drophammer.token={token}"),
            format!("drophammer.machine={machine}"),
        ];
        arguments.extend(self.stop.then(|| "drophammer.stop=1".to_owned()));
        arguments.extend(self.consoles.iter().map(|console| format!("console={console}")));
        arguments.extend(self.network.map(|network| format!("drophammer.network={network}")));
        arguments.push("panic=-1".to_owned());
        arguments.extend(self.cmdline.split_whitespace().map(str::to_owned));
        arguments.join(" ")
    }
}

/// Maximum number of attempts of a script to load a file. The pauses between the attempts take 165 s in total, which is
/// longer than a restart of the server or its database. The number is limited, because an installed machine with PXE
/// first in its boot order must boot its disk even if the server no longer exists.
const DOWNLOADS: u32 = 9;

/// First pause between two attempts, in seconds. Each further pause is longer by this value, up to [`LONGEST_PAUSE`].
const PAUSE: u32 = 5;

/// Longest pause between two attempts, in seconds. A multiple of [`PAUSE`], because the scripts compare for equality.
const LONGEST_PAUSE: u32 = 30;

/// Returns the commands that start the count of downloads, before the label `again`.
fn reset_downloads() -> String {
    format!("clear downloads ||\nclear pause ||\ninc pause {PAUSE}\n")
}

/// Returns the commands that follow a failed download. They jump to the label `again` until the download has failed
/// [`DOWNLOADS`] times, and then to the label `stop`. Ctrl-C during a pause also leads to `stop`. iPXE aborts a script
/// if a command fails, unless `||` follows the command.
fn retry_download(what: &str) -> String {
    format!(
        "inc downloads\niseq ${{downloads}} {DOWNLOADS} && goto stop ||\n\
         echo drophammer: waiting for {what}: attempt ${{downloads}} of {DOWNLOADS} failed, the next follows in ${{pause}} s, Ctrl-C stops waiting\n\
         sleep ${{pause}} || goto stop\niseq ${{pause}} {LONGEST_PAUSE} || inc pause {PAUSE}\ngoto again\n:stop\n"
    )
}

/// Returns a script that boots the ramdisk. UEFI kernels request the ramdisk by the name in `initrd=initrd`; BIOS
/// ignores this argument.
///
/// If kernel or ramdisk still cannot be loaded after the last attempt, the script exits, and the firmware boots the
/// disk. If `keep_from_disk` is true, the system on the disk is incomplete or belongs to another machine. The script
/// then never returns to the firmware, but restarts the machine after half an hour, like the ramdisk after a failure.
pub fn ramdisk_script(boot: &RamdiskBoot, keep_from_disk: bool) -> String {
    let (kernel, initrd, arguments) = (boot.kernel_url(), boot.initrd_url(), boot.kernel_arguments());
    // The time is added here and not in [`RamdiskBoot::kernel_arguments`], because the digest of those arguments must
    // be the same for each boot.
    let now = OffsetDateTime::now_utc().unix_timestamp();
    let (reset, retry) = (reset_downloads(), retry_download(&format!("kernel and ramdisk from {}", boot.files)));
    let end = match keep_from_disk {
        true => {
            "echo drophammer: this machine must not boot its disks: it restarts in 30 minutes, or with Ctrl-C\nsleep 1800 ||\n\
             reboot || goto again\n"
        }
        false => "sleep 30 ||\nexit 1\n",
    };
    format!(
        "#!ipxe\n{reset}:again\nimgfree ||\nkernel {kernel} initrd=initrd drophammer.time={now} {arguments} || goto failed\n\
         initrd --name initrd {initrd} || goto failed\nboot ||\n:failed\n{retry}\
         echo drophammer: this machine CANNOT BOOT the ramdisk from {}: check the output of drophammer serve\n{end}",
        boot.files
    )
}

/// Returns a script that boots the installed system. On UEFI firmware, the script exits with an error, so that the
/// firmware tries its next boot entry. Without an error, the firmware would show its menu (UEFI 2.10, 3.1.1). A BIOS
/// may stop in both cases, so on BIOS firmware the script boots the first disk itself.
pub fn local_disk_script(machine: &str) -> String {
    format!(
        "#!ipxe\necho drophammer: {machine} is installed, starting its disk\niseq ${{platform}} pcbios || exit 1\n\
         sanboot --no-describe --drive 0x80 ||\n\
         echo drophammer: this machine CANNOT BOOT its first disk (BIOS drive 0x80): check the order of its disks\nsleep 30 ||\nexit 1\n"
    )
}

/// Returns a script that waits and repeats the request, until the operator has corrected the machine file, or the
/// migration or the installation has ended. The script never returns to the firmware, even after an error, because the
/// firmware would boot the disk.
pub fn hold_script(url: &str, machine: &str) -> String {
    format!(
        "#!ipxe\n:again\necho drophammer: {machine} waits: it must not boot its disks, and its file does not list the NIC ${{netX/mac}}\n\
         sleep 30 ||\nchain --replace {url}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}}&arch=${{buildarch}} || goto again\n"
    )
}

/// Returns the script that TFTP serves. `netX` is the NIC that iPXE opened last, which is the NIC that has loaded this
/// script. `dhcp` without a NIC would open other NICs, and continue with the first NIC that receives a response.
///
/// `chain --replace` loads the boot script, which then replaces this script. The commands after `chain` run only if the
/// download of the boot script has failed, and repeat the download. The server does not count a repeated request as
/// another attempt.
pub fn start_script(url: &str) -> String {
    let (reset, retry) = (reset_downloads(), retry_download(&format!("the boot script from {url}")));
    format!(
        "#!ipxe\necho drophammer: asking {url}\n{reset}isset ${{netX/mac}} || dhcp ||\n\
         isset ${{netX/ip}} || dhcp netX ||\n:again\n\
         chain --replace {url}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}}&arch=${{buildarch}} ||\n{retry}\
         echo drophammer: this machine CANNOT BOOT over the network: no boot script from {url}\n\
         echo drophammer: NIC ${{netX/mac}}, address ${{netX/ip}}, uuid ${{uuid}}: check the output of drophammer serve\n\
         sleep 30 ||\nexit 1\n"
    )
}

#[cfg(test)]
mod tests;
