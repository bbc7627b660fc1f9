#!/usr/bin/env python3
"""Writes inventory.json and fstab of each machine in this directory, from the partition tables that the installers document."""

import pathlib

from machines import Machine

ROOT = pathlib.Path(__file__).parent
ESP = ("vfat", "esp")
HALF = 512


def debian():
    m = Machine("debian-plain")
    m.disk("sda", 240, partitions=[(1, 512, "efi", ESP, ""), (2, 200000, "linux", ("ext4", "root"), ""), (3, 976, "swap", ("swap", "swap"), "")])
    m.fstab = """# /etc/fstab: static file system information.
        UUID={root} / ext4 errors=remount-ro 0 1
        UUID={esp} /boot/efi vfat umask=0077 0 1
        UUID={swap} none swap sw 0 0
        /dev/sr0 /media/cdrom0 udf,iso9660 user,noauto 0 0"""
    m.write(ROOT)

    m = Machine("debian-home")
    m.disk("sda", 480, partitions=[(1, 512, "efi", ESP, ""), (2, 28610, "linux", ("ext4", "root"), ""),
                                   (3, 976, "swap", ("swap", "swap"), ""), (4, 0, "linux", ("ext4", "home"), "")])
    m.fstab = """UUID={root} / ext4 errors=remount-ro 0 1
        UUID={esp} /boot/efi vfat umask=0077 0 1
        UUID={home} /home ext4 defaults 0 2
        UUID={swap} none swap sw 0 0"""
    m.write(ROOT)

    m = Machine("debian-multi")
    m.disk("sda", 480, partitions=[(1, 512, "efi", ESP, ""), (2, 23000, "linux", ("ext4", "root"), ""),
                                   (3, 9500, "linux", ("ext4", "var"), ""), (4, 976, "swap", ("swap", "swap"), ""),
                                   (5, 1900, "linux", ("ext4", "tmp"), ""), (6, 0, "linux", ("ext4", "home"), "")])
    m.fstab = """UUID={root} / ext4 errors=remount-ro 0 1
        UUID={esp} /boot/efi vfat umask=0077 0 1
        UUID={var} /var ext4 defaults 0 2
        UUID={tmp} /tmp ext4 defaults 0 2
        UUID={home} /home ext4 defaults 0 2
        UUID={swap} none swap sw 0 0"""
    m.write(ROOT)

    m = Machine("debian-lvm")
    m.disk("sda", 480, partitions=[(1, 512, "efi", ESP, ""), (2, 488, "linux", ("ext2", "boot"), ""), (3, 0, "lvm", None, "")])
    m.group("web-vg", ["/dev/sda3"], [("root", 28, "linear", ("ext4", "root"), None), ("swap_1", 1, "linear", ("swap", "swap"), None),
                                      ("home", 400, "linear", ("ext4", "home"), None)])
    m.fstab = """/dev/mapper/web--vg-root / ext4 errors=remount-ro 0 1
        UUID={boot} /boot ext2 defaults 0 2
        UUID={esp} /boot/efi vfat umask=0077 0 1
        /dev/mapper/web--vg-home /home ext4 defaults 0 2
        /dev/mapper/web--vg-swap_1 none swap sw 0 0"""
    m.write(ROOT)

    m = Machine("debian-raid1-lvm", firmware="bios")
    for name in ("sda", "sdb"):
        m.disk(name, 960, partitions=[(1, 1, "bios", None, ""), (2, 30000, "raid", None, ""), (3, 0, "raid", None, "")])
    m.array("md0", "0", ["/dev/sda2", "/dev/sdb2"], ("ext4", "root"))
    m.array("md1", "1", ["/dev/sda3", "/dev/sdb3"], None)
    m.group("data", ["/dev/md1"], [("srv", 500, "linear", ("xfs", "srv"), None), ("pg", 200, "linear", ("ext4", "pg"), None)])
    m.fstab = """UUID={root} / ext4 errors=remount-ro 0 1
        /dev/mapper/data-srv /srv xfs defaults 0 0
        /dev/data/pg /var/lib/postgresql ext4 noatime 0 2"""
    m.write(ROOT)

    m = Machine("debian-encrypted-lvm", live=True)
    m.disk("sda", 480, partitions=[(1, 512, "efi", (*ESP, "", "/boot/efi"), ""), (2, 488, "linux", ("ext2", "boot", "", "/boot"), ""),
                                   (3, 0, "linux", ("crypto_LUKS", "luks"), "")])
    m.stack("dm-0", "/dev/mapper/sda3_crypt", "crypt", ["/dev/sda3"], m.find("/dev/sda3")["size_bytes"] - 16 * 2**20, None)
    m.group("web-vg", ["/dev/mapper/sda3_crypt"], [("root", 400, "linear", ("ext4", "root", "", "/"), None),
                                                   ("swap_1", 1, "linear", ("swap", "swap", "", "swap"), None)])
    m.fstab = """/dev/mapper/web--vg-root / ext4 errors=remount-ro 0 1
        UUID={boot} /boot ext2 defaults 0 2
        UUID={esp} /boot/efi vfat umask=0077 0 1
        /dev/mapper/web--vg-swap_1 none swap sw 0 0"""
    m.write(ROOT)


