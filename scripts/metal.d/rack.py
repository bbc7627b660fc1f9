"""Environment of a machine in a rack of metal-stack, on this host's loopback interface: leaf switches, a control plane with its pixie (first.py
or server.py), a web server with images, a Loki, and a time server.
"""

import base64
import io
import json
import os
import re
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import tarfile
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "lib.d"))
from qemu import Failed, check, free_port  # noqa: E402

# Address of this host's loopback interface in QEMU's user network.
TOLD = "10.0.2.2"
# Real switches send LLDP frames every 10 to 30 seconds. These switches send more often, because the tests check other properties.
SPEAKS = 3
SLOW = int(os.environ.get("DROPHAMMER_PATIENCE", "1"))
PATIENCE = 300 * SLOW
# Seconds from 1900, where NTP begins to count, to 1970.
TO_1970 = 2_208_988_800


def shell(command, *arguments):
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", command, "bash", *arguments], capture_output=True, text=True)
    check(done.returncode == 0, f"{command}: {done.stderr}")
    return done.stdout


def until(is_so, what):
    end = time.monotonic() + PATIENCE
    while not is_so():
        check(time.monotonic() < end, f"not in {PATIENCE} s: {what}")
        time.sleep(0.2)


def lldp(number):
    """Returns the LLDP frame of a leaf: MAC as chassis id, local name as port id, TTL of 120 seconds, port description, system name."""
    mac = bytes([0xAA, 0, 0, 0, 0, number])
    item = lambda kind, value: struct.pack("!H", kind << 9 | len(value)) + value
    items = [(1, b"\4" + mac), (2, b"\7Ethernet4"), (3, b"\0\x78"), (4, b"to the machine"), (5, b"leaf0%d" % number), (0, b"")]
    frame = bytes.fromhex("0180c200000e") + mac + b"\x88\xcc" + b"".join(item(*one) for one in items)
    return frame.ljust(60, b"\0")


class Leaf:
    """Switch port that one NIC is connected to. Frames have the format of QEMU's `socket`, each preceded by its length. It sends LLDP
    while `speaks` is set."""

    def __init__(self, number, speaks):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.frame, self.speaks = self.listener.getsockname()[1], lldp(number), threading.Event()
        if speaks:
            self.speaks.set()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            card, _ = self.listener.accept()
            # Frames that the machine sends to other hosts are ignored.
            threading.Thread(target=self.swallow, args=[card], daemon=True).start()
            threading.Thread(target=self.speak, args=[card], daemon=True).start()

    def speak(self, card):
        try:
            while True:
                self.speaks.wait()
                card.sendall(struct.pack("!I", len(self.frame)) + self.frame)
                time.sleep(SPEAKS)
        except OSError:
            pass

    def swallow(self, card):
        try:
            while card.recv(1 << 16):
                pass
        except OSError:
            pass


