//! Kernel arguments of an image, except those that are specific to the machine on which the image was built.

use super::boot_kernel::BootKernel;
use super::file_search::find_matching;
use super::grub_config_reader::{read_grub_variables, to_kernel_words};
use super::preserved_esps::PreservedEsps;
use super::shell_reader::{ShellReader, ShellSyntax, read_assignments};
use crate::NewRoot;
use model::kernel_command_line::{is_same_name, parameter_name, parameter_value, split_words};

/// Files from which kernel-install(8) takes the command line. kernel-install reads only the first existing file.
pub(crate) const KERNEL_INSTALL: [&str; 2] = ["/etc/kernel/cmdline", "/usr/lib/kernel/cmdline"];

pub(crate) const GRUB_DEFAULTS: [&str; 2] = ["/etc/default/grub", "/etc/default/grub.d/*.cfg"];

/// Variables with kernel arguments, in the order in which grub-mkconfig concatenates them.
const GRUB_VARIABLES: [&str; 2] = ["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"];

/// Reason for omitting an `ip=` argument.
pub(crate) const CONFIGURES_NIC: &str = "these arguments configure a NIC of another machine";

/// Kernel parameters of an image that are omitted, each with the reason. A name that ends with `*` matches all names
/// with this prefix.
const REMOVED: [(&str, &[&str]); 13] = [
    (
        "these arguments are set from the layout",
        &["root", "rootfstype", "rootflags", "ro", "rw", "real_root", "real_rootflags"],
    ),
    ("these arguments are set by the boot loader", &["BOOT_IMAGE", "initrd", "systemd.machine_id"]),
    ("these arguments refer to the boot device of another machine", &["boot", "bootdev"]),
    ("these arguments set the hostname of another machine", &["hostname", "systemd.hostname"]),
    (
        "these arguments control the installation of another machine",
        &[
            "ks",
            "ks.*",
            "inst.*",
            "autoinstall",
            "preseed",
            "preseed/*",
            "netcfg/*",
            "autoyast*",
            "cloud-config-url",
            "url",
        ],
    ),
    (
        "these arguments refer to the hibernation data of another machine",
        &["resume", "resume_offset", "resumeflags", "resumewait", "resumedelay", "real_resume"],
    ),
    ("these arguments select arrays of another machine", &["md", "rd.md", "rd.md.*", "rd_MD_*", "rd_NO_MD*"]),
    (
        "these arguments select logical volumes or BIOS RAID sets of another machine",
        &[
            "rd.lvm",
            "rd.lvm.*",
            "rd_LVM_*",
            "rd_NO_LVM*",
            "lvmwait",
            "rd.dm",
            "rd.dm.*",
            "rd_DM_*",
            "rd_NO_DM",
            "nodmraid",
        ],
    ),
    ("these arguments create device-mapper devices of another machine", &["dm", "dm-mod.create", "dm-mod.waitfor"]),
    (
        "these arguments refer to encrypted devices of another machine",
        &[
            "cryptdevice",
            "cryptkey",
            "cryptopts",
            "crypto",
            "cryptroot",
            "cryptdm",
            "crypt_root",
            "crypt_swap",
            "luks",
            "luks.*",
            "rd.luks",
            "rd.luks.*",
            "rd_LUKS_*",
            "rd_NO_LUKS",
        ],
    ),
    (
        "these arguments refer to filesystems or hash trees of another machine",
        &[
            "mount.usr",
            "mount.usrfstype",
            "mount.usrflags",
            "usrhash",
            "roothash",
            "verity.*",
            "systemd.verity",
            "systemd.verity_*",
            "rd.systemd.verity*",
            "rd.verity*",
            "veritytab",
            "systemd.mount-extra",
            "systemd.swap-extra",
            "rd.systemd.mount-extra",
            "rd.systemd.swap-extra",
            "zfs",
            "bootfs",
        ],
    ),
    (
        "these arguments configure the network of another machine",
        &[
            "ifname",
            "BOOTIF",
            "ksdevice",
            "bond",
            "bridge",
            "team",
            "vlan",
            "rd.route",
            "nameserver",
            "nfsaddrs",
            "network-config",
            "ifcfg",
            "netsetup",
            "hostip",
        ],
    ),
    (
        "these arguments refer to network storage of another machine",
        &[
            "netroot",
            "nfsroot",
            "rd.nfs.domain",
            "iscsi_*",
            "rd.iscsi.*",
            "fcoe",
            "rd.fcoe",
            "rd.fcoe.*",
            "rd.nvmf.*",
            "nbdroot",
            "rd.zfcp",
            "rd.dasd",
            "rd.znet",
        ],
    ),
];