def ubuntu():
    m = Machine("ubuntu-subiquity-lvm")
    m.disk("sda", 480, partitions=[(1, 1075, "efi", ESP, ""), (2, 2048, "linux", ("ext4", "boot"), ""), (3, 0, "linux", None, "")])
    m.group("ubuntu-vg", ["/dev/sda3"], [("ubuntu-lv", 100, "linear", ("ext4", "root"), None)])
    m.fstab = """/dev/disk/by-id/dm-uuid-LVM-GROUPVOLUME / ext4 defaults 0 1
        /dev/disk/by-uuid/{boot} /boot ext4 defaults 0 1
        /dev/disk/by-uuid/{esp} /boot/efi vfat defaults 0 1
        /swap.img none swap sw 0 0"""
    identity = m.inventory["groups"][0]
    identity = (identity["uuid"] + identity["volumes"][0]["uuid"]).replace("-", "")
    m.fstab = m.fstab.replace("GROUPVOLUME", identity)
    m.write(ROOT)

    m = Machine("ubuntu-subiquity-raid", firmware="bios")
    for name in ("sda", "sdb"):
        m.disk(name, 960, partitions=[(1, 1, "bios", None, ""), (2, 50000, "linux", None, ""), (3, 0, "linux", None, "")])
    m.array("md0", "0", ["/dev/sda2", "/dev/sdb2"], ("ext4", "root"))
    m.array("md1", "1", ["/dev/sda3", "/dev/sdb3"], ("xfs", "srv"))
    by_id = [array["uuid"].replace("-", "") for array in m.inventory["arrays"]]
    by_id = [":".join(uid[i:i + 8] for i in range(0, 32, 8)) for uid in by_id]
    m.fstab = f"""/dev/disk/by-id/md-uuid-{by_id[0]} / ext4 defaults 0 1
        /dev/disk/by-id/md-uuid-{by_id[1]} /srv xfs defaults 0 1
        /swap.img none swap sw 0 0"""
    m.write(ROOT)

    m = Machine("ubuntu-zfs", live=True)
    m.disk("sda", 480, partitions=[(1, 1075, "efi", (*ESP, "", "/boot/efi"), ""), (2, 2048, "zfs", ("zfs_member", "bpool", "bpool"), ""),
                                   (3, 4096, "swap", ("swap", "swap", "", "swap"), ""), (4, 0, "zfs", ("zfs_member", "rpool", "rpool"), "")])
    m.fstab = """UUID={esp} /boot/efi vfat defaults 0 1
        UUID={swap} none swap sw 0 0"""
    m.write(ROOT)


