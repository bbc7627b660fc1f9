"""How fast a move is, beside `dd | nc | dd` of as many bytes over the same link: on this host, where processors are what they are, and between
the very two machines and disks of a move, where they are emulated. Figures are printed, and nothing is judged: they are of this host.
"""

import os
import re
import subprocess
import time

from qemu import check
from rack import shell

MIB = 1 << 20
ROUNDS = 3
# Of the host's loopback interface, in this network namespace: what each end can do, and a link that both can fill.
LINKS = ["no limit", "1gbit", "200mbit"]
# Between the machines: more than an emulated processor encrypts, and less.
SLOW, SLOW_BYTES, FAST_BYTES = "8mbit", 16 * MIB, 96 * MIB


def ratio(moved, piped):
    """Of seconds for each byte."""
    return (moved[1] / moved[0]) / (piped[1] / piped[0])


class Host:
    """Two ends of `program` on the loopback interface, which has nothing else to carry here."""

    USED = 256 * MIB

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        os.makedirs(self.file("tree"))
        shell('head -c "$2" /dev/urandom >"$1"', self.file("tree/random"), str(self.USED))
        shell('mkfs.ext4 -q -d "$1" "$2" 2G', self.file("tree"), self.file("a.raw"))
        for end in ["a", "b"]:
            self.run("key", self.file(f"{end}.key"), self.file(f"{end}.pem"))

    def file(self, name):
        return os.path.join(self.folder, name)

    def run(self, *words):
        done = subprocess.run([self.program, "move", *words], capture_output=True, text=True, timeout=300)
        check(done.returncode == 0, f"move {' '.join(words)}: {done.stderr}")
        return done.stdout

    def ends(self, own, other):
        return ["--key", self.file(f"{own}.key"), "--cert", self.file(f"{own}.pem"), "--peer", self.file(f"{other}.pem")]

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
        """Who set it, by the sender's own figures of the last round."""
        return re.search(r"MB/s: (.*)", self.said)[1]


# The machine that receives: the clock begins with the first byte, and ends when all is on its disk.
PIPED_B = """for round in 1 2; do
	nc -l -p 770$round </dev/null | {
		dd of=/dev/null bs=1 count=1 2>/dev/null
		read -r began rest </proc/uptime
		dd of=/dev/nvme0n1 bs=1M seek=101 conv=fsync 2>/dev/null
		read -r ended rest </proc/uptime
		echo "piped $round: from $began to $ended"
	}
done
"""
# The filesystem of the system begins there. The first connection may be too early.
PIPED_A = """for round in 1 2; do
	count=$([ $round = 1 ] && echo {fast} || echo {slow})
	until dd if=/dev/sda bs=1M skip=101 count=$count 2>/dev/null | nc {b} 770$round; do sleep 1; done
	sleep 12
done
echo "piped: done"
"""


def piped(rack, a, b, script):
    """Bytes, and the seconds that the machines need for them without drophammer: over the link as it is, and over a slow one, which stays.
    `script` is for the system that B becomes."""
    b.on(script=script, before_agent=PIPED_B)
    b.says("ready after")
    a.on(before_agent=PIPED_A.format(b=b.address(), fast=FAST_BYTES // MIB, slow=SLOW_BYTES // MIB))
    seconds = []
    for number in [1, 2]:
        b.says(f"piped {number}: from ")
        b.says("\n")
        began, ended = re.findall(rf"piped {number}: from ([\d.]+) to ([\d.]+)", b.read("console"))[-1]
        seconds.append(float(ended) - float(began))
        rack.slow(b, SLOW)
    a.says("piped: done")
    return (FAST_BYTES, seconds[0]), (SLOW_BYTES, seconds[1])


def figures(a, device):
    """Used bytes, and seconds, of a device that is sent."""
    console = a.read("console")
    took = re.search(rf"{device}: [\d.]+ \S+ in ([\d.]+) s, .*", console)
    sent = re.search(rf"{device}: ([\d.]+) (kB|MB|GB) sent, ", console)
    check(took and sent, f"no figures of {device}")
    print(took[0])
    print(re.search(rf"{device}: .* sent, .*", console)[0])
    return float(sent[1]) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[sent[2]], float(took[1])


def printed(what, moved, piped):
    rate = lambda one: f"{one[0] / 1e6:.1f} MB in {one[1]:.1f} s, {one[0] / 1e6 / one[1]:.2f} MB/s"
    print(f"{what}: dd | nc | dd {rate(piped)}; the move {rate(moved)}; ratio {ratio(moved, piped):.2f}", flush=True)
