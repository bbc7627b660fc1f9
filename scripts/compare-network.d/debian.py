"""Programs of a Debian tree: netplan's generator and NetworkManager's keyfile parser, which run in a chroot."""

import json
import os
import re
import shutil
import subprocess
import tempfile

GENERATORS = ("usr/libexec/netplan/generate", "usr/lib/netplan/generate", "lib/netplan/generate")


class Debian:
    def __init__(self, tree):
        self.tree, self.name = tree, os.path.basename(tree)
        self.generator = next(path for path in GENERATORS if os.path.isfile(os.path.join(tree, path)))

    def run(self, *argv, **more):
        return subprocess.run(["chroot", self.tree, *argv], capture_output=True, text=True, timeout=60, check=False, **more)

    def generate(self, text, renderer=None):
        """Returns the files that netplan generates for a document, by path, and its error message, which is empty if there is none."""
        root = tempfile.mkdtemp(dir=os.path.join(self.tree, "tmp"))
        try:
            self.write(root, "50-document.yaml", text)
            if renderer:
                self.write(root, "60-renderer.yaml", json.dumps({"network": {"renderer": renderer}}))
            result = self.run("/" + self.generator, "--root-dir", "/tmp/" + os.path.basename(root))
            if result.returncode:
                return {}, result.stderr.strip() or "exit status %d" % result.returncode
            return read_files(root, "run"), ""
        finally:
            shutil.rmtree(root)

    @staticmethod
    def write(root, name, text):
        folder = os.path.join(root, "etc/netplan")
        os.makedirs(folder, exist_ok=True)
        with open(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="utf-8") as file:
            file.write(text)

    def read_keyfile(self, text):
        """Returns a keyfile as libnm reads and writes it, or one with libnm's error message."""
        result = self.run("nmcli", "--offline", "connection", "modify", "connection.autoconnect", "yes", input=text)
        if result.returncode:
            return "[connection]\nid=%s\nrefused=%s\n" % (re.search("^id=(.*)$", text, re.M)[1], result.stderr.strip())
        return result.stdout


def read_files(root, folder):
    found = {}
    for path, _, names in os.walk(os.path.join(root, folder)):
        for name in names:
            file = os.path.join(path, name)
            # Unit links of netplan point outside the root.
            if not os.path.islink(file):
                with open(file, encoding="utf-8") as text:
                    found["/" + os.path.relpath(file, root)] = text.read()
    return found