def red_hat():
    m = Machine("almalinux-bios", firmware="bios")
    m.disk("sda", 480, table="dos", partitions=[(1, 1024, "0x83", ("xfs", "boot"), ""), (2, 0, "0x8e", None, "")])
    m.group("almalinux", ["/dev/sda2"], [("swap", 8, "linear", ("swap", "swap"), None), ("home", 350, "linear", ("xfs", "home"), None),
                                         ("root", 70, "linear", ("xfs", "root"), None)])
    m.fstab = """/dev/mapper/almalinux-root / xfs defaults 0 0
        UUID={boot} /boot xfs defaults 0 0
        /dev/mapper/almalinux-home /home xfs defaults 0 0
        /dev/mapper/almalinux-swap none swap defaults 0 0"""
    m.write(ROOT)

    m = Machine("almalinux-uefi")
    m.disk("sda", 480, partitions=[(1, 600, "efi", ESP, "EFI System Partition"), (2, 1024, "linux", ("xfs", "boot"), ""), (3, 0, "lvm", None, "")])
    m.group("almalinux", ["/dev/sda3"], [("swap", 8, "linear", ("swap", "swap"), None), ("root", 70, "linear", ("xfs", "root"), None)])
    m.disk("sdb", 960, content=("xfs", "data", "data"))
    m.fstab = """UUID={root} / xfs defaults 0 0
        UUID={boot} /boot xfs defaults 0 0
        UUID={esp} /boot/efi vfat umask=0077,shortname=winnt 0 2
        LABEL=data /data xfs defaults,nofail 0 0
        UUID={swap} none swap defaults 0 0"""
    m.write(ROOT)

    m = Machine("fedora")
    m.disk("nvme0n1", 512, partitions=[(1, 600, "efi", ESP, ""), (2, 1024, "linux", ("ext4", "boot"), ""), (3, 0, "linux", ("btrfs", "pool", "fedora"), "")])
    m.fstab = """UUID={pool} / btrfs subvol=root,compress=zstd:1 0 0
        UUID={boot} /boot ext4 defaults 1 2
        UUID={esp} /boot/efi vfat umask=0077,shortname=winnt 0 2
        UUID={pool} /home btrfs subvol=home,compress=zstd:1 0 0"""
    m.write(ROOT)


def others():
    subvolumes = ("/var", "/usr/local", "/srv", "/root", "/opt", "/boot/grub2/x86_64-efi", "/boot/grub2/i386-pc", "/.snapshots")
    for name, has_home in (("opensuse", False), ("opensuse-home", True)):
        m = Machine(name)
        home = [(4, 0, "linux", ("xfs", "home"), "")] if has_home else []
        m.disk("sda", 480, partitions=[(1, 512, "efi", ESP, ""), (2, 60000, "linux", ("btrfs", "root"), ""), (3, 2048, "swap", ("swap", "swap"), "")] + home)
        m.fstab = "UUID={root} / btrfs defaults 0 0\n" + "".join(
            f"UUID={{root}} {path} btrfs subvol=/@{path} 0 0\n" for path in subvolumes + (() if has_home else ("/home",)))
        m.fstab += "UUID={esp} /boot/efi vfat utf8 0 2\nUUID={swap} swap swap defaults 0 0\n"
        m.fstab += "UUID={home} /home xfs defaults 0 0\n" if has_home else ""
        m.write(ROOT)

    m = Machine("arch")
    m.disk("nvme0n1", 512, partitions=[(1, 1024, "efi", ESP, ""), (2, 4096, "swap", ("swap", "swap"), ""), (3, 33000, "linux", ("ext4", "root"), ""),
                                       (4, 0, "933ac7e1-2eb4-4f13-b844-0e14e2aef915", ("ext4", "home"), "")])
    m.fstab = """UUID={root} / ext4 rw,relatime 0 1
        UUID={esp} /boot vfat rw,relatime,fmask=0022 0 2
        UUID={home} /home ext4 rw,relatime 0 2
        UUID={swap} none swap defaults 0 0"""
    m.write(ROOT)


