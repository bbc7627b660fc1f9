"""Inventory of a machine, built from a short description. The result has the format of `drophammer inventory`."""

import json
import pathlib
import uuid

MIB = 1 << 20
GIB = 1 << 30
TYPES = {
    "efi": "c12a7328-f81f-11d2-ba4b-00a0c93ec93b",
    "bios": "21686148-6449-6e6f-744e-656564454649",
    "linux": "0fc63daf-8483-4772-8e79-3d69d8477de4",
    "raid": "a19d880f-05fc-4d3b-a006-743f0f84911e",
    "lvm": "e6d6d379-f507-44c2-a23c-238f2a3df928",
    "swap": "0657fd6d-a4ab-43c4-84e5-0933c84b4f4f",
    "zfs": "6a898cc3-1dd2-11b2-99a6-080020736631",
    "flatcar-usr": "5dfbf5f4-2848-4bac-aa5e-0d9a20b745a6",
    "flatcar-root": "3884dd41-8582-4404-b9a8-e9b84f2df50e",
    "flatcar-reserved": "c95dc21a-df0e-4340-8d7b-26cbfa9a03e0",
}
USAGES = {"linux_raid_member": "raid", "LVM2_member": "raid", "zfs_member": "filesystem", "crypto_LUKS": "crypto",
          "swap": "other", "swsuspend": "other", "bcache": "other"}
ROOT_FORMATS = ("ext2", "ext3", "ext4", "xfs", "btrfs")


