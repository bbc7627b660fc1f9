"""Control plane of metal-stack's API v1, and its pixie, for the tests of the agent (src/agent/src/metal_conformance_tests/api_v1.rs).

gRPC is that of PyPI's grpcio, over mutual TLS. The messages are built from a table (first_messages.py), which has the field numbers and nothing
of metal-stack's own files; protobuf's own library parses and validates them. Errors are a field that is not in the table, an event out of
order, a repeated phase of the same boot, and a report that replaces the console password of an installed machine.

A call overwrites the same fields as metal-api, also with empty values: see OVERWRITES.

    first.py FOLDER HTTP-PORT GRPC-PORT [NAME]     prints "ready" when it listens; NAME is its host name for machines

FOLDER has ca.pem, server.pem, server.key, client.pem, client.key, and stranger.pem with stranger.key of another CA. The tests control it over
HTTP, at /judge/: see STEER.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
import time
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import bmc
import grpc
from first_messages import Messages, plain, unknown

# Fields that metal-api (internal/grpc/boot-service.go) stores. `succeeded` is a field of the allocation that no call sets.
OVERWRITES = {
    "Register": "size, hardware, bios, ipmi (all of it, see bmc.py), partition, version; then rack and connections of the switches",
    "Send": "creates an empty machine",
    "Report": "allocation: console password, boot_info (its image is the allocation's), reinstall = false; then the ports of the switches, and "
    "a command to boot from disk with the stored ipmi",
    "AbortReinstall, not wiped": "allocation: reinstall = false, image = that of boot_info where there is one; the same command",
    "AbortReinstall, wiped": "the same command",
    "reinstall of the operator": "allocation: reinstall = true, image; boot_info stays",
    "free of the operator": "the allocation, with its boot_info",
}
# Events, and those that may precede each. Alive may arrive at any time, and is not stored; so may Crashed and Planned Reboot, which are
# stored.
BEFORE = {
    "Preparing": {None, "PXE Booting", "Planned Reboot", "Machine Reclaim", "Crashed"},
    "Registering": {"Preparing"},
    "Waiting": {"Registering"},
    "Installing": {"Registering", "Waiting"},
    "Booting New Kernel": {"Installing"},
}


# Address of this host for the machines.
NAME = sys.argv[4] if len(sys.argv) > 4 else "localhost"
# metal-api's limit for the clock skew of a signature is 30 s; the default of its library is 15 s.
LIMIT = 15
# A sign of life is sent at most once a minute. A message that was delayed may seem to arrive too early.
OFTEN = 50


class State:
    """State of the control plane for its only machine."""

    def __init__(self):
        self.lock = threading.Condition()
        self.allocation = None
        self.machine = None
        # State of the last Register.
        self.hardware = None
        self.ipmi = bmc.KNOWN
        # Orders to metal-bmc: the command, and the record of the BMC that it contains.
        self.commands = []
        self.console_password = None
        self.phase = None
        self.calls = []
        self.wrong = []
        self.report = None
        self.aborted = None
        # Maximum duration of a stream, and interval of its messages.
        self.stream = 3600.0
        self.beat = 0.5
        self.refuse = {}
        # Certificate and key that pixie provides.
        self.client = "client"
        self.hmac = "view-key"
        self.offered = 0
        # Receiver of the agent's log.
        self.logging = None
        # Time of the last event.
        self.last = 0.0


state = State()


def judged(name, request, context):
    with state.lock:
        state.calls.append({"call": name, "message": plain(request)})
        state.wrong += [f"{name}: {field} is not in the table" for field in unknown(request, name)]
        refusal = state.refuse.get(name)
        if refusal:
            refusal["times"] -= 1
            if refusal["times"] == 0:
                del state.refuse[name]
    if refusal and refusal.get("die"):
        os._exit(9)
    if refusal and refusal.get("hang"):
        time.sleep(3600)
    if refusal:
        context.abort(grpc.StatusCode[refusal["code"].upper()], refusal["message"])


def super_user_password(request, context):
    judged("SuperUserPassword", request, context)
    # The real metal-api also inverts this value.
    return Messages["SuperUserPasswordResponse"](feature_disabled=False)


def refused(context, why):
    context.abort(grpc.StatusCode.UNKNOWN, why)


def register(request, context):
    judged("Register", request, context)
    if not request.uuid:
        refused(context, "uuid is empty")
    if not request.HasField("hardware"):
        refused(context, "hardware is nil")
    if not request.HasField("bios"):
        refused(context, "bios is nil")
    if not request.partition_id:
        refused(context, "partition id is empty")
    with state.lock:
        # The machine is stored before the switches are checked.
        state.machine = request.uuid
        state.hardware = plain(request.hardware)
        before, state.ipmi = state.ipmi, bmc.stored(request.ipmi, request.ipmi.fru, 1)
        state.wrong += [f"Register: it erases {name} of the BMC" for name in bmc.erased(before or state.ipmi, state.ipmi)]
    leaves = {leaf.hostname for nic in request.hardware.nics for leaf in nic.neighbors if leaf.identifier and leaf.mac}
    if len(leaves) != 2:
        refused(context, f"machine {request.uuid} is not connected to exactly two switches, found connections to {len(leaves)} switches")
    if not any(nic.name == "lo" for nic in request.hardware.nics) or not request.hardware.memory or not request.hardware.cpus:
        with state.lock:
            state.wrong.append("Register: no lo, no memory or no cpus")
    return Messages["RegisterResponse"](uuid=request.uuid, size="v1-small-x86", partition_id=request.partition_id)


def wait(request, context):
    judged("Wait", request, context)
    end = time.monotonic() + state.stream
    while True:
        with state.lock:
            state.lock.wait_for(lambda: state.allocation is not None, state.beat)
            if state.allocation is not None:
                return
        if time.monotonic() >= end:
            # Behaves as if a proxy had cut the stream.
            context.abort(grpc.StatusCode.UNAVAILABLE, "the stream was cut")
        yield Messages["Empty"]()


def report(request, context):
    judged("Report", request, context)
    with state.lock:
        why = stored_report(request)
    if why:
        refused(context, why)
    return Messages["Empty"]()


def stored_report(request):
    """Returns the reason of a refusal. `success` and `message` are not checked."""
    allocation = state.allocation
    if allocation is None:
        return "the machine is not allocated"
    if not request.HasField("boot_info"):
        return "bootinfo is nil"
    is_installed = allocation["boot_info"] is not None and not allocation["reinstall"]
    # The same report may arrive twice if its response was lost.
    if is_installed and request.console_password != state.console_password:
        state.wrong.append("Report: it replaces the console password of an installed machine")
    state.report = plain(request)
    state.console_password = request.console_password
    boot_info = {field: getattr(request.boot_info, field) for field in ["primary_disk", "os_partition", "initrd", "cmdline", "kernel"]}
    allocation["boot_info"] = boot_info | {"image_id": allocation["image"]["id"], "bootloaderid": request.boot_info.bootloader_id}
    allocation["reinstall"] = False
    if allocation["role"] not in ("machine", "firewall"):
        return f"unknown allocation role:{allocation['role']!r} found"
    # The report is stored before the switch ports are configured.
    if allocation["role"] == "machine" and not any(network["private"] for network in allocation["networks"]):
        return "the machine could not be enslaved into the vrf because no vrf was found"
    state.commands.append(["DISK", state.ipmi])
    return None


def abort_reinstall(request, context):
    judged("AbortReinstall", request, context)
    answer = Messages["AbortReinstallResponse"]()
    with state.lock:
        state.aborted = request.primary_disk_wiped
        state.commands.append(["DISK", state.ipmi])
        if not request.primary_disk_wiped and state.allocation is not None:
            state.allocation["reinstall"] = False
            boot_info = state.allocation["boot_info"]
            if boot_info is not None:
                state.allocation["image"]["id"] = boot_info["image_id"]
                for field in ["image_id", "primary_disk", "os_partition", "initrd", "cmdline", "kernel"]:
                    setattr(answer.boot_info, field, boot_info[field])
                answer.boot_info.bootloader_id = boot_info["bootloaderid"]
    return answer


def send(request, context):
    judged("Send", request, context)
    for entry in request.events:
        name = entry.value.event
        with state.lock:
            state.machine = entry.key
            if state.phase not in BEFORE.get(name, {state.phase}):
                state.wrong.append(f"{name} after {state.phase}")
            if abs(entry.value.time.seconds - time.time()) > 60:
                state.wrong.append(f"{name} at {entry.value.time.seconds}")
            if name == "Alive" and time.time() - state.last < OFTEN:
                state.wrong.append(f"Alive {time.time() - state.last:.0f} s after another event")
            state.last = time.time()
            if name != "Alive":
                state.phase = name
    return Messages["SendResponse"](events=len(request.events))


METHODS = {
    "BootService": {
        "SuperUserPassword": (super_user_password, "Empty", False),
        "Register": (register, "RegisterRequest", False),
        "Wait": (wait, "WaitRequest", True),
        "Report": (report, "ReportRequest", False),
        "AbortReinstall": (abort_reinstall, "AbortReinstallRequest", False),
    },
    "EventService": {"Send": (send, "SendRequest", False)},
}


def handlers(service, methods):
    made = {}
    for name, (what, request, stream) in methods.items():
        make = grpc.unary_stream_rpc_method_handler if stream else grpc.unary_unary_rpc_method_handler
        made[name] = make(what, request_deserializer=Messages[request].FromString, response_serializer=lambda message: message.SerializeToString())
    return grpc.method_handlers_generic_handler(f"api.v1.{service}", made)


class Listening:
    """Runs gRPC with the certificates of a folder; restarted to present another one."""

    def __init__(self, folder, port):
        self.folder, self.port, self.server = folder, port, None

    def start(self, certificate="server"):
        if self.server:
            self.server.stop(None).wait()
        # Like metal-api: an idle connection is pinged every 5 s, and a client that pings more often is disconnected.
        options = [("grpc.keepalive_time_ms", 5000), ("grpc.keepalive_timeout_ms", 1000), ("grpc.so_reuseport", 0)]
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=16), options=options)
        self.server.add_generic_rpc_handlers([handlers(service, methods) for service, methods in METHODS.items()])
        read = lambda name: (self.folder / name).read_bytes()
        pair = [(read(f"{certificate}.key"), read(f"{certificate}.pem"))]
        credentials = grpc.ssl_server_credentials(pair, root_certificates=read("ca.pem"), require_client_auth=True)
        if not self.server.add_secure_port(f"127.0.0.1:{self.port}", credentials):
            sys.exit("the port is in use")
        self.server.start()


def allocate(message):
    """Restores the database of a restarted control plane, if there is one."""
    if message["succeeded"]:
        raise ValueError("metal-api never sets succeeded")
    with state.lock:
        state.allocation = message
        state.lock.notify_all()


def reinstall(message):
    with state.lock:
        state.allocation["reinstall"] = True
        state.allocation["image"] |= message.get("image", {})


def free(_):
    with state.lock:
        state.allocation, state.phase, state.report, state.console_password = None, None, None, None


def refuse(message):
    with state.lock:
        state.refuse[message["call"]] = message


def set_to(message):
    with state.lock:
        for name, value in message.items():
            setattr(state, name, value)


def show(message):
    listening.start(message["certificate"])


STEER = {"allocate": allocate, "reinstall": reinstall, "free": free, "refuse": refuse, "set": set_to, "show": show}


class Answers(BaseHTTPRequestHandler):
    """Serves pixie, REST and the requests of the tests."""

    def log_message(self, *_):
        pass

    def answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/certs":
            return self.answer(200, self.config())
        if self.path == "/judge/log":
            with state.lock:
                hidden = ["lock", "refuse", "logging"]
                return self.answer(200, {name: value for name, value in vars(state).items() if name not in hidden})
        if self.path.startswith("/metal/v1/machine/"):
            uuid, *more = self.path.removeprefix("/metal/v1/machine/").split("/")
            if more in ([], ["ipmi"]):
                return self.machine(uuid, "GET ipmi" if more else "GET machine")
        return self.answer(404, {"message": "404 page not found"})

    def config(self):
        read = lambda name: (listening.folder / name).read_text()
        with state.lock:
            state.offered += 1
            client, logging = state.client, state.logging
        return {
            "debug": True,
            "address": f"{NAME}:{listening.port}",
            "metal_api_url": f"http://{self.headers['Host']}/metal",
            "pixie_api_url": f"http://{self.headers['Host']}",
            "ca_cert": read("ca.pem"),
            "cert": read(f"{client}.pem"),
            "key": read(f"{client}.key"),
            "hmac": "view-key",
            "partition": "mini-lab",
            "ntp_servers": None,
            "logging": logging,
        }

    def machine(self, uuid, call):
        date, salt = self.headers.get("X-Date", ""), self.headers.get("X-Data-Salt", "")
        with state.lock:
            key = state.hmac
        signed = hmac.new(key.encode(), f"{date}GET{salt}".encode(), hashlib.sha256).hexdigest()
        with state.lock:
            state.calls.append({"call": call, "message": {}})
        try:
            late = abs(time.time() - time.mktime(time.strptime(date, "%Y-%m-%dT%H:%M:%SZ")) + time.timezone)
        except ValueError:
            late = LIMIT + 1
        if self.headers.get("Authorization") != f"Metal-View {signed}" or len(salt) != 24 or late > LIMIT:
            return self.answer(401, {"statuscode": 401, "message": "wrong hmac"})
        with state.lock:
            refusal = state.refuse.pop(call, None)
            if refusal:
                return self.answer(refusal["status"], {"message": refusal["message"]})
            if state.machine is None and state.allocation is None and state.ipmi is None:
                return self.answer(404, {"statuscode": 404, "message": f"no machine with id {uuid!r} found"})
            machine = {"id": uuid, "name": None, "liveliness": "Alive", "allocation": state.allocation}
            if state.hardware is not None:
                # Zeros are omitted in a message, but not in a document.
                disks = [{"name": disk["name"], "size": int(disk.get("size", 0))} for disk in state.hardware.get("disks", [])]
                machine["hardware"] = {"memory": int(state.hardware.get("memory", 0)), "cpu_cores": 1, "disks": disks, "nics": []}
            if call == "GET ipmi":
                machine["ipmi"] = bmc.document(state.ipmi or bmc.stored(Messages["Ipmi"](), Messages["Fru"](), 1))
            return self.answer(200, machine)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        STEER[self.path.removeprefix("/judge/")](json.loads(body or b"{}"))
        self.answer(200, {})


if __name__ == "__main__":
    # Events are in UTC; so is the date of a signature.
    os.environ["TZ"] = "UTC"
    time.tzset()
    listening = Listening(Path(sys.argv[1]), int(sys.argv[3]))
    listening.start()
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Answers)
    print("ready", flush=True)
    server.serve_forever()