/// Reads the image's kernel arguments from the first existing source: kernel-install's file, GRUB's settings, the
/// kernel's boot entry.
pub(crate) fn read_image_arguments(root: &NewRoot, kernel: &BootKernel, preserved: &PreservedEsps) -> Vec<String> {
    for path in KERNEL_INSTALL {
        if let Ok(text) = root.read_text(path) {
            return split_words(&text.replace("\\$", "$")).map(str::to_owned).collect();
        }
    }
    let files = GRUB_DEFAULTS.iter().flat_map(|pattern| find_matching(root, pattern));
    let texts: Vec<String> = files.filter_map(|path| root.read_text(&path).ok()).collect();
    if texts.is_empty() { kernel.words.clone() } else { read_grub_arguments(root, &texts.join("\n"), preserved) }
}

/// Returns the kernel arguments of GRUB's settings. The arguments are evaluated as GRUB would evaluate them, because
/// grub-mkconfig copies their text to GRUB's configuration.
pub(crate) fn read_grub_arguments(root: &NewRoot, settings: &str, preserved: &PreservedEsps) -> Vec<String> {
    let settings = read_assignments(settings);
    let values: Vec<&str> = GRUB_VARIABLES.iter().filter_map(|name| settings.get(*name)).map(String::as_str).collect();
    // Newlines in the values are replaced, as grub-mkconfig does.
    let text = values.join(" ").replace('\n', " ");
    let words = ShellReader::new(&text, ShellSyntax::Grub).read_command(&read_grub_variables(root, preserved));
    to_kernel_words(&words.unwrap_or_default())
}

/// Returns the reason why a kernel argument of an image is omitted; `None` if the argument is used.
pub(crate) fn find_removal_reason(word: &str) -> Option<&'static str> {
    let name = parameter_name(word);
    let matches = |pattern: &&str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => is_same_name(name, pattern),
    };
    let value = parameter_value(word).unwrap_or_default();
    match name {
        "ip" => return (!is_automatic(&value)).then_some(CONFIGURES_NIC),
        "ds" => return is_remote_seed(&value).then_some("these arguments refer to cloud-init data of another machine"),
        _ => {}
    }
    REMOVED.iter().find(|(_, patterns)| patterns.iter().any(&matches)).map(|(reason, _)| *reason)
}

/// Methods of `ip=` that Linux (nfsroot.rst) and dracut.cmdline(7) define. An `ip=` argument that contains only methods
/// is valid on any machine.
const IP_METHODS: [&str; 16] = [
    "",
    "on",
    "any",
    "both",
    "off",
    "none",
    "dhcp",
    "bootp",
    "rarp",
    "dhcp6",
    "auto6",
    "either6",
    "link6",
    "link-local",
    "ibft",
    "single-dhcp",
];

/// Returns whether a value of `ip=` consists of methods such as `dhcp`. Any other value contains an address or the name
/// of a NIC.
fn is_automatic(value: &str) -> bool {
    value.split(',').all(|method| IP_METHODS.contains(&method))
}

