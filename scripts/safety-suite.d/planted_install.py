"""Stages of the planted installers (planted/), whose errors the judge must report."""
import json
import os
import sys
import uuid
from pathlib import Path

from commands import run

MIB = 1 << 20


def read_intent():
    return json.loads((Path(sys.argv[1]) / "intent.json").read_text())


def partitions(intent, fate):
    for disk in intent["disks"]:
        yield from ((disk, part) for part in disk.get("partitions", []) if part["fate"] == fate)


def format_renewed(intent):
    for disk, part in partitions(intent, "renewed"):
        if "filesystem" in part:
            run(f"mkfs.{part['filesystem']}", "-q", "-F", f"{disk['device']}p{part['number']}")
    for item in intent.get("arrays", []):
        if item["fate"] == "renewed":
            run("mkfs.ext4", "-q", "-F", f"/dev/md/{item['name']}")
    for group in intent.get("groups", []):
        for volume in group["volumes"]:
            if volume["fate"] == "renewed":
                run("lvchange", "-ay", f"{group['name']}/{volume['name']}")
                run("mkfs.ext4", "-q", "-F", f"/dev/{group['name']}/{volume['name']}")


def preserved_device(intent):
    """Returns the first preserved object: a partition, an array or a volume."""
    for disk, part in partitions(intent, "preserved"):
        return f"{disk['device']}p{part['number']}"
    for array in intent.get("arrays", []):
        if array["fate"] == "preserved":
            return assemble(intent, array)
    group = intent["groups"][0]
    volume = next(volume for volume in group["volumes"] if volume["fate"] == "preserved")
    run("lvchange", "-ay", f"{group['name']}/{volume['name']}")
    return f"/dev/{group['name']}/{volume['name']}"


def assemble(intent, array):
    devices = {disk["id"]: disk["device"] for disk in intent["disks"]}
    members = [f"{devices[member[:1]]}p{member[1:]}" for member in array["members"]]
    run("mdadm", "--assemble", "--run", f"/dev/md/{array['name']}", *members)
    return f"/dev/md/{array['name']}"


def overwrite_byte(device):
    with open(device, "r+b", buffering=0) as file:
        middle = file.seek(0, os.SEEK_END) // 2
        file.seek(middle)
        byte = file.read(1)
        file.seek(middle)
        file.write(bytes([byte[0] ^ 1]))
        os.fsync(file.fileno())


def move_partition(intent):
    disk, part = next(partitions(intent, "preserved"))
    device, number = disk["device"], part["number"]
    shown = json.loads(run("sfdisk", "--json", device))["partitiontable"]["partitions"]
    entry = next(one for one in shown if one["node"] == f"{device}p{number}")
    sector = disk.get("sector_bytes", 512)
    start, end = entry["start"], entry["start"] + entry["size"] - 1
    with open(device, "r+b", buffering=0) as file:
        file.seek(start * sector)
        content = file.read(entry["size"] * sector)
        file.seek(start * sector + MIB)
        file.write(content)
        os.fsync(file.fileno())
    step = MIB // sector
    run("sgdisk", "--set-alignment=1", f"--delete={number}", f"--new={number}:{start + step}:{end + step}",
        f"--partition-guid={number}:{entry['uuid']}", f"--change-name={number}:{entry.get('name', '')}", device)


def change_guid(intent):
    disk, part = next(partitions(intent, "preserved"))
    run("sgdisk", f"--partition-guid={part['number']}:{uuid.uuid4()}", disk["device"])
