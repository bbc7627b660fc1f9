"""What scripts share that boot machines of QEMU: how one is emulated, and its consoles, which are read while they are written."""

import os
import socket
import time

OVMF = "/usr/share/OVMF/OVMF_%s_4M.fd"

# What an emulated kernel need not do (qemu-tests/machine.rs).
SPARED = "no_timer_check cryptomgr.notests=1 rodata=off mitigations=off rcupdate.rcu_expedited=1"

# How the tiny OS says that it is up.
UP = "drophammer-facts: tiny"


class Failed(Exception):
    pass


def check(holds, what):
    if not holds:
        raise Failed(what)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def accelerator():
    # That /dev/kvm exists proves nothing: the processor must have it.
    with open("/proc/cpuinfo") as file:
        flags = set(file.read().split())
    if flags & {"vmx", "svm"} and os.access("/dev/kvm", os.W_OK):
        return ["-accel", "kvm", "-cpu", "max"]
    return ["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"]


class Consoles:
    """Of a machine that has a `folder`, and whose `qemu` is the process of its boot: what it says on its serial ports."""

    # Seconds.
    patience = 300
    boots, heard, qemu = 0, 0, None

    def log(self, kind):
        return os.path.join(self.folder, f"{self.boots}.{kind}.log")

    def read(self, kind):
        try:
            with open(self.log(kind), "rb") as file:
                return file.read().decode(errors="replace").replace("\r", "")
        except FileNotFoundError:
            return ""

    def hears(self, text):
        """Is that on this boot's console, after what was heard before?"""
        at = self.read("console").find(text, self.heard)
        if at >= 0:
            self.heard = at + len(text)
        return at >= 0

    def is_gone(self):
        return self.qemu is None or self.qemu.poll() is not None

    def says(self, text):
        """Waits until it is. When it was."""
        end = time.monotonic() + self.patience
        while not self.hears(text):
            # What it has said last may have come between.
            if time.monotonic() > end or self.is_gone() and not self.hears(text):
                last = "\n".join(self.read("console").splitlines()[-30:])
                raise Failed(f"no {text!r} in {self.log('console')}: {last}")
            time.sleep(0.2)
        return time.monotonic()

    def is_up(self):
        """Waits until the tiny OS is up; what it has told."""
        self.says(UP)
        return self.read("facts")

    def off(self):
        """As a cable that is pulled."""
        if self.qemu:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu = None