def hosters():
    m = Machine("hetzner", firmware="bios")
    for name in ("nvme0n1", "nvme1n1"):
        m.disk(name, 512, partitions=[(4, 1, "bios", None, ""), (1, 32768, "raid", None, ""), (2, 1024, "raid", None, ""), (3, 0, "raid", None, "")])
    for number, content in enumerate([("swap", "swap"), ("ext3", "boot"), ("ext4", "root")]):
        m.array(f"md{number}", str(number), [f"/dev/nvme{disk}n1p{number + 1}" for disk in (0, 1)], content)
    m.fstab = """proc /proc proc defaults 0 0
        # /dev/md/0
        UUID={swap} none swap sw 0 0
        # /dev/md/1
        UUID={boot} /boot ext3 defaults 0 0
        # /dev/md/2
        UUID={root} / ext4 defaults 0 0"""
    m.write(ROOT)

    m = Machine("hetzner-home", firmware="bios")
    for name in ("nvme0n1", "nvme1n1"):
        m.disk(name, 1024, partitions=[(5, 1, "bios", None, ""), (1, 32768, "raid", None, ""), (2, 1024, "raid", None, ""),
                                       (3, 102400, "raid", None, ""), (4, 0, "raid", None, "")])
    for number, content in enumerate([("swap", "swap"), ("ext3", "boot"), ("ext4", "root"), ("ext4", "home")]):
        m.array(f"md{number}", str(number), [f"/dev/nvme{disk}n1p{number + 1}" for disk in (0, 1)], content)
    m.fstab = """UUID={swap} none swap sw 0 0
        UUID={boot} /boot ext3 defaults 0 0
        UUID={root} / ext4 defaults 0 0
        UUID={home} /home ext4 defaults 0 0"""
    m.write(ROOT)

    m = Machine("hetzner-lvm", firmware="bios")
    for name in ("sda", "sdb"):
        m.disk(name, 2000, partitions=[(3, 1, "bios", None, ""), (1, 1024, "raid", None, ""), (2, 0, "raid", None, "")])
    m.array("md0", "0", ["/dev/sda1", "/dev/sdb1"], ("ext3", "boot"))
    m.array("md1", "1", ["/dev/sda2", "/dev/sdb2"], None)
    m.group("vg0", ["/dev/md1"], [("root", 50, "linear", ("ext4", "root"), None), ("swap", 8, "linear", ("swap", "swap"), None),
                                  ("backup", 1500, "linear", ("xfs", "backup"), None)])
    m.fstab = """UUID={boot} /boot ext3 defaults 0 0
        /dev/vg0/root / ext4 defaults 0 0
        /dev/vg0/swap none swap sw 0 0
        /dev/vg0/backup /backup xfs defaults 0 0"""
    m.write(ROOT)

    m = Machine("ovh")
    for name in ("nvme0n1", "nvme1n1"):
        config = [(5, 2, "linux", ("iso9660", "config", "config-2"), "logical")] if name == "nvme0n1" else []
        esp = ("vfat", "esp" if name == "nvme0n1" else "esp2", "EFI_SYSPART")
        m.disk(name, 960, partitions=[(1, 511, "efi", esp, "primary"), (2, 1024, "raid", None, "primary"), (3, 900000, "raid", None, "primary"),
                                      (4, 512, "linux", ("swap", f"swap-{name}", f"swap-{name}"), "primary")] + config)
    m.array("md2", "md2", ["/dev/nvme0n1p2", "/dev/nvme1n1p2"], ("ext4", "boot", "boot"))
    m.array("md3", "md3", ["/dev/nvme0n1p3", "/dev/nvme1n1p3"], ("ext4", "root", "root"))
    m.fstab = """UUID={root} / ext4 defaults 0 1
        UUID={boot} /boot ext4 defaults 0 0
        UUID={esp} /boot/efi vfat defaults 0 1
        UUID={swap-nvme0n1} swap swap defaults 0 0
        UUID={swap-nvme1n1} swap swap defaults 0 0"""
    m.write(ROOT)


def hypervisors():
    for name, firmware, esp in (("proxmox-lvm", "uefi", "UUID={esp} /boot/efi vfat defaults 0 1\n"), ("proxmox-lvm-bios", "bios", "")):
        m = Machine(name, firmware=firmware)
        m.disk("sda", 480, partitions=[(1, 1007 / 1024, "bios", None, ""), (2, 1024, "efi", ESP, ""), (3, 0, "lvm", None, "")])
        m.group("pve", ["/dev/sda3"], [("swap", 8, "linear", ("swap", "swap"), None), ("root", 96, "linear", ("ext4", "root"), None),
                                       ("data", 320, "thin-pool", None, None), ("vm-100-disk-0", 32, "thin", None, None)])
        m.fstab = f"""/dev/pve/root / ext4 errors=remount-ro 0 1
            {esp}/dev/pve/swap none swap sw 0 0
            proc /proc proc defaults 0 0"""
        m.write(ROOT)

    m = Machine("proxmox-thin-pool-disk")
    m.disk("sda", 240, partitions=[(1, 1024, "efi", ESP, ""), (2, 0, "linux", ("ext4", "root"), "")])
    m.disk("sdb", 960)
    m.group("vmdata", ["/dev/sdb"], [("vmdata", 800, "thin-pool", None, None), ("vm-100-disk-0", 32, "thin", None, None)])
    m.fstab = "UUID={root} / ext4 errors=remount-ro 0 1\nUUID={esp} /boot/efi vfat defaults 0 1"
    m.write(ROOT)

    m = Machine("proxmox-zfs")
    for name in ("sda", "sdb"):
        m.disk(name, 480, partitions=[(1, 1007 / 1024, "bios", None, ""), (2, 1024, "efi", ("vfat", f"esp-{name}"), ""),
                                      (3, 0, "zfs", ("zfs_member", "rpool", "rpool"), "")])
    m.fstab = "proc /proc proc defaults 0 0"
    m.write(ROOT)


