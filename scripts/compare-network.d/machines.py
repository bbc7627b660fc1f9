"""Boots Debian with the files of this program in virtual machines whose bond lacks one of its two NICs, for each network stack.
Usage: machines.py WORK TREE... [-- STACK...]   WORK contains rendered.json

In the machine a unit waits for network-online.target, prints the state of the network on the serial port, and switches the machine off."""

import json
import os
import re
import shutil
import subprocess
import sys
import time

from documents import EXPECTED, MACHINES, NICS

# Time limit of a boot in seconds, with an emulated processor and a second machine on the same host.
DEADLINE = 600
BEGIN, END = "network report begins", "network report ends"

# Units that configure networks, and those of each stack.
UNITS = ("systemd-networkd", "NetworkManager", "NetworkManager-wait-online", "networking")
UNITS_OF = {"netplan": ("systemd-networkd",), "systemd-networkd": ("systemd-networkd",), 
            "NetworkManager": ("NetworkManager", "NetworkManager-wait-online"), "ifupdown": ("networking",)}

REPORT = f"""#!/bin/sh
exec >/dev/ttyS0 2>&1
echo "{BEGIN}"
echo "members: $(cat /sys/class/net/bond0/bonding/slaves)"
echo "mode: $(cat /sys/class/net/bond0/bonding/mode)"
echo "active: $(cat /sys/class/net/bond0/bonding/active_slave)"
echo "online: $(systemctl is-active network-online.target)"
echo "failed: $(systemctl list-units --failed --plain --no-legend | cut -d' ' -f1 | tr '\\n' ' ')"
for device in bond0 people; do
	ip -4 -br address show dev $device 2>/dev/null | sed 's/^\\([^ @]*\\)[^ ]* *[^ ]* */address: \\1 /'
done
ip -4 route show default | sed 's/^/route: /'
ping -q -c 3 -i 0.5 -W 3 192.0.2.2 >/dev/null && echo "gateway: answers"
echo "uptime: $(cut -d. -f1 /proc/uptime)"
echo "{END}"
sleep 2
echo o >/proc/sysrq-trigger
"""
UNIT = """[Unit]
Wants=network-online.target
After=network-online.target
[Service]
Type=oneshot
ExecStart=/bin/sh /usr/local/sbin/network-report
[Install]
WantedBy=multi-user.target
"""


def run(*argv, **more):
    result = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False, **more)
    if result.returncode:
        sys.exit("%s: %s%s" % (" ".join(argv), result.stdout, result.stderr))
    return result.stdout