/// Returns whether a value of cloud-init's `ds=` contains the URL, name or instance of a machine.
fn is_remote_seed(value: &str) -> bool {
    value.split(';').skip(1).any(|pair| match pair.split_once('=') {
        Some(("s" | "seedfrom", url)) => url.contains("://") && !url.starts_with("file://"),
        Some(("h" | "local-hostname" | "i" | "instance-id", _)) => true,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::super::file_search::tests::tree;
    use super::*;

    fn kernel(words: &str) -> BootKernel {
        let words = words.split_whitespace().map(str::to_owned).collect();
        let (version, image) = ("6.1".into(), "/boot/vmlinuz-6.1".into());
        BootKernel { version, image, initrd: "/boot/initrd.img-6.1".into(), words, entry: None }
    }

    /// Arguments that describe the machine that built an image.
    const OMITTED: &str = "\
        boot=UUID=dead-beef resume=/dev/mapper/rhel-swap resume_offset=34816 cryptdevice=UUID=1:root \
        mount.usr=/dev/sda2 usrhash=00 roothash=00 luks.uuid=1 rd.luks.uuid=1 rd.luks.name=1=root \
        real_root=/dev/sda1 zfs=tank/root rd.dm.uuid=x rd.dm=0 rd.lvm=0 rd.md=0 rd.luks=0 rd.md.imsm=0 \
        rd.lvm.lv=rhel/root rd_NO_MD rd_LVM_LV=a/b ip=10.0.0.5::10.0.0.1:24:h:eth0:none ip=eth0:dhcp \
        ip=10.0.0.5 ip=[2001:db8::1]::[2001:db8::2]:64::eth0:none ifname=lan0:52:54:00:00:00:01 \
        BOOTIF=01-52-54-00-00-00-01 ro dm-mod.create=x dm_mod.create=x nameserver=10.0.0.1 vlan=eth0.5:eth0 \
        rd.iscsi.initiator=iqn.x systemd.verity_root_hash=x rd.systemd.verity=1 \
        rd.systemd.verity_root_data=/dev/sda2 rd.veritytab=1 systemd.hostname=builder hostname=builder \
        systemd.mount-extra=/dev/vdb:/srv:ext4 systemd.swap_extra=/dev/vdc \
        ds=nocloud-net;s=http://10.0.2.2:8080/ ds=nocloud;h=builder;i=iid-1 \
        cloud-config-url=http://10.0.2.2/user-data ks=http://10.0.2.2/ks.cfg inst.ks=hd:LABEL=OEMDRV:/ks.cfg \
        inst.text autoinstall preseed/url=http://10.0.2.2/preseed.cfg autoyast=device://sr1/autoinst.xml \
        ifcfg=eth0=10.0.0.5/24,10.0.0.1 netsetup=dhcp hostip=10.0.0.5/24 bootdev=UUID=dead-beef bootdev=eth0 \
        rd.nfs.domain=example.com ip=eth0 ip=dhcp,eth0 network-config=bmV0d29yazoK";

    /// Arguments that are valid on any machine, including arguments whose names resemble those of omitted arguments.
    const TAKEN: &str = "\
        quiet fips=1 crashkernel=auto ip=dhcp ip=dhcp,dhcp6 ip=single-dhcp ip=off ip=link-local ip \
        ds=nocloud ds=nocloud;s=/cidata/ ds=nocloud;s=file:///srv/seed/ ds=openstack installer=x \
        systemd.unit=multi-user.target systemd.hostnamed=x cloud-init=disabled netdev=1 net.ifnames=0 \
        biosdevname=0 rd.neednet=1 noresume boot_delay=5 boot.shell_on_fail zfs.zfs_arc_max=1 \
        dm_mod.use_blk_mq=1 rd.driver.blacklist=x rd.shell=0 memmap=2M$1M hugepages=4 pci=nomsi \
        console=ttyS0 mdadm=x ignition.firstboot root_delay=1 rootwait";

    #[test]
    fn machine_specific_arguments_are_removed() {
        let quoted = ["\"root=LABEL=a b\"", "\"ds=nocloud;seedfrom=https://10.0.2.2/x/\""];
        for removed in OMITTED.split(' ').chain(quoted) {
            assert!(find_removal_reason(removed).is_some(), "{removed}");
        }
        for preserved in TAKEN.split(' ') {
            assert_eq!(find_removal_reason(preserved), None, "{preserved}");
        }
    }

    #[test]
    fn grub_settings_are_parsed_as_by_sh_and_grub() {
        let tuned = ("boot/grub2/grub.cfg", "set tuned_params=\"isolcpus=1 nohz=on\"\n");
        for (settings, words) in [
            ("GRUB_CMDLINE_LINUX=\"a=b \\\n  c=d\"\n", &["a=b", "c=d"][..]),
            ("GRUB_CMDLINE_LINUX=\"a=b \\\n  c=d\" # x\nGRUB_CMDLINE_LINUX_DEFAULT=quiet\n", &["a=b", "c=d", "quiet"]),
            ("GRUB_CMDLINE_LINUX=\"dyndbg=\\\"file x.c +p\\\" a\"\n", &["dyndbg=\"file x.c +p\"", "a"]),
            ("GRUB_CMDLINE_LINUX='dyndbg=\"file x.c +p\" a'\n", &["dyndbg=\"file x.c +p\"", "a"]),
            ("GRUB_CMDLINE_LINUX=\"memmap=2M\\\\\\$1M\"\n", &["memmap=2M$1M"]),
            ("GRUB_CMDLINE_LINUX=\"a\nb\"\n", &["a", "b"]),
            ("X=\"a b\"\nGRUB_CMDLINE_LINUX=\"$X c\"\n", &["a", "b", "c"]),
            (
                "GRUB_CMDLINE_LINUX_DEFAULT=q\nGRUB_CMDLINE_LINUX_DEFAULT=\"${GRUB_CMDLINE_LINUX_DEFAULT:+$GRUB_CMDLINE_LINUX_DEFAULT }\\$tuned_params\"\n",
                &["q", "isolcpus=1", "nohz=on"],
            ),
            ("GRUB_DISTRIBUTOR=`lsb_release -i -s 2> /dev/null || echo Debian`\nGRUB_CMDLINE_LINUX=\"a\"\n", &["a"]),
        ] {
            let (_dir, root) = tree(&[("etc/default/grub", settings), tuned]);
            assert_eq!(read_image_arguments(&root, &kernel(""), &PreservedEsps::default()), words, "{settings}");
        }
    }
}
