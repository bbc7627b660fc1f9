"""Compares the disks before and after. Reads bytes and the output of sfdisk, mdadm and LVM; uses no code of an installer."""
import hashlib
import json
import operator
import struct
import tempfile
from pathlib import Path

from commands import CommandError, attempt, run

BLOCK = 1 << 20
PAGE = 4096


def find_protected_ranges(case, machine):
    """Returns the ranges that must not change: name, disk, start and length in bytes. Called before the installation."""
    ranges = []
    for disk in case["disks"]:
        name, size = disk["id"], machine.images[disk["id"]].stat().st_size
        if disk.get("fate") in ("foreign", "preserved"):
            ranges.append({"name": f"disk {name}", "disk": name, "start": 0, "length": size, "ref": name})
            continue
        for part in (part for part in disk.get("partitions", []) if part["fate"] == "preserved"):
            found = read_partition(machine.devices[name], part["number"], disk.get("sector_bytes", 512))
            ref = f"{name}{part['number']}"
            ranges.append({"name": f"partition {part['number']} of disk {name}", "disk": name, "ref": ref, **found})
            ranges += find_entries(machine.images[name], name, part["number"], disk.get("sector_bytes", 512))
    for array in (array for array in case.get("arrays", []) if array["fate"] == "preserved"):
        ranges += [find_array_data(case, machine, member, array["name"]) for member in array["members"]]
    for group in case.get("groups", []):
        for volume in (volume for volume in group["volumes"] if volume["fate"] == "preserved"):
            ranges += find_volume_segments(case, machine, group, volume)
    return ranges


def read_partition(device, number, sector):
    listed = json.loads(run("sfdisk", "--json", device))["partitiontable"]["partitions"]
    found = next(part for part in listed if part["node"] == f"{device}p{number}")
    return {"start": found["start"] * sector, "length": found["size"] * sector}


def find_entries(image, disk, number, sector):
    """Returns the ranges of the 128 bytes of a GPT entry in both copies of the table."""
    size = image.stat().st_size
    starts = [2 * sector, size - sector - 128 * 128]
    return [
        {"name": f"entry {number} of the {copy} GPT of disk {disk}", "disk": disk, "start": start + 128 * (number - 1), "length": 128}
        for copy, start in zip(("primary", "backup"), starts)
    ]


def find_member(case, machine, reference):
    disk = next(disk for disk in case["disks"] if disk["id"] == reference[:1])
    return disk["id"], read_partition(machine.devices[disk["id"]], int(reference[1:]), disk.get("sector_bytes", 512))


def find_array_data(case, machine, member, array):
    """Returns the data area of a member. Its superblock may change: it contains an event counter and times."""
    disk, part = find_member(case, machine, member)
    shown = run("mdadm", "--examine", machine.node(member))
    field = lambda name: int(next(line for line in shown.splitlines() if line.strip().startswith(name)).split(":")[1].split()[0])
    start, length = field("Data Offset") * 512, field("Used Dev Size") * 512
    return {"name": f"array {array} on {member}", "disk": disk, "start": part["start"] + start, "length": length}


def find_volume_segments(case, machine, group, volume):
    shown = run("lvs", "--reportformat", "json", "--segments", "-o", "seg_pe_ranges,vg_extent_size", "--units", "b", "--nosuffix",
                f"{group['name']}/{volume['name']}")
    segments = json.loads(shown)["report"][0]["seg"]
    ranges = []
    for segment in segments:
        device, extents = segment["seg_pe_ranges"].rsplit(":", 1)
        first, last = map(int, extents.split("-"))
        extent = int(segment["vg_extent_size"])
        reference = next(ref for ref in group["devices"] if Path(machine.node(ref)).resolve() == Path(device).resolve())
        disk, part = find_member(case, machine, reference)
        offset = int(run("pvs", "-o", "pe_start", "--noheadings", "--units", "b", "--nosuffix", device))
        start = part["start"] + offset + first * extent
        name = f"volume {group['name']}/{volume['name']}"
        ranges.append({"name": name, "disk": disk, "start": start, "length": (last - first + 1) * extent})
    return ranges