def write(root, path, text, mode=0o644):
    os.makedirs(os.path.dirname(root + path), exist_ok=True)
    with open(root + path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(root + path, mode)


def install_stack(root, stack, files):
    """Writes the files, and enables only the units of the stack."""
    for path, text in files.items():
        write(root, path, text, 0o600 if "netplan" in path or "system-connections" in path else 0o644)
    write(root, "/usr/local/sbin/network-report", REPORT)
    write(root, "/etc/systemd/system/network-report.service", UNIT)
    write(root, "/etc/fstab", "")
    write(root, "/etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    systemctl = ("systemctl", "--root=" + root)
    # A login prompt would be printed between the lines of the report.
    run(*systemctl, "mask", "serial-getty@ttyS0.service", *(unit + ".service" for unit in UNITS if unit not in UNITS_OF[stack]))
    run(*systemctl, "enable", "network-report", *UNITS_OF[stack])
    run(*systemctl, "set-default", "multi-user.target")


def create_disk(work, tree, stack, files):
    """Creates a disk with one ext4 filesystem, which contains the tree and the files."""
    disk, root = os.path.join(work, "disk.raw"), os.path.join(work, "root")
    os.mkdir(root)
    run("mount", "-t", "overlay", "overlay", "-o", "lowerdir=%s,upperdir=%s,workdir=%s" % (tree, os.path.join(work, "upper"), os.path.join(work, "overlay")), root)
    try:
        install_stack(root, stack, files)
        run("mkfs.ext4", "-q", "-d", root, disk, "1500M")
    finally:
        run("umount", root)
    return disk


def boot(tree, disk, nic, console):
    """Boots the machine with one NIC, and returns its console output. QEMU ends if the machine switches itself off or at the deadline."""
    kernel = next(name for name in sorted(os.listdir(tree + "/boot")) if name.startswith("vmlinuz-"))
    initrd = kernel.replace("vmlinuz-", "initrd.img-")
    # The network namespace contains only QEMU's DHCP server and gateway.
    # Emulated machines fail at random with `-cpu max`, and without memory barriers, which QEMU omits for a single processor.
    argv = ["unshare", "--net", "qemu-system-x86_64", "-machine", "q35,accel=" + os.environ["ACCEL"], "-cpu", "qemu64,+rdrand",
            "-smp", "1,maxcpus=2", "-m", "768", "-display", "none", "-no-reboot",
            "-kernel", os.path.join(tree, "boot", kernel), "-initrd", os.path.join(tree, "boot", initrd),
            "-append", "root=/dev/vda rw init=/usr/lib/systemd/systemd console=ttyS0 panic=-1 quiet systemd.default_timeout_start_sec=500",
            "-drive", "file=%s,format=raw,if=virtio,cache=unsafe" % disk, "-serial", "file:" + console,
            "-netdev", "user,id=net,net=192.0.2.0/24", "-device", "virtio-net-pci,netdev=net,mac=" + NICS[nic]]
    try:
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE, check=True)
    except subprocess.TimeoutExpired:
        pass
    with open(console, encoding="utf-8", errors="replace") as file:
        return file.read().replace("\r", "")


def read_report(output):
    """Returns the lines of the report, or nothing if the machine did not print one."""
    found = re.search(re.escape(BEGIN) + r"\n(.*?)" + re.escape(END), output, re.S)
    # Kernel messages can appear between the lines of the report.
    return [line for line in found[1].splitlines() if re.match(r"[a-z]+: ", line)] if found else None


def problems(report, expected):
    if report is None:
        return ["the machine did not reach network-online.target within %d s" % DEADLINE]
    return ["missing: %s" % pattern for pattern in expected if not any(re.fullmatch(pattern, line) for line in report)]


def check(work, tree, stack, name, rendered):
    """Boots one machine. Prints its report; returns whether it is as expected."""
    nic, expected = MACHINES[name]["nic"], EXPECTED + MACHINES[name]["expected"]
    folder = os.path.join(work, "-".join((os.path.basename(tree), stack, name)))
    for part in ("upper", "overlay"):
        os.makedirs(os.path.join(folder, part))
    started = time.monotonic()
    output = boot(tree, create_disk(folder, tree, stack, rendered["machine-" + name][stack]), nic, os.path.join(folder, "console"))
    report = read_report(output)
    found = problems(report, expected)
    print("%-9s %-17s %-14s %s (%d s)" % (os.path.basename(tree), stack, name, "differs" if found else "ok", time.monotonic() - started))
    for line in found:
        print("    " + line)
    for line in report if report is not None else output.splitlines()[-15:]:
        print("    | " + line)
    sys.stdout.flush()
    shutil.rmtree(folder)
    return not found


def main(work, trees, stacks):
    with open(os.path.join(work, "rendered.json"), encoding="utf-8") as file:
        rendered = json.load(file)
    cases = [(tree, stack, name) for tree in trees for stack in UNITS_OF if not stacks or stack in stacks for name in MACHINES]
    results = [check(work, tree, stack, name, rendered) for tree, stack, name in cases]
    print("%d machines, %d of them differ" % (len(results), results.count(False)))
    return 0 if results and all(results) else 1


if __name__ == "__main__":
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    sys.exit(main(sys.argv[1], sys.argv[2:split], sys.argv[split + 1:]))
