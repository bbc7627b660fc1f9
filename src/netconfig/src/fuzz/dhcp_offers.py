"""Runs udhcpc with the ramdisk's script in a separate network namespace. The DHCP server sends the offers that the test specifies.

Each request is a length in four bytes and a payload: `sname` (64 bytes), `file` (128 bytes) and the options of an offer. Each answer is a
line of JSON: the commands that the script has run, and the file of the lease. Arguments: the folder with the script, and its name.
"""

import json
import os
import socket
import struct
import subprocess
import sys
import threading

FOLDER, SCRIPT = sys.argv[1], sys.argv[2]
OFFER, ACKNOWLEDGE = 2, 5


def setup():
    for line in (
        "ip link set lo up",
        "ip link add fuzz0 type veth peer name fuzz1",
        "ip link set fuzz0 up",
        "ip link set fuzz1 up",
        "ip addr add 10.9.8.1/24 dev fuzz1",
    ):
        subprocess.run(line.split(), check=True)
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"fuzz1\0")
    server.bind(("", 67))
    return server


def message_type(options):
    at = 0
    while at + 2 < len(options) and options[at] != 255:
        if options[at] == 0:
            at += 1
            continue
        if options[at] == 53:
            return options[at + 2]
        at += 2 + options[at + 1]
    return 0


def serve(server, payload):
    """Answers discoveries and requests with the payload of the test."""
    while True:
        request, _ = server.recvfrom(2048)
        if len(request) <= 240 or not payload:
            continue
        kind = OFFER if message_type(request[240:]) == 1 else ACKNOWLEDGE
        reply = bytearray(request[:240])
        reply[0] = 2
        reply[16:20] = bytes([10, 9, 8, 7])
        reply[44:108], reply[108:236] = payload[0][:64], payload[0][64:192]
        start = bytes([53, 1, kind, 54, 4, 10, 9, 8, 1])
        server.sendto(bytes(reply) + start + payload[0][192:], ("255.255.255.255", 68))


def read(name):
    try:
        with open(os.path.join(FOLDER, name), "rb") as file:
            return file.read().decode("latin-1")
    except FileNotFoundError:
        return ""


def one(payload, data):
    for name in ("commands", "console", "resolv.conf", "time-servers", "leases/fuzz0"):
        if os.path.exists(os.path.join(FOLDER, name)):
            os.remove(os.path.join(FOLDER, name))
    payload[:] = [data]
    command = ["busybox", "udhcpc", "-n", "-q", "-f", "-t", "2", "-T", "1", "-i", "fuzz0", "-s", os.path.join(FOLDER, SCRIPT)]
    client = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    commands = [line.split("\x1f")[:-1] for line in read("commands").split("\x1e") if line]
    files = sorted(os.listdir(FOLDER))
    return {"bound": client.returncode == 0, "commands": commands, "resolv": read("resolv.conf"), "times": read("time-servers"), "files": files}


def main():
    server, payload = setup(), []
    threading.Thread(target=serve, args=(server, payload), daemon=True).start()
    while True:
        head = sys.stdin.buffer.read(4)
        if len(head) < 4:
            break
        answer = one(payload, sys.stdin.buffer.read(struct.unpack(">I", head)[0]))
        print(json.dumps(answer), flush=True)


main()
