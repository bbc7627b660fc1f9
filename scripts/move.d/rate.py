"""Speed of a move compared with `dd | nc | dd` of the same size over the same link, on this host: in an emulated machine, encryption is the
bottleneck. Figures are printed, but not judged, because they depend on the host.
"""

import os
import re
import subprocess
import time

from qemu import check
from rack import shell

MIB = 1 << 20
ROUNDS = 3
# Rates of the host's loopback interface in this network namespace: without a limit, and one that both programs can saturate.
LINKS = ["no limit", "1gbit", "200mbit"]


class Host:
    """Two ends of `program` on the otherwise idle loopback interface."""

    USED = 256 * MIB

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        os.makedirs(self.file("tree"))
        shell('head -c "$2" /dev/urandom >"$1"', self.file("tree/random"), str(self.USED))
        shell('mkfs.ext4 -q -d "$1" "$2" 2G', self.file("tree"), self.file("a.raw"))
        for end in ["a", "b"]:
            self.run("key", self.file(f"{end}.key"), self.file(f"{end}.pem"), "--unsigned")

    def file(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        done = subprocess.run([self.program, "move", *words], capture_output=True, text=True, timeout=300)
        check(done.returncode == 0, f"move {' '.join(words)}: {done.stderr}")
        return done.stdout

    def ends(self, own, other):
        names = ["--key", self.file(f"{own}.key"), "--cert", self.file(f"{own}.pem"), "--peer", self.file(f"{other}.pem")]
        return [*names, "--unsigned", "--keep-key"]

    def moved(self):
        with open(self.file("b.raw"), "wb") as file:
            file.truncate(2 << 30)
        receiver = subprocess.Popen([self.program, "move", "receive", "127.0.0.1:7700", self.file("b.raw"), *self.ends("b", "a"), "--overwrite"],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        began = time.monotonic()
        self.said = self.run("send", "127.0.0.1:7700", self.file("a.raw"), *self.ends("a", "b"))
        check(receiver.wait(60) == 0, receiver.stderr.read())
        return time.monotonic() - began

    def piped(self):
        command = 'nc -l 127.0.0.1 7701 </dev/null | dd of="$1" bs=1M conv=fsync status=none'
        receiver = subprocess.Popen(["bash", "-c", command, "bash", self.file("b.raw")], stdin=subprocess.DEVNULL)
        time.sleep(0.5)
        began = time.monotonic()
        shell('dd if="$1" bs=1M status=none | nc -N 127.0.0.1 7701', self.file("tree/random"))
        check(receiver.wait(60) == 0, "nc has failed")
        return time.monotonic() - began

    def table(self):
        print(f"on this host, {self.USED >> 20} MiB of random bytes in a file, best of {ROUNDS}:")
        print(f"{'link':>10}  dd | nc | dd  drophammer move  ratio  how busy each part of the move was")
        for link in LINKS:
            shell("tc qdisc delete dev lo root || true" if link == "no limit" else "tc qdisc replace dev lo root tbf rate $1 burst 1m latency 50ms", link)
            piped, moved = (min(one() for _ in range(ROUNDS)) for one in [self.piped, self.moved])
            print(f"{link:>10}  {piped:10.2f} s  {moved:13.2f} s  {moved / piped:5.2f}  {self.pace()}", flush=True)
        shell("tc qdisc delete dev lo root || true")

    def pace(self):
        """Returns the bottleneck, according to the sender's figures of the last round."""
        return re.search(r"MB/s: (.*)", self.said)[1]
