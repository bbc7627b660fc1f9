"""Starts the daemons of each network stack in the namespaces of `sandbox.py`, and thereby ends them together with these namespaces."""

import os
import subprocess
import time

LOG = "/run/daemons.log"
LOG_OF_IP = "/run/ip.log"


def start(*argv, **more):
    with open(LOG, "a", encoding="utf-8") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **more)


def chroot(root, *argv, **more):
    return subprocess.run(["chroot", root, *argv], capture_output=True, text=True, timeout=60, check=False, **more)


def wait_until(condition, what):
    end = time.monotonic() + 20
    while not condition():
        if time.monotonic() > end:
            raise SystemExit("%s did not appear; log:\n%s" % (what, log_text()))
        time.sleep(0.1)


def wait_for(path):
    wait_until(lambda: os.path.exists(path), path)


def wait_for_text(text):
    wait_until(lambda: text in log_text(), text)


def log_text():
    with open(LOG, encoding="utf-8") as log:
        return log.read()


def networkd(root):
    for folder in ("", "/links", "/leases", "/lldp"):
        os.makedirs(root + "/run/systemd/netif" + folder, exist_ok=True)
    chroot(root, "chown", "-R", "systemd-network:systemd-network", "/run/systemd/netif")
    start("chroot", root, "/usr/lib/systemd/systemd-networkd")
    wait_for(root + "/run/systemd/netif/state")

    def more():
        wait = chroot(root, "/usr/lib/systemd/systemd-networkd-wait-online", "--timeout=3").returncode
        return {"dns": networkd_dns(root), "online": wait == 0}
    return more


def networkd_dns(root):
    """Name servers and domains that networkd passes to resolved, except those from the LAN."""
    found = set()
    folder = root + "/run/systemd/netif/links"
    for link in os.listdir(folder):
        with open(os.path.join(folder, link), encoding="utf-8") as file:
            lines = dict(line.rstrip("\n").split("=", 1) for line in file if "=" in line)
        found |= set(lines.get("DNS", "").split()) | set(lines.get("DOMAINS", "").split())
    return sorted(found - {"198.18.0.53", "fd00:18::53"})


def network_manager(root):
    os.makedirs(root + "/run/dbus", exist_ok=True)
    start("chroot", root, "dbus-daemon", "--system", "--nofork", "--nopidfile")
    wait_for(root + "/run/dbus/system_bus_socket")
    # All NICs are managed, as on a server without ifupdown.
    with open(root + "/etc/NetworkManager/NetworkManager.conf", "w", encoding="ascii") as file:
        file.write("[main]\nplugins=keyfile\nno-auto-default=*\n")
    start("chroot", root, "NetworkManager", "--no-daemon")
    chroot(root, "nm-online", "-s", "-q", "-t", "30")

    def more():
        output = chroot(root, "nmcli", "-t", "-g", "IP4.DNS,IP6.DNS,IP4.DOMAIN,IP6.DOMAIN,IP4.SEARCHES,IP6.SEARCHES", "device", "show").stdout
        words = output.replace("\\:", ":").replace("|", " ").split()
        return {"dns": sorted(set(words) - {"198.18.0.53", "fd00:18::53"})}
    return more


def ifupdown(root):
    """Runs what Debian's networking.service and udev's rule run, with `ip` replaced by one that lets bridges stand in for bonds."""
    os.makedirs(root + "/run/network", exist_ok=True)
    os.rename(root + "/bin/ip", root + "/bin/ip.real")
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "stand_in_ip.py"), encoding="utf-8") as text, open(root + "/bin/ip", "w", encoding="utf-8") as file:
        file.write(text.read())
    os.chmod(root + "/bin/ip", 0o755)
    with open(root + LOG_OF_IP, "w", encoding="utf-8"):
        pass
    chroot(root, "ifup", "-a")
    for name in os.listdir(root + "/sys/class/net"):
        chroot(root, "ifup", "--allow=hotplug", name)

    def more():
        with open(root + LOG_OF_IP, encoding="utf-8") as file:
            return {"commands": file.read().splitlines(), "dns": ifupdown_dns(root)}
    return more


def ifupdown_dns(root):
    """Name servers and domains that ifup passes to resolvconf."""
    names = [chroot(root, "ifquery", "--list", *which).stdout.split() for which in (["-a"], ["--allow=hotplug"])]
    lines = [line.split() for name in sum(names, []) for line in chroot(root, "ifquery", name).stdout.splitlines()]
    return sorted({word for line in lines if line and line[0] in ("dns-nameservers:", "dns-search:") for word in line[1:]})


# Functions that configure the network. Each returns a function that reads the state that only the daemons have.
STACKS = {"systemd-networkd": networkd, "NetworkManager": network_manager, "ifupdown": ifupdown}
