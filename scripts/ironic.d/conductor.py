"""Real Ironic in one process, and the requests of an operator."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib.d"))
from qemu import Failed, free_port  # noqa: E402

# A machine takes minutes, on a busy host longer.
PATIENCE = 1800 * int(os.environ.get("DROPHAMMER_PATIENCE", "1"))

# QEMU forwards connections of its machine to this address to 127.0.0.1 of its host.
TOLD = "192.0.2.1"


class Ironic:
    def __init__(self, venv, directory, ramdisk):
        self.programs, self.directory = os.path.join(venv, "bin"), directory
        shutil.rmtree(directory, ignore_errors=True)
        for folder in ["state", "http", "tftp", "certificates", "logs", "images", "locks"]:
            os.makedirs(os.path.join(directory, folder))
        self.port = free_port()
        here = os.path.dirname(__file__)
        with open(os.path.join(here, "ironic.conf")) as form:
            text = form.read()
        words = {"DIRECTORY": directory, "RAMDISK": ramdisk, "LISTENS": "0.0.0.0", "TOLD": TOLD, "PORT": str(self.port)}
        for word, value in words.items():
            text = text.replace(word, value)
        with open(os.path.join(directory, "ironic.conf"), "w") as file:
            file.write(text)
        subprocess.run(self.program("ironic-dbsync") + ["create_schema"], check=True, **self.quiet("dbsync.log"))
        self.process = subprocess.Popen(self.program("ironic"), start_new_session=True, **self.quiet("ironic.log"))
        end = time.monotonic() + PATIENCE
        while not self.is_up():
            if time.monotonic() > end:
                raise Failed(f"no conductor; see {directory}/ironic.log")
            time.sleep(0.3)

    def program(self, name):
        return [os.path.join(self.programs, name), "--config-file", os.path.join(self.directory, "ironic.conf")]

    def quiet(self, log):
        file = open(os.path.join(self.directory, log), "ab")
        return {"stdin": subprocess.DEVNULL, "stdout": file, "stderr": file, "cwd": self.directory}

    def is_up(self):
        try:
            return any(one["alive"] for one in self.ask("GET", "conductors")["conductors"])
        except (OSError, Failed):
            return False

    def end(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def ask(self, method, path, body=None):
        headers = {"X-OpenStack-Ironic-API-Version": "1.110", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise Failed(f"{method} {path}: {error.code} {error.read().decode()}") from error
        return json.loads(text) if text else None

    def node(self, name):
        return self.ask("GET", f"nodes/{name}")

    def set(self, name, fields):
        """Sets values by their paths in the node."""
        self.ask("PATCH", f"nodes/{name}", [{"op": "add", "path": path, "value": value} for path, value in fields.items()])

    def wish(self, name, **wish):
        # Retried while the node is locked.
        end = time.monotonic() + PATIENCE
        while self.node(name)["reservation"] and time.monotonic() < end:
            time.sleep(0.3)
        self.ask("PUT", f"nodes/{name}/states/provision", wish)

    def until(self, name, wanted):
        """Waits for this state and returns the history of states with their times."""
        began, history, last = time.monotonic(), [], None
        while True:
            node = self.node(name)
            state, passed = node["provision_state"] or "available", time.monotonic() - began
            if state != last:
                history.append(f"{state} {passed:.1f} s")
                last = state
            if state == wanted:
                return " → ".join(history)
            if passed > PATIENCE or state.endswith("failed") or state == "error":
                raise Failed(f"{name} is {state}: {history}, {node['last_error']}")
            time.sleep(0.3)

    def power(self, name, state):
        self.ask("PUT", f"nodes/{name}/states/power", {"target": state})
        end = time.monotonic() + PATIENCE
        while self.node(name)["power_state"] != state:
            if time.monotonic() > end:
                raise Failed(f"{name} is not {state}")
            time.sleep(0.3)

    def choose(self, name, steps):
        """Creates a template that the node's trait selects."""
        chosen = "CUSTOM_" + name.upper().replace("-", "_")
        self.ask("POST", "deploy_templates", {"name": chosen, "steps": steps})
        self.ask("PUT", f"nodes/{name}/traits", {"traits": [chosen]})
        drive = {"meta_data": {"hostname": name}}
        self.set(name, {"/instance_info/traits": [chosen], "/instance_info/configdrive": drive})