def provisioners():
    m = Machine("metal-hammer")
    m.disk("sda", 240, partitions=[(1, 500, "efi", ("vfat", "esp", "efi"), "efi"), (2, 5000, "linux", ("ext4", "root", "root"), "root"),
                                   (3, 0, "linux", ("ext4", "varlib", "varlib"), "varlib")])
    m.fstab = """UUID={root} / ext4 defaults 0 1
        UUID={esp} /boot/efi vfat defaults 0 2
        UUID={varlib} /var/lib ext4 defaults 0 1
        tmpfs /tmp tmpfs defaults,noatime,nosuid,nodev,noexec,mode=1777,size=512M 0 0"""
    m.write(ROOT)

    m = Machine("maas-flat")
    m.disk("sda", 480, partitions=[(1, 512, "efi", ("vfat", "esp", "efi"), ""), (2, 0, "linux", ("ext4", "root", "root"), "")])
    m.fstab = "/dev/disk/by-uuid/{root} / ext4 defaults 0 1\n/dev/disk/by-uuid/{esp} /boot/efi vfat defaults 0 1"
    m.write(ROOT)

    m = Machine("maas-lvm")
    m.disk("sda", 480, partitions=[(1, 512, "efi", ("vfat", "esp", "efi"), ""), (2, 0, "linux", None, "")])
    m.group("vgroot", ["/dev/sda2"], [("lvroot", 400, "linear", ("ext4", "root", "root"), None)])
    m.fstab = "/dev/disk/by-uuid/{root} / ext4 defaults 0 1\n/dev/disk/by-uuid/{esp} /boot/efi vfat defaults 0 1"
    m.write(ROOT)

    m = Machine("maas-bcache", live=True)
    m.disk("sda", 2000, partitions=[(1, 512, "efi", ("vfat", "esp", "efi", "/boot/efi"), ""), (2, 1024, "linux", ("ext4", "boot", "", "/boot"), ""),
                                    (3, 0, "linux", ("bcache", "backing"), "")])
    m.disk("nvme0n1", 480, partitions=[(1, 0, "linux", ("bcache", "cache"), "")])
    m.stack("bcache0", "/dev/bcache0", "bcache", ["/dev/sda3", "/dev/nvme0n1p1"], m.find("/dev/sda3")["size_bytes"], ("ext4", "root", "root", "/"))
    m.fstab = "UUID={root} / ext4 defaults 0 1\nUUID={boot} /boot ext4 defaults 0 1\nUUID={esp} /boot/efi vfat defaults 0 1"
    m.write(ROOT)

    m = Machine("talos")
    m.disk("sda", 240, partitions=[(1, 100, "efi", ("vfat", "esp", "EFI"), "EFI"), (2, 1, "bios", None, "BIOS"), (3, 1000, "linux", ("xfs", "boot", "BOOT"), "BOOT"),
                                   (4, 1, "linux", None, "META"), (5, 100, "linux", ("xfs", "state", "STATE"), "STATE"),
                                   (6, 0, "linux", ("xfs", "ephemeral", "EPHEMERAL"), "EPHEMERAL")])
    m.write(ROOT)

    m = Machine("flatcar", live=True)
    m.disk("sda", 240, partitions=[(1, 128, "efi", ("vfat", "esp", "EFI-SYSTEM", "/boot"), "EFI-SYSTEM"), (2, 2, "bios", None, "BIOS-BOOT"),
                                   (3, 1024, "flatcar-usr", ("btrfs", "usr-a", "USR-A"), "USR-A"), (4, 1024, "flatcar-usr", None, "USR-B"),
                                   (6, 128, "linux", ("btrfs", "oem", "OEM", "/oem"), "OEM"), (7, 64, "flatcar-reserved", None, "OEM-CONFIG"),
                                   (9, 0, "flatcar-root", ("ext4", "root", "ROOT", "/"), "ROOT")])
    m.write(ROOT)


def plain(name, data, live=False, extra="", **fields):
    """A machine with the system on sda and data on sdb, which is a content or a function that adds the data."""
    m = Machine(name, live=live)
    m.disk("sda", 240, partitions=[(1, 512, "efi", (*ESP, "", "/boot/efi"), ""), (2, 0, "linux", ("ext4", "root", "", "/"), "")])
    data(m)
    m.fstab = "UUID={root} / ext4 errors=remount-ro 0 1\nUUID={esp} /boot/efi vfat umask=0077 0 1\n" + extra
    m.write(ROOT)


