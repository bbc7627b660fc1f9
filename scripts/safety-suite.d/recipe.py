"""Creates the disks of a case on loop devices, with the usual tools of Linux. Removes only devices that it has created."""
import json
import os
import random
import time
from pathlib import Path

from commands import CommandError, attempt, run

MIB = 1 << 20
TYPES = {"esp": "ef00", "bios": "ef02", "linux": "8300", "raid": "fd00", "lvm": "8e00"}


class Machine:
    """Disks of a case: image files, which are attached to loop devices and detached again."""

    def __init__(self, case, work):
        self.case = case
        self.work = work
        self.images = {disk["id"]: work / f"{disk['id']}.img" for disk in case["disks"]}
        self.devices = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.detach()

    def create(self):
        for disk in self.case["disks"]:
            with open(self.images[disk["id"]], "wb") as image:
                image.truncate(disk["size_mib"] * MIB)
        self.attach()
        for disk in self.case["disks"]:
            self.partition(disk)
        for array in self.case.get("arrays", []):
            self.create_array(array)
        for group in self.case.get("groups", []):
            self.create_group(group)
        for item in self.filesystems():
            self.fill(item)

    def attach(self):
        for disk in self.case["disks"]:
            sector = disk.get("sector_bytes", 512)
            device = run("losetup", "--find", "--show", "--sector-size", sector, self.images[disk["id"]]).strip()
            self.devices[disk["id"]] = device
            register_partitions(device)

    def detach(self):
        """Removes everything above the loop devices of this case, and detaches them."""
        for group in self.case.get("groups", []) if self.devices else []:
            attempt("vgchange", "-an", group["name"])
        for device in self.devices.values():
            for name in list_descendants(device):
                attempt("umount", "--all-targets", name)
                if name.startswith("/dev/md"):
                    attempt("mdadm", "--stop", name)
                elif name.startswith("/dev/mapper/"):
                    attempt("dmsetup", "remove", name)
            for name in list_descendants(device):
                attempt("blockdev", "--flushbufs", name)
            attempt("partx", "--delete", device)
            for _ in range(50):
                if attempt("losetup", "--detach", device):
                    break
                time.sleep(0.1)
        self.devices = {}

    def restore_images(self, copies):
        for name, path in self.images.items():
            run("cp", "--sparse=always", copies[name], path)

    def copy_images(self, target):
        target.mkdir()
        for path in self.images.values():
            run("cp", "--sparse=always", path, target / path.name)
        return {name: target / path.name for name, path in self.images.items()}

    def partition(self, disk):
        device = self.devices[disk["id"]]
        existing = [part for part in disk.get("partitions", []) if part["fate"] != "created"]
        if not existing:
            return
        sectors = disk.get("sector_bytes", 512)
        arguments = ["sgdisk", "--clear", "--set-alignment=1"]
        for part in existing:
            start = part.get("first_sector", part.get("start_mib", 0) * MIB // sectors)
            number, size = part["number"], part["size_mib"] * MIB // sectors
            arguments += [f"--new={number}:{start}:{start + size - 1}", f"--typecode={number}:{TYPES[part.get('type', 'linux')]}"]
            arguments += [f"--change-name={number}:{part.get('name', '')}"]
            arguments += [f"--attributes={number}:set:{bit}" for bit in part.get("attributes", [])]
        run(*arguments, device)
        with open(device, "r+b") as file:
            # Boot code, which no installer may execute after a reinstall, but which belongs to the disk.
            file.write(b"\x90" * 440)
        register_partitions(device)

    def node(self, reference):
        """Returns the device of `a3` (partition 3 of disk a), of an array or of a volume."""
        disk, number = reference[:1], reference[1:]
        if disk in self.devices and not number:
            return self.devices[disk]
        if disk in self.devices and number.isdigit():
            return f"{self.devices[disk]}p{number}"
        return f"/dev/{reference}" if "/" in reference else f"/dev/md/{reference}"

    def create_array(self, array):
        members = [self.node(member) for member in array["members"]]
        run("mdadm", "--create", self.node(array["name"]), "--run", "--level", array["level"], "--metadata=1.2", "--assume-clean",
            "--homehost=any", "--raid-devices", len(members), *members)

    def create_group(self, group):
        devices = [self.node(device) for device in group["devices"]]
        run("pvcreate", "-ff", "-y", *devices)
        run("vgcreate", group["name"], *devices)
        for volume in group["volumes"]:
            if volume["fate"] != "created":
                run("lvcreate", "-y", "-Wn", "-n", volume["name"], "-L", f"{volume['size_mib']}m", group["name"])

    def filesystems(self):
        """Returns all objects with a filesystem that exist before the installation, each with its reference."""
        for disk in self.case["disks"]:
            if "filesystem" in disk:
                yield {"ref": disk["id"], **disk}
            for part in disk.get("partitions", []):
                if "filesystem" in part and part["fate"] != "created":
                    yield {"ref": f"{disk['id']}{part['number']}", **part}
        yield from ({"ref": array["name"], **array} for array in self.case.get("arrays", []) if "filesystem" in array)
        for group in self.case.get("groups", []):
            for volume in group["volumes"]:
                if "filesystem" in volume and volume["fate"] != "created":
                    yield {"ref": f"{group['name']}/{volume['name']}", **volume}

    def fill(self, item):
        device = self.node(item["ref"])
        if item.get("encrypted"):
            key = self.work / "key"
            key.write_text("safety suite")
            run("cryptsetup", "luksFormat", "--batch-mode", "--pbkdf=pbkdf2", "--pbkdf-force-iterations=1000", "--key-file", key, device)
            run("cryptsetup", "open", "--key-file", key, device, "safety-suite")
            device = "/dev/mapper/safety-suite"
        force = {"vfat": [], "ext4": ["-q", "-F"], "xfs": ["-q", "-f"], "btrfs": ["-q", "-f"]}[item["filesystem"]]
        run(f"mkfs.{item['filesystem']}", *force, device)
        if item["fate"] != "preserved" and not is_mountable(item["filesystem"]):
            return
        point = self.work / "mnt"
        point.mkdir(exist_ok=True)
        run("mount", device, point)
        try:
            write_files(point, item["ref"])
        finally:
            run("umount", point)
            if item.get("encrypted"):
                run("cryptsetup", "close", "safety-suite")

    def describe_intent(self):
        """Returns the case as an installer sees it: with the devices of its disks, without the disks that it must not know.

        `attached` lists all disks, for installers that run in a virtual machine.
        """
        disks = [{**disk, "device": self.devices[disk["id"]]} for disk in self.case["disks"]]
        attached = [{key: disk[key] for key in ("device", "size_mib", "sector_bytes") if key in disk} for disk in disks]
        return {**self.case, "disks": [disk for disk in disks if disk.get("fate") != "foreign"], "attached": attached}


def register_partitions(device):
    """Registers the partitions with the kernel. `partx --update` misses numbers after a gap."""
    for action in ("--delete", "--add"):
        attempt("partx", action, device)


def is_mountable(filesystem):
    """Returns whether the kernel supports the filesystem. Partitions that are not preserved need no files."""
    attempt("modprobe", "--quiet", filesystem)
    return any(line.split()[-1] == filesystem for line in Path("/proc/filesystems").read_text().splitlines())


def list_descendants(device):
    try:
        listed = run("lsblk", "-nrpo", "NAME", device).split()
    except CommandError:
        return []
    return list(dict.fromkeys(reversed(listed)))


def write_files(point, seed):
    """Writes pseudo-random files into half of the free space, and at most 48 MiB."""
    rng = random.Random(f"{seed}")
    free = os.statvfs(point).f_bavail * os.statvfs(point).f_frsize
    left = min(free // 2, 48 * MIB)
    (point / "data").mkdir()
    (point / "data" / "SEED").write_text(json.dumps({"seed": seed}))
    for index in range(64):
        size = min(left, rng.choice([0, 700, 5000, 300_000, 3_000_000]))
        (point / "data" / f"file-{index:02}").write_bytes(rng.randbytes(size))
        left -= size
