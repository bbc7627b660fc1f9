"""Applies the network files of one document in separate namespaces, and prints the resulting state of the kernel as JSON.
Usage: unshare --mount --net --pid --fork --kill-child sandbox.py JOB, as root; JOB is a JSON file with the fields
  tree    Debian tree, of which the programs run
  stack   systemd-networkd, NetworkManager or ifupdown
  files   content by path
  nics    MACs of the NICs that exist, by kernel name
  lan     kernel names of the NICs with a cable to the LAN; the others have one to a port that is up
  absent  kernel names of NICs that do not exist
  unplugged  kernel names of the NICs without a carrier
  mtus    MTUs of the members of bonds, by kernel name: a bond sets them, a bridge does not
  vlans   names of the VLANs that networkd finds
  dhcp6   whether the LAN has a DHCPv6 server
  wants   beginnings of addresses and routes for which to wait, each as often as it must occur
The LAN is a bridge in a second network namespace, with a DHCP server and router advertisements. Where bonds and VLANs are concerned,
bridges and virtual NICs stand in for them: many kernels of test hosts lack these drivers."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import daemons
from state import read_state

# Seconds until the state is read, even if it is incomplete.
DEADLINE = 20
SCRATCH = "/run/scratch"
ROOT = SCRATCH + "/root"
DHCP = """
port=0
interface=lan
bind-interfaces
dhcp-range=198.18.0.50,198.18.0.99,1h
enable-ra
ra-param=lan,0,600
dhcp-option=option:dns-server,198.18.0.53
dhcp-option=option:mtu,1420
dhcp-option=option6:dns-server,[fd00:18::53]
dhcp-authoritative
no-ping
leasefile-ro
log-facility=-
"""


# Without DHCPv6 in the document, routers do not announce it: networkd and NetworkManager would use it, the kernel does not.
RANGE6 = {True: "dhcp-range=fd00:18::1:50,fd00:18::1:99,slaac,64,1h", False: "dhcp-range=fd00:18::,ra-only"}


def run(*argv, check=True):
    result = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    if check and result.returncode:
        raise SystemExit("%s: %s%s" % (" ".join(argv), result.stdout, result.stderr))
    return result.stdout


def sysctl(path, value):
    with open("/proc/sys/net/" + path, "w", encoding="ascii") as file:
        file.write(value)


def mount_root(tree):
    """Mounts the tree below a layer in memory, which discards all changes. /sys is read-only, as in a container: daemons then do not wait
    for udev."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "proc", "proc", "/proc")
    run("mount", "-t", "tmpfs", "tmpfs", "/run")
    for folder in ("upper", "work", "root"):
        os.makedirs(os.path.join(SCRATCH, folder))
    run("mount", "-t", "overlay", "overlay", "-o", "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (tree, SCRATCH, SCRATCH), ROOT)
    run("mount", "-t", "proc", "proc", ROOT + "/proc")
    run("mount", "-t", "sysfs", "-o", "ro", "sysfs", ROOT + "/sys")
    run("mount", "-t", "tmpfs", "tmpfs", ROOT + "/run")
    run("mount", "--rbind", "/dev", ROOT + "/dev")
    with open(ROOT + "/etc/machine-id", "w", encoding="ascii") as file:
        file.write("0123456789abcdef0123456789abcdef\n")


def start_lan(has_dhcp6):
    run("ip", "netns", "add", "lan")
    os.makedirs(ROOT + "/run/netns")
    run("mount", "--bind", "/run/netns", ROOT + "/run/netns")
    run("mount", "--bind", "/run/netns/lan", ROOT + "/run/netns/lan")
    lan = ("ip", "-n", "lan")
    run(*lan, "link", "add", "lan", "type", "bridge", "forward_delay", "0")
    run(*lan, "address", "add", "198.18.0.1/24", "dev", "lan")
    run(*lan, "address", "add", "fd00:18::1/64", "dev", "lan", "nodad")
    run(*lan, "link", "set", "lan", "up")
    run("ip", "link", "set", "lo", "up")
    # Duplicate address detection and random delays would only prolong the test.
    for kind in ("default", "all"):
        sysctl("ipv6/conf/%s/dad_transmits" % kind, "0")
        sysctl("ipv6/conf/%s/accept_dad" % kind, "0")
        sysctl("ipv6/conf/%s/router_solicitation_delay" % kind, "0")
        sysctl("ipv6/conf/%s/router_solicitation_interval" % kind, "1")
    with open("/run/dnsmasq.conf", "w", encoding="ascii") as file:
        file.write(DHCP + RANGE6[has_dhcp6] + "\n")
    daemons.start("ip", "netns", "exec", "lan", "dnsmasq", "--keep-in-foreground", "--conf-file=/run/dnsmasq.conf")
    daemons.wait_for_text("started, version")


def add_nic(name, mac, on_lan, carrier=True, mtu=1500):
    run("ip", "link", "add", name, "address", mac, "mtu", str(mtu), "type", "veth", "peer", "name", name, "netns", "lan")
    # Routers advertise themselves on the LAN only.
    run("ip", "-n", "lan", "link", "set", name, *(["master", "lan"] if on_lan else ["addrgenmode", "none"]))
    if carrier:
        run("ip", "-n", "lan", "link", "set", name, "up")


def without_section(name, text):
    return re.sub(r"^\[%s\]\n(?:[^\[\n].*\n|\n)*" % name, "", text, flags=re.M)


def keyfile_stand_in(text):
    """Returns the text of a keyfile with a bridge for each bond, and a NIC for each VLAN."""
    text = without_section("vlan", re.sub("^type=vlan$", "type=ethernet", text, flags=re.M))
    if re.search("^type=bond$", text, re.M):
        text = without_section("bond", text) + "\n[bridge]\nstp=false\n"
    return re.sub("^(type|slave-type)=bond$", r"\1=bridge", text, flags=re.M)


def unit_stand_in(path, text):
    """Returns the text of a unit for this machine, whose NICs do not have a permanent MAC, and whose bonds are bridges."""
    text = text.replace("PermanentMACAddress=", "MACAddress=")
    if path.endswith(".netdev"):
        if "Kind=vlan" in text:
            return ""
        return without_section("Bond", text.replace("Kind=bond", "Kind=bridge")) + "\n[Bridge]\nForwardDelaySec=0\n"
    text = re.sub("^(VLAN|PrimarySlave)=.*\n", "", text, flags=re.M)
    return re.sub("^Bond=", "Bridge=", text, flags=re.M)


def write_files(files):
    for path, text in files.items():
        if "/systemd/network/" in path:
            text = unit_stand_in(path, text)
        if "/system-connections/" in path:
            text = keyfile_stand_in(text)
        os.makedirs(os.path.dirname(ROOT + path), exist_ok=True)
        if text:
            with open(os.open(ROOT + path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(ROOT + path, 0o600 if "system-connections" in path else 0o644)


def rename_nics(nics):
    """Renames the NICs as udev does at boot, by the `.link` files."""
    for nic in nics:
        lines = run("chroot", ROOT, "udevadm", "test-builtin", "net_setup_link", "/sys/class/net/" + nic, check=False)
        name = re.search("^ID_NET_NAME=(.*)$", lines, re.M)
        if name and name[1] != nic and re.search("ID_NET_LINK_FILE=.*(drophammer|netplan)", lines):
            run("ip", "link", "set", nic, "name", name[1])


def settled_state(wants, deadline):
    """Waits until the wanted lines exist and nothing has changed for a while, and returns the state."""
    last, since, end = None, time.monotonic(), time.monotonic() + deadline
    while True:
        state, now = read_state(), time.monotonic()
        if state != last:
            last, since = state, now
        lines = [address for device in state["devices"].values() for address in device["addresses"]] + state["routes"]
        is_whole = all(sum(line.startswith(wanted) for line in lines) >= wants.count(wanted) for wanted in wants)
        if now > end or (is_whole and now - since > 2):
            return state
        time.sleep(0.3)


def main(job):
    mount_root(job["tree"])
    start_lan(job["dhcp6"])
    nics = {name: mac for name, mac in job["nics"].items() if name not in job["absent"]}
    for name, mac in nics.items():
        add_nic(name, mac, name in job["lan"], name not in job["unplugged"], job["mtus"].get(name, 1500))
    write_files(job["files"])
    rename_nics(nics)
    if job["stack"] != "ifupdown":
        for index, name in enumerate(job["vlans"]):
            add_nic(name, "52:54:00:bb:00:%02x" % index, True)
    more = daemons.STACKS[job["stack"]](ROOT)
    state = settled_state(job["wants"], DEADLINE)
    state.update(more())
    print(json.dumps(state))


if __name__ == "__main__":
    signal.alarm(120)
    with open(sys.argv[1], encoding="utf-8") as job_file:
        main(json.load(job_file))