def mirror(missing, spare):
    def add(m):
        for name in ["sdb"] if missing else ["sdb", "sdc"]:
            m.disk(name, 960, partitions=[(1, 0, "raid", None, "")])
        members = ["/dev/sdb1"] if missing else ["/dev/sdb1", "/dev/sdc1"]
        m.array("md0", "0", members, ("ext4", "srv"), missing=missing, spare=spare)
    return add


def states():
    srv = "UUID={srv} /srv ext4 defaults 0 2\n"
    plain("state-degraded-mirror", mirror(1, None), extra=srv)
    plain("state-resync", mirror(0, "/dev/sdc1"), extra=srv)

    def snapshot(m):
        m.disk("sdb", 960)
        m.group("vg", ["/dev/sdb"], [("srv", 400, "linear", ("ext4", "srv"), "has a snapshot, and LVM would activate the snapshot together with the volume"),
                                     ("before-upgrade", 400, "snapshot", None, None)])
        m.inventory["stacked"][-1]["signatures"] = m.find("/dev/mapper/vg-srv")["signatures"]
    plain("state-lvm-snapshot", snapshot, extra="/dev/vg/srv /srv ext4 defaults 0 2\n")

    m = Machine("state-data-next-to-system")
    m.disk("sda", 960, partitions=[(1, 512, "efi", ESP, ""), (2, 0, "lvm", None, "")])
    m.group("vg", ["/dev/sda2"], [("root", 50, "linear", ("ext4", "root"), None), ("swap", 8, "linear", ("swap", "swap"), None),
                                  ("vm1", 100, "linear", None, "has a snapshot, and LVM would activate the snapshot together with the volume"),
                                  ("vm1-before", 20, "snapshot", None, None), ("vm2", 100, "cache", None, None),
                                  ("vm3", 100, "linear", None, None), ("srv", 100, "linear", ("xfs", "srv"), None)])
    m.fstab = """/dev/vg/root / ext4 defaults 0 1
        UUID={esp} /boot/efi vfat umask=0077 0 1
        /dev/vg/srv /srv xfs defaults 0 2
        /dev/vg/swap none swap sw 0 0"""
    m.write(ROOT)

    def cache(m):
        m.disk("sdb", 960)
        m.disk("nvme0n1", 240)
        m.group("vg", ["/dev/sdb", "/dev/nvme0n1"], [("srv", 800, "cache", ("xfs", "srv"), None)])
    plain("state-cached-volume", cache, extra="/dev/vg/srv /srv xfs defaults 0 2\n")

    def disk(kind="ext4", mounted=None):
        return lambda m: m.disk("sdb", 960, partitions=[(1, 0, "linux", (kind, "srv", "", mounted), "")])
    plain("state-bind-mount", disk(), extra=srv + "/srv/www /var/www none bind 0 0\n")
    plain("state-loop-file", disk(), extra=srv + "/srv/images/a.img /mnt/a ext4 loop,ro 0 0\n")
    plain("state-container-overlay", disk(), extra="UUID={srv} /var/lib/containers ext4 defaults 0 2\noverlay /srv/merged overlay lowerdir=/srv/a,upperdir=/srv/b,workdir=/srv/c 0 0\n")
    plain("state-dirty-journal", disk("xfs", "/srv"), live=True, extra="UUID={srv} /srv xfs defaults 0 2\n")
    plain("state-running-database", disk("ext4", "/var/lib/postgresql"), live=True, extra="UUID={srv} /var/lib/postgresql ext4 noatime 0 2\n")
    plain("state-hibernation", lambda m: m.disk("sdb", 960, partitions=[(1, 16384, "swap", ("swsuspend", "swap"), ""), (2, 0, "linux", ("ext4", "srv"), "")]),
          extra=srv + "UUID={swap} none swap sw 0 0\n")
    plain("state-absent-device", lambda m: m.disk("sdb", 960), extra="UUID=0d5c1a2e-7f6b-4c3d-9e8f-a1b2c3d4e5f6 /srv ext4 defaults 0 2\n")


for build in (debian, ubuntu, red_hat, others, hosters, hypervisors, provisioners, states):
    build()
