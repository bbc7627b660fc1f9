"""Generates API clients from `/openapi.json`, and tests `drophammer serve` with them: main.py PROGRAM FOLDER MODULES. MODULES is a folder
node_modules with openapi-typescript, openapi-fetch and typescript. Prints a line for each check, and a line that scripts/test counts."""

import importlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "lib.d"))
from client_site import INSTALLED, Site, machine_id  # noqa: E402

GIB = 1 << 30
ALLOCATION = "0b5b3a3c-8ed1-4c9a-9a0e-000000000001"
# Machines that have registered, but have no machine file. Each client creates the file of one of them.
PYTHON_MACHINE, TYPESCRIPT_MACHINE = 16, 17


class Results:
    """Numbers of passed and failed checks."""

    def __init__(self):
        self.passed, self.failed = 0, 0

    def check(self, name, is_good, found=""):
        self.passed, self.failed = self.passed + bool(is_good), self.failed + (not is_good)
        print(f"{name} ... {'ok' if is_good else f'FAILED: {found}'}", flush=True)


def run(results, name, command, **options):
    """Runs a command, which must succeed. Returns its output."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    results.check(name, done.returncode == 0, (done.stdout + done.stderr)[-4000:])
    return done.stdout


def test_python_client(results, site, folder):
    document = folder / "openapi.json"
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", document, "--meta", "none",
               "--output-path", folder / "drophammer_client", "--fail-on-warning"]
    run(results, "openapi-python-client generates a client", command)
    sys.path.insert(0, str(folder))
    importlib.import_module("python_client").test(results, site, json.loads(document.read_text()), PYTHON_MACHINE)


def test_typescript_client(results, site, folder, modules):
    (folder / "node_modules").symlink_to(modules)
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    shutil.copy(HERE / "typescript_client.ts", folder)
    shutil.copy(HERE / "tsconfig.json", folder)
    generate = ["node", "node_modules/openapi-typescript/bin/cli.js", "openapi.json", "--output", "api.d.ts"]
    run(results, "openapi-typescript generates types", generate, cwd=folder)
    run(results, "tsc checks and compiles the program", ["node", "node_modules/typescript/bin/tsc", "--project", "."], cwd=folder)
    environment = {**os.environ, "URL": f"http://127.0.0.1:{site.port}", "TOKEN": site.token, "INSTALLED": machine_id(INSTALLED),
                   "REGISTERED": machine_id(TYPESCRIPT_MACHINE)}
    output = run(results, "node runs the program", ["node", "typescript_client.js"], cwd=folder, env=environment)
    for line in output.splitlines():
        name, separator, verdict = line.partition(" ... ")
        if separator:
            results.check(name, verdict == "ok", verdict)


def main():
    program, folder, modules = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    site, results = Site(program, folder / "site", port), Results()
    try:
        site.start()
        site.install(INSTALLED, 21 * GIB, ALLOCATION)
        for number in [PYTHON_MACHINE, TYPESCRIPT_MACHINE]:
            site.boot(number, 21 * GIB)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=30) as answer:
            (folder / "openapi.json").write_bytes(answer.read())
        test_python_client(results, site, folder)
        test_typescript_client(results, site, folder, modules)
    finally:
        site.stop()
    print(f"test result: {'FAILED' if results.failed else 'ok'}. {results.passed} passed; {results.failed} failed; 0 ignored")
    sys.exit(results.failed > 0)


if __name__ == "__main__":
    main()
