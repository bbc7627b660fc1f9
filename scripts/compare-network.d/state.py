"""State of the kernel's network in this namespace, without values that differ from one boot to the next."""

import ipaddress
import json
import subprocess

# Networks of the LAN: the DHCP server or the kernel chooses the addresses in them.
LAN4, LAN6 = ipaddress.ip_network("198.18.0.0/24"), ipaddress.ip_network("fd00:18::/64")


def ip(*argv):
    output = subprocess.run(["ip", "-j", "-d", *argv], capture_output=True, text=True, timeout=10, check=False).stdout
    return json.loads(output or "[]")


def read_state():
    devices = {}
    for link in ip("address", "show"):
        name = link["ifname"]
        if name != "lo":
            devices[name] = {
                "up": "UP" in link["flags"], "mtu": link["mtu"], "master": link.get("master"),
                "addresses": sorted(filter(None, map(shown_address, link["addr_info"]))),
            }
    routes = [route for family in ("-4", "-6") for route in ip(family, "route", "show", "table", "all")]
    # Routes of IPv6 that differ only in their gateways are shown as one.
    routes = [{**route, **gateway} for route in routes for gateway in route.get("nexthops", [{}])]
    return {"devices": devices, "routes": sorted(filter(None, map(shown_route, routes)))}


def shown_address(info):
    address = ipaddress.ip_address(info["local"])
    size = info["prefixlen"]
    if address in LAN4:
        return "198.18.0.x/%d dhcp" % size
    if address in LAN6:
        return "fd00:18::x/%d %s" % (size, "dhcp" if size == 128 else "slaac")
    # The kernel derives such an address from a MAC or from a secret.
    if address.is_link_local and size == 64 and address.version == 6:
        return "fe80::7/64" if str(address) == "fe80::7" else "fe80::/64 link-local"
    return "%s/%d" % (address, size)


def shown_route(route):
    """Returns a unicast route of the main table."""
    if route.get("type", "unicast") != "unicast" or route.get("table", "main") != "main" or route["dev"] == "lo":
        return None
    destination = route["dst"]
    if destination.startswith(("fe80::", "ff00::")):
        return None
    if destination.startswith("fd00:18::") and destination != "fd00:18::/64":
        destination = "fd00:18::x"
    gateway = route.get("gateway", route.get("via", {}).get("host"))
    if gateway and gateway.startswith("fe80::") and gateway != "fe80::1":
        gateway = "router"
    words = [destination, "via %s" % gateway if gateway else "", "dev " + route["dev"], "metric %d" % route.get("metric", 0),
             " ".join(flag for flag in route.get("flags", []) if flag == "onlink")]
    return " ".join(filter(None, words))
