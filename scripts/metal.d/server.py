"""Control plane of metal-stack's API v2, and its pixie, for the tests of the agent (src/agent/src/metal_conformance_tests.rs).

The messages are those of PyPI's metal-stack-api, the server is that of connectrpc, and protovalidate validates every message by the published
rules. Three rules of the control plane are checked too: a machine has exactly two leaf switches, its events arrive in order, and only the last
token that pixie has issued is accepted.

    server.py PORT      prints "ready" when it listens

The tests control it over HTTP, at /judge/: see STEER.
"""

import json
import sys
import threading
import time
from io import BytesIO
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import bmc
import protovalidate
from connectrpc.code import Code
from connectrpc.errors import ConnectError
from google.protobuf.json_format import MessageToDict, ParseDict
from metalstack.admin.v2 import machine_pb2
from metalstack.admin.v2.machine_connect import MachineServiceSync, MachineServiceWSGIApplication
from metalstack.api.v2.machine_pb2 import MachineAllocation, MachineProvisioningEventType
from metalstack.infra.v2 import boot_pb2
from metalstack.infra.v2.boot_connect import BootServiceSync, BootServiceWSGIApplication

# Events, and those that may precede each. Alive may arrive at any time, and is not stored; so may Planned Reboot, which is stored.
BEFORE = {
    "PREPARING": {None, "PXE_BOOTING", "PLANNED_REBOOT", "MACHINE_RECLAIM", "CRASHED"},
    "REGISTERING": {"PREPARING"},
    "WAITING": {"REGISTERING"},
    "INSTALLING": {"REGISTERING", "WAITING"},
    "BOOTING_NEW_KERNEL": {"INSTALLING"},
}


# Fields that metal-apiserver (pkg/repository/machine.go) stores.
OVERWRITES = {
    "Register": "size, hardware, bios, bmc and fru (all of both, see bmc.py), partition, version; then rack and room",
    "InstallationSucceeded": "allocation: console password; then the ports of the switches, and a command to boot from disk with the stored bmc",
    "SendEvent": "the events of the machine",
}
# A sign of life is sent at most once a minute. A message that was delayed may seem to arrive too early.
OFTEN = 50


class State:
    """State of the control plane for its only machine."""

    def __init__(self):
        self.lock = threading.Condition()
        self.allocation = None
        self.phase = None
        self.tokens = 0
        self.calls = []
        self.wrong = []
        self.installed = None
        # Record of the BMC; whether the token of a machine may read it (it must not, unless an operator adds the permission); and the
        # fields that a registration has erased.
        self.bmc = bmc.KNOWN
        self.reads_bmc = False
        self.erased = []
        self.commands = []
        # Maximum duration of a stream; the real server's listener ends it after a minute.
        self.stream = 10.0
        self.refuse = {}
        self.events = True
        # Additional settings of pixie.
        self.logging = None
        self.ntp_servers = []
        # Time of the last event.
        self.last = 0.0


state = State()


def place(violation):
    return ".".join(element.field_name for element in violation.proto.field.elements)


def judged(name, request, ctx):
    """Records the call, and refuses requests that violate the published rules."""
    with state.lock:
        state.calls.append({"call": name, "message": MessageToDict(request)})
        if ctx.request_headers().get("authorization") != f"Bearer token-{state.tokens}":
            raise ConnectError(Code.UNAUTHENTICATED, "this token has expired")
        refusal = state.refuse.get(name)
        if refusal:
            refusal["times"] -= 1
            if refusal["times"] == 0:
                del state.refuse[name]
    if refusal and refusal.get("hang"):
        time.sleep(3600)
    if refusal:
        raise ConnectError(Code(refusal["code"]), refusal["message"])
    try:
        protovalidate.validate(request)
    except protovalidate.ValidationError as error:
        why = "; ".join(f"{place(violation)} {violation.proto.message}" for violation in error.violations)
        with state.lock:
            state.wrong.append(f"{name}: {why}")
        raise ConnectError(Code.INVALID_ARGUMENT, why) from error