class Clock:
    """Time server (SNTP, RFC 4330). Its port is fixed."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 123))
        self.asked = 0
        threading.Thread(target=self.answer, daemon=True).start()

    def answer(self):
        while True:
            try:
                question, client = self.socket.recvfrom(512)
            except OSError:
                return
            self.asked += 1
            now = time.time() + TO_1970
            now = struct.pack("!II", int(now), int(now % 1 * (1 << 32)))
            # Version 4, stratum 2. The client's transmit time is returned as originate time.
            head = bytes([4 << 3 | 4, 2, 6, 0xEC]) + bytes(8) + b"LOCL"
            self.socket.sendto(head + now + question[40:48] + now + now, client)

    def end(self):
        self.socket.close()


class Loki:
    """Accepts only requests of Loki's push API: https://grafana.com/docs/loki/latest/reference/loki-http-api/#ingest-logs. Clients authenticate
    with a name and a password, or with a certificate."""

    def __init__(self, basic=None, certificates=None):
        self.lines, self.labels, self.wrong, self.lock = [], [], [], threading.Lock()
        loki, wanted = self, basic and "Basic " + base64.b64encode(":".join(basic).encode()).decode()

        class Answers(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                why = None if self.headers.get("Authorization") == wanted else "another name or password"
                why = why or (None if self.path == "/loki/api/v1/push" else f"no such address: {self.path}")
                why = why or (None if self.headers.get("Content-Type") == "application/json" else "no JSON")
                why = why or loki.take(body)
                with loki.lock:
                    loki.wrong += [why] if why else []
                self.send_response(400 if why else 204)
                self.send_header("Content-Length", "0")
                self.end_headers()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        endpoint = f"{'https' if certificates else 'http'}://{TOLD}:{self.server.server_port}/loki/api/v1/push"
        self.config = {"endpoint": endpoint, "log_type": "loki"}
        if basic:
            self.config["basic_auth"] = {"user": basic[0], "password": basic[1]}
        if certificates:
            read = lambda name: open(os.path.join(certificates, name)).read()
            self.config["certificate_auth"] = {"cert": read("client.pem"), "key": read("client.key"), "insecure_skip_verify": True}
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(os.path.join(certificates, "server.pem"), os.path.join(certificates, "server.key"))
            context.load_verify_locations(os.path.join(certificates, "ca.pem"))
            context.verify_mode = ssl.CERT_REQUIRED
            # The TLS handshake of a connection is done in the thread that handles it.
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, body):
        """Returns None, or the reason of the refusal."""
        try:
            streams = json.loads(body)["streams"]
            for stream in streams:
                labels, values = stream["stream"], stream["values"]
                if not labels or not all(re.fullmatch("[a-zA-Z_][a-zA-Z0-9_]*", name) and isinstance(value, str) for name, value in labels.items()):
                    return f"labels {labels}"
                for when, line in values:
                    # Nanoseconds as text; times much older or newer than now are refused.
                    if not re.fullmatch("[0-9]{19}", when) or abs(int(when) / 1e9 - time.time()) > 3600 or not isinstance(line, str):
                        return f"line {when!r}, {line!r}"
                with self.lock:
                    self.labels += [labels] if labels not in self.labels else []
                    self.lines += [line for _, line in values]
        except (ValueError, KeyError, TypeError) as error:
            return f"{error!r} in {body[:200]!r}"
        return None

    def judge(self, machine, secrets):
        """Checks that the received log is complete and contains no secrets, and returns its number of lines."""
        with self.lock:
            lines, wrong, labels = list(self.lines), list(self.wrong), list(self.labels)
        check(wrong == [], f"Loki refuses: {wrong}")
        check(labels == [{"component": "drophammer", "machineID": machine}], f"labels: {labels}")
        for secret in secrets:
            check(not any(secret in line for line in lines), f"Loki has {secret!r}")
        for what in ["Preparing: ", "Waiting: ", "Installing: image.burn: ", "Booting New Kernel: "]:
            check(any(line.startswith(what) for line in lines), f"Loki has no {what!r}: {lines[-20:]}")
        return f"{len(lines)} lines"

    def end(self):
        self.server.shutdown()
        self.server.server_close()


class Rack:
    """Pixie and control plane of this version, and a web server with the image."""

    def __init__(self, version, directory, target):
        self.version, self.directory = version, directory
        os.makedirs(directory)
        certificates(directory)
        self.http, self.allocation, self.logging, self.started = free_port(), None, None, []
        if version == 1:
            self.arguments = ["first.py", directory, str(self.http), str(free_port()), TOLD]
        else:
            self.arguments = ["server.py", str(self.http)]
        self.plane = self.start(self.arguments, wait="ready")
        served = os.path.join(directory, "served")
        os.makedirs(served)
        # As metal-stack publishes images.
        shutil.copy(os.path.join(target, "tiny", "tiny.tar.zst"), os.path.join(served, "tiny-12.0.1.tar.zst"))
        later_image(served, os.path.join(HERE, "os-installer"))
        shell('cd "$1" && for image in *.zst; do md5sum "$image" >"$image.md5"; done', served)
        port = free_port()
        self.start([os.path.join("..", "ironic.d", "served.py"), served, str(port)])
        self.image = f"http://{TOLD}:{port}/tiny-12.0.1.tar.zst"

    def start(self, arguments, wait=None):
        log = open(os.path.join(self.directory, os.path.basename(arguments[0]) + ".log"), "ab")
        command = [sys.executable, os.path.join(HERE, arguments[0]), *arguments[1:]]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if wait else log, stderr=log, text=bool(wait))
        self.started.append(process)
        check(not wait or process.stdout.readline().strip() == wait, f"{command} did not start")
        return process

    def dies(self, seconds=5):
        """Kills the control plane and restarts it after a while. Its state is restored, as from a database, except for tokens."""
        knew = self.log()
        self.plane.kill()
        self.plane.wait()
        self.started.remove(self.plane)
        time.sleep(seconds)
        self.plane = self.start(self.arguments, wait="ready")
        kept = {name: knew[name] for name in ["calls", "wrong", "phase", "last", "client", "hardware", "console_password"] if name in knew}
        self.steer("set", kept | {"logging": self.logging})
        if self.allocation:
            self.allocate(self.allocation)

    def steer(self, what, how):
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}/judge/{what}", json.dumps(how).encode(), method="POST")
        urllib.request.urlopen(request, timeout=30).read()

    def allocate(self, allocation):
        self.allocation = allocation
        self.steer("allocate", allocation)

    def logs_to(self, loki, **more):
        self.logging = loki.config
        self.steer("set", {"logging": loki.config} | more)

    def refuse(self, call, **how):
        self.steer("refuse", {"call": call, "times": 1} | how)

    def log(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/judge/log", timeout=30) as answer:
            return json.load(answer)

    def heard(self, call):
        """Returns how often this was called in this boot."""
        return sum(one["call"] == call for one in self.log()["calls"])

    def begin(self):
        """Starts the record of a new boot."""
        self.steer("set", {"calls": []})

    def calls(self):
        """Returns the calls in this boot, with the events except `Alive`, and checks that all were valid."""
        log = self.log()
        check(log["wrong"] == [], f"wrong: {log['wrong']}")
        names = []
        for call in log["calls"]:
            message = call["message"]
            event = message.get("event", {}).get("event", "").removeprefix("MACHINE_PROVISIONING_EVENT_TYPE_")
            event = event or next((one["value"]["event"] for one in message.get("events", [])), "")
            names += [f"{call['call']} {event}".strip()] if event.lower() != "alive" else []
        return names

    def end(self):
        for process in self.started:
            process.kill()
            process.wait()


def later_image(served, program):
    """Builds an image as metal-stack publishes them since 2026-08: without its own installer, but with os-installer."""
    old = shell('zstd -qdc "$1/tiny-12.0.1.tar.zst" >"$1/later.tar"; echo "$1/later.tar"', served).strip()
    with tarfile.open(old) as tar:
        members, end = tar.getmembers(), tar.offset
        at = next(index for index, member in enumerate(members) if member.name == "./install.sh")
        installer = tar.extractfile(members[at]).read()
    with open(old, "rb") as file:
        content = file.read(end)
    added = io.BytesIO()
    with tarfile.open(fileobj=added, mode="w") as tar, open(program, "rb") as file:
        # lvm.conf is only written if the image does not have one.
        for name, text in [("./usr/lib/tiny/install.sh", installer), ("./os-installer", file.read()), ("./etc/lvm/lvm.conf", b"# none\n")]:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text), 0o755
            tar.addfile(member, io.BytesIO(text))
    with open(old, "wb") as file:
        file.write(content[: members[at].offset] + content[members[at + 1].offset :] + added.getvalue())
    shell('zstd -q -3 --rm "$1" -o "$2"', old, os.path.join(served, "tiny-13.0.1.tar.zst"))


def certificates(folder):
    """Creates a CA, with certificates of its server and clients."""
    make = """cd "$1"
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=ca -keyout ca.key -out ca.pem 2>/dev/null
for name in server client short; do
	openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr" 2>/dev/null
	printf 'subjectAltName=IP:%s\\n' "$2" >"$name.ext"
	openssl x509 -req -in "$name.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 30 -extfile "$name.ext" -out "$name.pem" 2>/dev/null
done"""
    shell(make, folder, TOLD)


def certificate_until(folder, end):
    """Creates the certificate `short`, which expires at that second."""
    make = """cd "$1"
printf '[ca]\\ndefault_ca=d\\n[d]\\nnew_certs_dir=.\\ndatabase=index\\nserial=short.srl\\ndefault_md=sha256\\npolicy=p\\nunique_subject=no\\n[p]\\ncommonName=supplied\\n' >short.cnf
: >index
echo 1234 >short.srl
openssl ca -batch -config short.cnf -in short.csr -cert ca.pem -keyfile ca.key -notext -extfile short.ext -enddate "$2" -out short.pem 2>/dev/null"""
    shell(make, folder, time.strftime("%Y%m%d%H%M%SZ", time.gmtime(end)))
