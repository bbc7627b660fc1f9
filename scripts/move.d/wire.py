"""Network recorder: captures a migration and checks that its data is not readable."""

import struct
import subprocess
import time

from qemu import check

# Content types of TLS records (RFC 8446, 5.1).
TLS = {20: "change_cipher_spec", 21: "alert", 22: "handshake", 23: "application_data"}


class Recorder:
    def __init__(self, file):
        self.file = file
        command = ["tcpdump", "--immediate-mode", "-B", "65536", "-U", "-s", "0", "-i", "lan", "-w", file, "tcp"]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        # The recorder prints a message when it listens.
        self.process.stderr.readline()
        time.sleep(0.5)

    def judged(self, a, b, secrets):
        """Checks that all traffic between both machines was TLS, and that no secret was transferred over this network."""
        self.process.terminate()
        self.process.communicate(timeout=30)
        streams, records, total = streams_of(self.file, a, b), {}, 0
        check(streams, f"nothing went between {a} and {b}")
        for stream in streams.values():
            for kind, length in records_of(stream):
                records[kind] = records.get(kind, 0) + 1
                total += length
        with open(self.file, "rb") as file:
            content = file.read()
        for secret in secrets:
            check(secret not in content, f"{secret!r} can be read on the wire")
        counted = ", ".join(f"{count} {TLS[kind]}" for kind, count in sorted(records.items()))
        return f"the recorder: {len(streams)} streams between {a} and {b}, {total} bytes, all of them TLS 1.3: {counted}; no secret in {len(content)} bytes"


def packets(file):
    """Returns the Ethernet frames of a capture in the classic format (pcap-savefile(5))."""
    with open(file, "rb") as capture:
        content = capture.read()
    check(struct.unpack_from("<I", content)[0] == 0xA1B2C3D4, "the timestamps of the capture are not in microseconds")
    at = 24
    while at + 16 <= len(content):
        length, whole = struct.unpack_from("<II", content, at + 8)
        check(length == whole, "a packet was recorded incompletely")
        yield content[at + 16 : at + 16 + length]
        at += 16 + length


def streams_of(file, a, b):
    """Returns the reassembled TCP payload between the two machines, in each direction."""
    both = {bytes(map(int, address.split("."))) for address in (a, b)}
    parts = {}
    for frame in packets(file):
        if frame[12:14] != b"\x08\x00" or {frame[26:30], frame[30:34]} != both:
            continue
        ip = 14 + (frame[14] & 15) * 4
        end = 14 + struct.unpack_from("!H", frame, 16)[0]
        source, target, number = struct.unpack_from("!HHI", frame, ip)
        payload = frame[ip + (frame[ip + 12] >> 4) * 4 : end]
        flow = parts.setdefault((frame[26:30], source, target), {"first": None, "parts": {}})
        if frame[ip + 13] & 2:
            flow["first"] = number + 1
        if payload and len(payload) > len(flow["parts"].get(number, b"")):
            flow["parts"][number] = payload
    return {key: ordered(flow) for key, flow in parts.items() if flow["parts"]}


def ordered(flow):
    """Joins the payload of one direction. Sequence numbers wrap at 4 GiB; because of their random start, they may wrap once."""
    check(flow["first"] is not None, "the recording begins in the middle of a connection")
    stream, at = bytearray(), 0
    for start, payload in sorted(((number - flow["first"]) % (1 << 32), payload) for number, payload in flow["parts"].items()):
        check(start <= at, f"the recorder has lost {start - at} bytes")
        if start + len(payload) > at:
            stream += payload[at - start :]
            at = start + len(payload)
    return bytes(stream)


def records_of(stream):
    at = 0
    while at + 5 <= len(stream):
        kind, version, length = struct.unpack_from("!BHH", stream, at)
        check(kind in TLS and version in (0x0301, 0x0303) and length <= (1 << 14) + 256, f"no TLS at byte {at}: {stream[at:at + 16]!r}")
        yield kind, length + 5
        at += 5 + length