class Boot(BootServiceSync):
    def super_user_password(self, request, ctx):
        judged("SuperUserPassword", request, ctx)
        return boot_pb2.BootServiceSuperUserPasswordResponse(feature_disabled=True)

    def register(self, request, ctx):
        judged("Register", request, ctx)
        with state.lock:
            # The record is stored before the switches are checked.
            before, state.bmc = state.bmc, bmc.stored(request.bmc, request.fru, 2)
            erased = bmc.erased(before or state.bmc, state.bmc)
            state.erased += erased
            if state.reads_bmc:
                state.wrong += [f"Register: it erases {name} of the BMC" for name in erased]
        leaves = {leaf.hostname for nic in request.hardware.nics for leaf in nic.neighbors}
        if len(leaves) != 2:
            message = f"machine {request.uuid} is not connected to exactly two switches, found connections to {len(leaves)} switches"
            raise ConnectError(Code.FAILED_PRECONDITION, message)
        return boot_pb2.BootServiceRegisterResponse(uuid=request.uuid, size="v1-small-x86", partition=request.partition)

    def wait(self, request, ctx):
        judged("Wait", request, ctx)
        with state.lock:
            # The stream sends a message only after a change.
            state.lock.wait_for(lambda: state.allocation is not None, state.stream)
            allocation = state.allocation
        if allocation is not None:
            yield boot_pb2.BootServiceWaitResponse(allocation=allocation)

    def installation_succeeded(self, request, ctx):
        judged("InstallationSucceeded", request, ctx)
        with state.lock:
            if state.allocation is None:
                raise ConnectError(Code.FAILED_PRECONDITION, "the machine is not allocated")
            # metal-apiserver (pkg/repository/machine.go) overwrites the stored report. The same report may arrive twice if its
            # response was lost.
            if state.installed not in (None, request.console_password):
                state.wrong.append("InstallationSucceeded: it replaces the console password of an installed machine")
            state.installed = request.console_password
            state.commands.append(["MACHINE_CREATED", state.bmc])
        return boot_pb2.BootServiceInstallationSucceededResponse()

    def send_event(self, request, ctx):
        if not state.events:
            raise ConnectError(Code.UNIMPLEMENTED, "Not implemented")
        judged("SendEvent", request, ctx)
        name = MachineProvisioningEventType.Name(request.event.event).removeprefix("MACHINE_PROVISIONING_EVENT_TYPE_")
        with state.lock:
            if state.phase not in BEFORE.get(name, {state.phase}):
                state.wrong.append(f"{name} after {state.phase}")
            if name == "ALIVE" and time.time() - state.last < OFTEN:
                state.wrong.append(f"ALIVE {time.time() - state.last:.0f} s after another event")
            state.last = time.time()
            if name != "ALIVE":
                state.phase = name
        return boot_pb2.BootServiceSendEventResponse()


class Machines(MachineServiceSync):
    """The service of administrators, of which only the record of the BMC is served."""

    def get_b_m_c(self, request, ctx):
        judged("GetBMC", request, ctx)
        with state.lock:
            if not state.reads_bmc:
                why = 'access to:"/metalstack.admin.v2.MachineService/GetBMC" is not allowed because it is not part of the token permissions'
                raise ConnectError(Code.PERMISSION_DENIED, why)
            if state.bmc is None:
                raise ConnectError(Code.NOT_FOUND, f"no machine with id {request.uuid!r} found")
            details = {names[2]: state.bmc[names[0]] for names in bmc.FIELDS}
            report = {"uuid": request.uuid, "bmc": details, "fru": state.bmc["fru"]}
        return ParseDict({"bmc_details": {"uuid": request.uuid, "bmc_report": report}}, machine_pb2.MachineServiceGetBMCResponse())


def allocate(message):
    allocation = ParseDict(message, MachineAllocation())
    # An allocation that violates the published rules would prove nothing.
    protovalidate.validate(allocation)
    with state.lock:
        state.allocation = allocation
        state.lock.notify_all()


def free(_):
    with state.lock:
        state.allocation, state.phase, state.installed = None, None, None


def refuse(message):
    with state.lock:
        state.refuse[message["call"]] = message


def set_to(message):
    with state.lock:
        for name, value in message.items():
            setattr(state, name, value)


def expire(_):
    with state.lock:
        state.tokens += 1


STEER = {"allocate": allocate, "free": free, "refuse": refuse, "set": set_to, "expire": expire}


def answer(start, status, document):
    start(status, [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]


connect, machines = BootServiceWSGIApplication(Boot()), MachineServiceWSGIApplication(Machines())


def application(environ, start):
    path = environ["PATH_INFO"]
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = BytesIO(body)
    if path.startswith("/config/"):
        with state.lock:
            # Each request gets a new token; the last one is valid.
            state.tokens += 1
            client = {"metal_apiserver_url": f"http://{environ['HTTP_HOST']}", "metal_hammer_token": f"token-{state.tokens}"}
            more = {"ntp_servers": state.ntp_servers, "logging": state.logging}
        return answer(start, "200 OK", {"client": client, "partition": "mini-lab"} | more)
    if path == "/judge/log":
        with state.lock:
            names = ["calls", "wrong", "installed", "phase", "last", "bmc", "erased", "commands"]
            told = {name: getattr(state, name) for name in names}
            return answer(start, "200 OK", told)
    if path.startswith("/judge/"):
        STEER[path.removeprefix("/judge/")](json.loads(body or b"{}"))
        return answer(start, "200 OK", {})
    return (machines if path.startswith("/metalstack.admin.") else connect)(environ, start)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


if __name__ == "__main__":
    with make_server("127.0.0.1", int(sys.argv[1]), application, Server, Quiet) as server:
        print("ready", flush=True)
        server.serve_forever()
