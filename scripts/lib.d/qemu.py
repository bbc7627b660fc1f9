"""Helpers of scripts that boot QEMU machines: the emulation options, and consoles that are read while they are written."""

import os
import socket
import time

OVMF = "/usr/share/OVMF/OVMF_%s_4M.fd"

# Work that an emulated kernel can omit (qemu-tests/qemu_machine.rs).
SPARED = "no_timer_check cryptomgr.notests=1 rodata=off mitigations=off rcupdate.rcu_expedited=1"

# Message of the tiny OS when it is up.
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
    # The existence of /dev/kvm proves nothing: the CPU must support it.
    with open("/proc/cpuinfo") as file:
        flags = set(file.read().split())
    if flags & {"vmx", "svm"} and os.access("/dev/kvm", os.W_OK):
        return ["-accel", "kvm", "-cpu", "max"]
    return ["-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand"]


class Consoles:
    """Serial consoles of a machine that has a `folder`, and whose `qemu` is the process of its boot."""

    # Time for which a string on the console is awaited, in seconds.
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
        """Returns whether the text is on this boot's console, after the previously awaited text."""
        at = self.read("console").find(text, self.heard)
        if at >= 0:
            self.heard = at + len(text)
        return at >= 0

    def is_gone(self):
        return self.qemu is None or self.qemu.poll() is not None

    def says(self, text):
        """Waits until the text is on this boot's console, and returns the time."""
        end = time.monotonic() + self.patience
        while not self.hears(text):
            # The last output of the machine may have arrived in between.
            if time.monotonic() > end or self.is_gone() and not self.hears(text):
                last = "\n".join(self.read("console").splitlines()[-30:])
                raise Failed(f"no {text!r} in {self.log('console')}: {last}")
            time.sleep(0.2)
        return time.monotonic()

    def is_up(self):
        """Waits until the tiny OS is up, and returns its facts."""
        self.says(UP)
        return self.read("facts")

    def off(self):
        """Cuts the power, as if a cable was unplugged."""
        if self.qemu:
            self.qemu.kill()
            self.qemu.wait()
            self.qemu = None