def compare(case, ranges, before, after, outcome):
    """Returns the verdict: whether the protected ranges are identical, and whether the rest was renewed."""
    objects = [compare_range(found, before[found["disk"]], after[found["disk"]]) for found in ranges]
    for found, item in zip(ranges, objects):
        if item["changed_bytes"] == 0 and "ref" in found:
            item["files"] = compare_files(found, before, after)
    lost = [item for item in objects if item["changed_bytes"] or item.get("files") == "differ"]
    whole = [compare_range({"name": name, "disk": name, "start": 0, "length": path.stat().st_size}, path, after[name])
             for name, path in before.items()]
    written = sum(item["changed_bytes"] for item in whole)
    verdict = {"objects": objects, "written_bytes": written, "data": "LOST" if lost else "kept", "renewed": "-"}
    if outcome == "done":
        verdict["renewed"] = "yes" if written and all_renewed(case, before, after) else "no"
    return verdict


def compare_range(found, before, after):
    changed, first, digest = 0, None, hashlib.sha256()
    with open(before, "rb") as old, open(after, "rb") as new:
        old.seek(found["start"])
        new.seek(found["start"])
        position = 0
        while position < found["length"]:
            length = min(BLOCK, found["length"] - position)
            left, right = old.read(length), new.read(length)
            digest.update(left)
            if left != right:
                count, start = count_differences(left, right)
                changed += count
                first = position + start if first is None else first
            position += length
    item = {"name": found["name"], "bytes": found["length"], "sha256": digest.hexdigest(), "changed_bytes": changed}
    return item if first is None else {**item, "first_changed_byte": first}


def count_differences(left, right):
    """Returns the number of different bytes, and the offset of the first one. Missing bytes of the shorter block are different."""
    count, first = abs(len(left) - len(right)), None
    for start in range(0, len(left), PAGE):
        one, other = left[start:start + PAGE], right[start:start + PAGE]
        if one != other:
            count += sum(map(operator.ne, one, other))
            if first is None:
                first = start + next((index for index, pair in enumerate(zip(one, other)) if pair[0] != pair[1]), len(other))
    return count, first


def compare_files(found, before, after):
    """Compares the files of a preserved filesystem, mounted read-only from copies of both ranges."""
    digests = [digest_files(path[found["disk"]], found) for path in (before, after)]
    if digests[0] is None:
        return "not mountable"
    return "identical" if digests[0] == digests[1] else "differ"


def digest_files(image, found):
    with tempfile.TemporaryDirectory(prefix="safety-suite-") as work:
        copy, point = Path(work) / "copy", Path(work) / "mnt"
        point.mkdir()
        run("dd", f"if={image}", f"of={copy}", "bs=1M", "iflag=skip_bytes,count_bytes", f"skip={found['start']}",
            f"count={found['length']}", "conv=sparse")
        if not attempt("mount", "-o", "loop,ro", copy, point):
            return None
        try:
            files = sorted(path for path in point.rglob("*") if path.is_file())
            return [(str(path.relative_to(point)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
        finally:
            run("umount", point)


def read_entry(image, number, sector):
    """Returns the range of a partition according to the primary GPT of an image; None if the entry is unused."""
    with open(image, "rb") as file:
        file.seek(2 * sector + 128 * (number - 1))
        entry = file.read(128)
    first, last = struct.unpack_from("<QQ", entry, 32)
    return {"start": first * sector, "length": (last - first + 1) * sector} if any(entry[:16]) else None


def all_renewed(case, before, after):
    """Returns whether all renewed partitions have a new filesystem of the requested type, at the place that the case states."""
    for disk in case["disks"]:
        sector, images = disk.get("sector_bytes", 512), [path[disk["id"]] for path in (before, after)]
        for part in disk.get("partitions", []):
            if part["fate"] not in ("renewed", "created") or "filesystem" not in part:
                continue
            found = read_entry(images[1], part["number"], sector)
            if found != {"start": part["start_mib"] * BLOCK, "length": part["size_mib"] * BLOCK}:
                return False
            old, new = (read_filesystem(image, found) for image in images)
            if new is None or new[0] != part["filesystem"] or new == old:
                return False
    return True


def read_filesystem(image, found):
    """Returns type and UUID of the filesystem in a range of an image."""
    try:
        shown = run("blkid", "--probe", "--output=export", f"--offset={found['start']}", f"--size={found['length']}", image)
    except CommandError:
        return None
    fields = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    return (fields["TYPE"], fields.get("UUID")) if "TYPE" in fields else None