class Machine:
    def __init__(self, name, firmware="uefi", live=False):
        self.name, self.live, self.fstab = name, live, None
        self.uuids = {}
        self.filesystems = []
        self.inventory = {
            "system": {"uuid": self.id("system"), "vendor": "QEMU", "product": "PC", "serial": "", "bios_vendor": "",
                       "bios_version": "", "bios_date": "", "firmware": firmware},
            "cpus": [], "memory_bytes": 8 * GIB, "nics": [], "disks": [], "stacked": [], "arrays": [], "groups": [],
            "parts": [], "filesystems": self.filesystems, "explored": not live,
        }

    def id(self, what):
        return str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.name}.{what}"))

    def signature(self, kind, what, label="", usage=None):
        """Returns the signature of a filesystem or component. `what` names it in fstab: `{what}`."""
        self.uuids[what] = self.id(what).upper()[:4] + "-" + self.id(what).upper()[4:8] if kind == "vfat" else self.id(what)
        return {"kind": kind, "usage": usage or USAGES.get(kind, "filesystem"), "label": label, "uuid": self.uuids[what]}

    def content(self, device, size, kind, what, label="", mounted=None):
        """Returns the fields `signatures` and `uses` of a device with this content."""
        if kind is None:
            return {"signatures": [], "uses": []}
        if kind in ROOT_FORMATS:
            self.filesystems.append({"device": device, "size_bytes": size, "used_bytes": size // 3})
        points = mounted.split(",") if mounted else []
        uses = [{"mounted": point} for point in points] if kind != "swap" else ["swap"] * bool(points)
        return {"signatures": [self.signature(kind, what, label)], "uses": uses if self.live else []}

    def disk(self, name, gigabytes, table="gpt", partitions=(), content=None, **fields):
        """Adds a disk. Partitions are tuples: number, size in MiB (0: the rest), type, content, GPT name."""
        size = gigabytes * 10**9 // 4096 * 4096
        disk = {"name": name, "device": f"/dev/{name}", "size_bytes": size, "sector_bytes": 512, "model": "TEST DISK",
                "vendor": "ATA", "serial": f"S-{self.name}-{name}", "wwn": "", "rotational": False, "transport": "sata",
                "by_path": f"/dev/disk/by-path/pci-0000:00:1f.2-{name}", "hctl": "", "read_only": False,
                "removable": False, "table": None, "signatures": [], "uses": [], **fields}
        if content:
            disk.update(self.content(disk["device"], size, *content))
        if partitions:
            disk["table"] = {"kind": table, "guid": self.id(name) if table == "gpt" else None,
                             "partitions": self.partitions(name, size, table, partitions)}
        self.inventory["disks"].append(disk)

    def partitions(self, disk, size, table, partitions):
        result, start = [], MIB
        for number, mib, kind, content, label in partitions:
            device = f"/dev/{disk}{'p' if disk[-1].isdigit() else ''}{number}"
            length = int(mib * MIB) if mib else (size - start - MIB) // MIB * MIB
            part = {"number": number, "device": device, "start_bytes": start, "size_bytes": length,
                    "kind": TYPES.get(kind, kind), "guid": self.id(device) if table == "gpt" else None, "label": label}
            part.update(self.content(device, length, *content) if content else {"signatures": [], "uses": []})
            result.append(part)
            start = (start + length + MIB - 1) // MIB * MIB
        return result

    def find(self, device):
        for disk in self.inventory["disks"]:
            for unit in [disk] + (disk["table"] or {"partitions": []})["partitions"]:
                if unit["device"] == device:
                    return unit
        return next(stacked for stacked in self.inventory["stacked"] if stacked["device"] == device)

    def kernel_name(self, device):
        return self.find(device).get("name", device.removeprefix("/dev/"))

    def stack(self, name, device, kind, below, size, content, assembled=True):
        for lower in below:
            self.find(lower)["uses"].append({"holder": name})
        stacked = {"name": name, "device": device, "kind": kind, "below": [self.kernel_name(lower) for lower in below],
                   "size_bytes": size, "assembled": assembled and not self.live}
        stacked.update(self.content(device, size, *content) if content else {"signatures": [], "uses": []})
        self.inventory["stacked"].append(stacked)

    def array(self, name, title, members, content, metadata="1.2", level="raid1", missing=0, spare=None):
        """Adds a running array."""
        size = self.find(members[0])["size_bytes"] - (0 if metadata == "1.0" else 1) * 128 * MIB
        identity = self.id(f"array {name}")
        for member in members:
            self.find(member)["signatures"] = [{"kind": "linux_raid_member", "usage": "raid", "label": f"any:{title}",
                                                "uuid": identity}]
        self.stack(name, f"/dev/{name}", "array", members, size, content)
        roles = [{"device": member, "role": "spare" if member == spare else {"active": slot}}
                 for slot, member in enumerate(members)]
        self.inventory["arrays"].append({"uuid": identity, "name": title, "level": level, "metadata": metadata,
                                         "raid_devices": len(members) + missing, "members": roles, "running": name})

    def group(self, name, physical, volumes):
        """Adds a group. Volumes are tuples: name, GiB, type, content, reason why the volume is entangled."""
        first = len(self.inventory["stacked"])
        for device in physical:
            self.find(device)["signatures"] = [self.signature("LVM2_member", f"pv {device}")]
        found = []
        for index, (volume, gib, kind, content, entangled) in enumerate(volumes):
            mapper = f"dm-{first + index}"
            path = "/dev/mapper/" + name.replace("-", "--") + "-" + volume.replace("-", "--")
            is_active = kind in ("linear", "striped", "raid1", "cache", "snapshot")
            if is_active:
                self.stack(mapper, path, "volume", physical, gib * GIB, content)
            entry = {"name": volume, "uuid": self.id(f"{name}/{volume}"), "size_bytes": gib * GIB, "kind": kind,
                     "stripes": 1, "running": mapper if is_active else None}
            found.append(entry | ({"entangled": entangled} if entangled else {}))
        if any(volume["kind"] == "thin-pool" for volume in found):
            self.pooled_group(name, physical[0], found)
            return
        sizes = [self.find(device)["size_bytes"] for device in physical]
        free = sum(size - 4 * MIB for size in sizes) - sum(volume["size_bytes"] for volume in found)
        self.inventory["groups"].append({
            "name": name, "uuid": self.id(f"group {name}"), "extent_bytes": 4 * MIB, "free_bytes": max(free, 0),
            "physical": [{"device": device, "uuid": self.id(f"pv {device}"), "size_bytes": size - 4 * MIB}
                         for device, size in zip(physical, sizes)], "volumes": found})

    def pooled_group(self, name, physical, volumes):
        """Adds a group with thin pools, and with the location of all volumes on the only physical volume."""
        extents = (self.find(physical)["size_bytes"] - MIB) // (4 * MIB)
        uuid, end, hidden = self.id(f"pv {physical}"), MIB, []

        def place(size):
            nonlocal end
            end += size
            return {"ranges": [{"physical": uuid, "start_bytes": end - size, "size_bytes": size}]}

        def hide(volume, size):
            hidden.append({"name": volume, "uuid": self.id(f"{name}/{volume}"), "size_bytes": size} | place(size))

        for volume in volumes:
            if volume["kind"] == "thin-pool":
                hide(volume["name"] + "_tdata", volume["size_bytes"])
                hide(volume["name"] + "_tmeta", GIB)
            elif volume["kind"] != "thin":
                volume.update(place(volume["size_bytes"]))
        hide("lvol0_pmspare", GIB)
        free = MIB + extents * 4 * MIB - end
        area = {"physical": uuid, "is_allocatable": True, "bytes": free, "largest_bytes": free}
        self.inventory["groups"].append({
            "name": name, "uuid": self.id(f"group {name}"), "extent_bytes": 4 * MIB, "free_bytes": free,
            "allocation": {"policy": "normal", "max_volumes": 0, "volumes": len(volumes), "free": [area]},
            "physical": [{"device": physical, "uuid": uuid, "size_bytes": extents * 4 * MIB}],
            "volumes": volumes, "hidden": hidden})

    def write(self, root):
        folder = pathlib.Path(root) / self.name
        folder.mkdir(exist_ok=True)
        (folder / "inventory.json").write_text(json.dumps(self.inventory, indent=1) + "\n")
        if self.fstab is not None:
            text = "\n".join(line.strip() for line in self.fstab.strip().splitlines()) + "\n"
            for what, identity in self.uuids.items():
                text = text.replace("{" + what + "}", identity)
            (folder / "fstab").write_text(text)
