//! iPXE scripts, and validation of all values in them that unauthenticated clients control.

/// Parameters of a ramdisk boot: addresses of the server, and identity of the machine.
pub(crate) struct RamdiskBoot<'a> {
    /// Base URL of the API, without a trailing slash.
    pub url: &'a str,
    /// Base URL of kernel and ramdisk, which the firmware loads.
    pub files: &'a str,
    pub token: &'a str,
    pub machine: &'a str,
    pub consoles: &'a [String],
    /// Network configuration for networks without DHCP, as the value of `drophammer.network=`.
    pub network: Option<&'a str>,
    /// Additional kernel arguments of the operator.
    pub cmdline: &'a str,
    /// True if the ramdisk must offer a shell at the console instead of starting the agent.
    pub stop: bool,
    /// File name of the ramdisk.
    pub initrd: &'a str,
}

impl RamdiskBoot<'_> {
    pub(crate) fn kernel_url(&self) -> String {
        format!("{}/boot/vmlinuz", self.files)
    }

    pub(crate) fn initrd_url(&self) -> String {
        format!("{}/boot/{}", self.files, self.initrd)
    }

    /// Returns the kernel's command line. It is the same for iPXE and for kexec.
    pub(crate) fn kernel_arguments(&self) -> String {
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

/// Returns a script that boots the ramdisk. `initrd=initrd` is for UEFI kernels, which request the file by that name; BIOS ignores it.
pub(crate) fn ramdisk_script(boot: &RamdiskBoot) -> String {
    let (kernel, initrd, arguments) = (boot.kernel_url(), boot.initrd_url(), boot.kernel_arguments());
    format!("#!ipxe\nkernel {kernel} initrd=initrd {arguments}\ninitrd --name initrd {initrd}\nboot\n")
}

/// Returns a script that boots the installed system. With UEFI firmware, the script exits with an error: the firmware then continues with
/// its next boot entry, whereas after a success it would show its menu (UEFI 2.10, 3.1.1). A BIOS may stop after an error as well as after
/// a success, so the script boots the first disk explicitly.
pub(crate) fn local_disk_script(machine: &str) -> String {
    format!(
        "#!ipxe\necho drophammer: {machine} is installed, starting its disk\niseq ${{platform}} pcbios || exit 1\n\
         sanboot --no-describe --drive 0x80 || exit\n"
    )
}

/// Returns a script that waits and repeats the request, until the operator has corrected the machine's file or its migration has ended.
/// The script never returns to the firmware, even on errors, because the firmware would then boot the disk.
pub(crate) fn hold_script(url: &str, machine: &str) -> String {
    format!(
        "#!ipxe\n:again\necho drophammer: {machine} waits: it takes part in a migration, and its file does not list the NIC ${{netX/mac}}\n\
         sleep 30 ||\nchain --replace {url}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}} || goto again\n"
    )
}

/// Returns the script for the TFTP server. `netX` is the NIC that has just been configured by DHCP.
pub fn start_script(url: &str) -> String {
    format!("#!ipxe\necho drophammer: asking {url}\ndhcp\nchain {url}/boot.ipxe?uuid=${{uuid}}&mac=${{netX/mac}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramdisk_script() {
        let consoles = ["tty0".to_owned(), "ttyS0,115200n8".to_owned()];
        let boot = RamdiskBoot {
            url: "https://10.0.2.2:8443",
            files: "http://10.0.2.2:8080",
            token: "abc",
            machine: "4c4c4544-0051-3010-8052-b4c04f4d3132",
            consoles: &consoles,
            network: None,
            cmdline: " quiet  drophammer.hold=60",
            stop: false,
            initrd: "initrd",
        };
        let script = ramdisk_script(&boot);
        assert_eq!(
            script,
            "#!ipxe\n\
             kernel http://10.0.2.2:8080/boot/vmlinuz initrd=initrd drophammer.url=https://10.0.2.2:8443 \
             drophammer.token=abc drophammer.machine=4c4c4544-0051-3010-8052-b4c04f4d3132 \
             console=tty0 console=ttyS0,115200n8 panic=-1 quiet drophammer.hold=60\n\
             initrd --name initrd http://10.0.2.2:8080/boot/initrd\n\
             boot\n"
        );
        let stopped = ramdisk_script(&RamdiskBoot { stop: true, ..boot });
        assert_eq!(stopped, script.replace(" console=tty0", " drophammer.stop=1 console=tty0"));
        let more = ramdisk_script(&RamdiskBoot { initrd: "initrd-luks", ..boot });
        assert_eq!(
            more,
            script.replace("boot/initrd\n", "boot/initrd-luks\n"),
            "the kernel asks for it by the same name"
        );
        let described = ramdisk_script(&RamdiskBoot { network: Some("e30"), ..boot });
        assert_eq!(described, script.replace(" panic", " drophammer.network=e30 panic"));
    }

    #[test]
    fn the_other_scripts() {
        assert_eq!(
            start_script("http://10.0.2.2:8080"),
            "#!ipxe\necho drophammer: asking http://10.0.2.2:8080\ndhcp\n\
             chain http://10.0.2.2:8080/boot.ipxe?uuid=${uuid}&mac=${netX/mac}\n"
        );
        assert_eq!(
            local_disk_script("m"),
            "#!ipxe\necho drophammer: m is installed, starting its disk\niseq ${platform} pcbios || exit 1\n\
             sanboot --no-describe --drive 0x80 || exit\n"
        );
        let held = hold_script("http://10.0.2.2:8080", "m");
        assert_eq!(
            held,
            "#!ipxe\n:again\necho drophammer: m waits: it takes part in a migration, and its file does not list the NIC ${netX/mac}\n\
             sleep 30 ||\nchain --replace http://10.0.2.2:8080/boot.ipxe?uuid=${uuid}&mac=${netX/mac} || goto again\n"
        );
        assert!(!held.contains("exit") && !held.contains("sanboot"));
    }
}
