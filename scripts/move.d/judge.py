"""Moves disks between `drophammer move` and Ganeti's own `import-export`, in both directions, with every compression and every fault.

Usage: judge.py DROPHAMMER IMPORT-EXPORT FOLDER. Ganeti's modules are found by PYTHONPATH. Prints a table, and fails if a cell is wrong:
without a fault, the disks must be identical; with a fault, drophammer's end of the transfer must fail.
"""

import concurrent.futures
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import OpenSSL
from ganeti import errors, utils
from ganeti.masterd import instance

from faulty_link import FaultyLink, cut_connection

PROGRAM, IMPORT_EXPORT, FOLDER = sys.argv[1:4]
# The secret is drophammer's, and Ganeti uses it.
subprocess.run([PROGRAM, "move", "secret", os.path.join(FOLDER, "secret")], check=True)
with open(os.path.join(FOLDER, "secret"), encoding="ascii") as secret:
    SECRET = secret.read().strip()
MAGIC = "a94a8fe5ccb19ba61c4c0873d391e987982fbbd3"
OTHER_MAGIC = "de9f2c7fd25e1b3afad3e85a0bd17d9b100db4b3"
COMPRESSIONS = ["none", "gzip", "gzip-fast", "lzop"]
# Factor by which this host is slower than usual.
PATIENCE = int(os.environ.get("DROPHAMMER_PATIENCE", "1"))
# Time that an end waits for a peer that does not connect.
WAIT = 5 * PATIENCE
DEADLINE = 60 * PATIENCE
MIB = 1 << 20


def certificates():
    """Creates key pairs: Ganeti's, drophammer's, an expired one, and an unrelated one."""
    def put(name, text):
        with open(os.path.join(FOLDER, name), "w", encoding="ascii") as file:
            file.write(text.decode("ascii") if isinstance(text, bytes) else text)

    for name, age, bits in (("ganeti", 0, 2048), ("stranger", 0, 2048), ("expired", 2 * 86400, 2048), ("short", 0, 1024)):
        key = OpenSSL.crypto.PKey()
        key.generate_key(OpenSSL.crypto.TYPE_RSA, bits)
        cert = OpenSSL.crypto.X509()
        cert.get_subject().CN = "ganeti.example.com"
        cert.set_serial_number(1)
        cert.gmtime_adj_notBefore(-age)
        cert.gmtime_adj_notAfter(86400 - age)
        cert.set_issuer(cert.get_subject())
        cert.set_pubkey(key)
        cert.sign(key, "sha256")
        put(name + ".key", OpenSSL.crypto.dump_privatekey(OpenSSL.crypto.FILETYPE_PEM, key))
        put(name + ".pem", utils.SignX509Certificate(cert, SECRET, "salt0123"))
    ours = [PROGRAM, "move", "key", path("ours.key"), path("ours.pem"), "--secret", path("secret")]
    subprocess.run(ours, check=True)
    # Ganeti accepts certificates that drophammer has signed.
    with open(path("ours.pem"), encoding="ascii") as file:
        utils.LoadSignedX509Certificate(file.read(), SECRET)


def path(name):
    return os.path.join(FOLDER, name)


def disk(file, size):
    """Returns noise, zeros, and compressible data."""
    noise = random.Random(size)
    with open(file, "wb") as out:
        while size > 0:
            part = [noise.randbytes(300000), bytes(400000), b"drophammer " * 40000][noise.randrange(3)][:size]
            out.write(part)
            size -= len(part)


def digest(file, size):
    with open(file, "rb") as stream:
        return hashlib.sha256(stream.read(size)).hexdigest()


def descendants(process):
    """Returns a process and its descendants: Ganeti's pipeline runs in a separate session."""
    found = [process]
    try:
        with open("/proc/%d/task/%d/children" % (process, process), encoding="ascii") as children:
            for child in children.read().split():
                found += descendants(int(child))
    except OSError:
        pass
    return found


class End:
    """Process of one end of a move."""

    def __init__(self, argv, work, name):
        self.log = os.path.join(work, name + ".log")
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)

    def kill(self):
        for process in descendants(self.process.pid):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def wait(self):
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            return "hangs"

    def words(self):
        with open(self.log, encoding="utf-8", errors="replace") as log:
            return log.read()


def receiver(who, work, target, cert, peer, compression, magic):
    """Starts a receiver, and returns it and its port."""
    if who == "ours":
        argv = [PROGRAM, "move", "receive", "127.0.0.1:0", target, "--overwrite", "--wait", str(WAIT), "--keep-key"]
        argv += ours(cert, peer, compression, magic)
        end = End(argv, work, "receiver")
        return end, waited(end, lambda: number(end.words().partition("listening at 127.0.0.1:")[2]))
    status = os.path.join(work, "import.status")
    argv = ["/usr/bin/python3", IMPORT_EXPORT, status, "import", "--bind", "127.0.0.1", "--connect-timeout", str(WAIT)]
    argv += ganeti(cert, peer, compression, magic, work) + ["--cmd-suffix", "> " + target]
    end = End(argv, work, "receiver")
    return end, waited(end, lambda: read_status(status).get("listen_port"))


def sender(who, work, source, port, cert, peer, compression, magic):
    if who == "ours":
        argv = [PROGRAM, "move", "send", "127.0.0.1:%d" % port, source, "--wait", str(WAIT), "--whole", "--keep-key"]
        # Ganeti's daemon signs the address of its importer.
        *_, digest, salt = instance.ComputeRemoteImportDiskInfo(SECRET, utils.GenerateSecret(8), 0, "127.0.0.1", port, magic)
        argv += ["--signature", salt + "/" + digest]
        return End(argv + ours(cert, peer, compression, magic), work, "sender")
    status = os.path.join(work, "export.status")
    argv = ["/usr/bin/python3", IMPORT_EXPORT, status, "export", "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--connect-timeout", str(WAIT), "--connect-retries", "0"]
    return End(argv + ganeti(cert, peer, compression, magic, work) + ["--cmd-prefix", "cat %s |" % source], work, "sender")


def ours(cert, peer, compression, magic):
    given = ["--key", path(cert + ".key"), "--cert", path(cert + ".pem"), "--peer", path(peer + ".pem")]
    return given + ["--secret", path("secret"), "--magic", magic, "--compress", compression]


def ganeti(cert, peer, compression, magic, work):
    # Ganeti's program gets the bare certificate, as from ganeti-noded.
    for name in (cert, peer):
        with open(path(name + ".pem"), encoding="ascii") as file:
            bare = file.read().partition("\n\n")[2] or open(path(name + ".pem"), encoding="ascii").read()
        with open(os.path.join(work, name + ".bare"), "w", encoding="ascii") as file:
            file.write(bare)
    given = ["--key", path(cert + ".key"), "--cert", os.path.join(work, cert + ".bare")]
    return given + ["--ca", os.path.join(work, peer + ".bare"), "--compress", compression, "--magic", magic]


def number(text):
    return int(text.split()[0]) if text.strip() else None


def read_status(file):
    try:
        with open(file, encoding="utf-8") as text:
            return json.load(text)
    except (OSError, ValueError):
        return {}


def waited(end, find):
    until = time.monotonic() + DEADLINE
    while time.monotonic() < until and end.process.poll() is None:
        found = find()
        if found:
            return found
        time.sleep(0.05)
    return None


def cell(case):
    """Runs one move; returns the results of both ends, and whether the disks are equal."""
    source_is, target_is, compression, fault = case
    work = tempfile.mkdtemp(dir=FOLDER)
    source, target = os.path.join(work, "source"), os.path.join(work, "target")
    # If the move must fail before all data is sent, the data must not fit into the buffers on the way.
    is_long = fault in ("cut", "killed sender", "killed receiver", "wrong magic")
    size = 1000 if "small" in fault else 64 * MIB if is_long else 5 * MIB + 7
    if source_is == "ours" and target_is == "ours" and size % 512:
        size = (size + 511) // 512 * 512
    disk(source, size)
    before = b"\xa5" * ((size + 511) // 512 * 512)
    with open(target, "wb") as out:
        out.write(before)
    certs = {"sender": "ours" if source_is == "ours" else "ganeti", "receiver": "ours" if target_is == "ours" else "ganeti"}
    if source_is == target_is == "ours":
        certs["receiver"] = "ganeti"
    if source_is == target_is == "ganeti":
        certs["receiver"] = "stranger"
    shown, known = dict(certs), dict(certs)
    for side in ("sender", "receiver"):
        if fault.endswith("certificate of the " + side):
            # This end presents a certificate that the peer does not expect, or the expected one, which has expired.
            shown[side] = "expired" if "expired" in fault else "other"
            known[side] = "expired" if "expired" in fault else known[side]
    magics = (OTHER_MAGIC if "magic" in fault else MAGIC), MAGIC
    for side, name in shown.items():
        if name == "other":
            shown[side] = "stranger" if certs[side] != "stranger" else "ganeti"
    taking, port = receiver(target_is, work, target, shown["receiver"], known["sender"], compression, magics[1])
    if port is None:
        taking_code = taking.wait()
        sending_code, taking_words, sending_words = "-", taking.words(), ""
        if fault.startswith("expired"):
            # The receiver exits immediately, so only the sender is tested.
            sending = sender(source_is, work, source, 9, shown["sender"], known["receiver"], compression, magics[0])
            sending_code, sending_words = sending.wait(), sending.words()
    else:
        ends = {}
        after = 4 * MIB if compression == "none" or target_is == source_is == "ours" else MIB
        act = {"cut": cut_connection, "killed sender": lambda: ends["sender"].kill(), "killed receiver": taking.kill}.get(fault)
        wire = FaultyLink(port, after if act else None, act)
        sending = ends["sender"] = sender(source_is, work, source, wire.address, shown["sender"], known["receiver"], compression, magics[0])
        sending_code, taking_code = sending.wait(), taking.wait()
        wire.listener.close()
        sending_words, taking_words = sending.words(), taking.words()
    same = os.path.exists(target) and digest(target, size) == digest(source, size)
    with open(target, "rb") as file:
        untouched = file.read() == before
    shutil.rmtree(work)
    return sending_code, taking_code, same, untouched, sending_words, taking_words


def wrong(case, found):
    """Returns the problems of a result."""
    source_is, target_is, _, fault = case
    sent, taken, same, untouched, *_ = found
    if fault == "none" or (fault == "cut" and source_is == target_is == "ours"):
        return [] if (sent, taken, same) == (0, 0, True) else ["the disk should be whole"]
    problems = []
    if "hangs" in (sent, taken):
        problems.append("an end hangs")
    # Results of Ganeti's own programs are shown, but not checked.
    if source_is == "ours" and sent in (0, "-") and fault != "killed sender":
        # If a disk fits into the buffers of an importer with another magic, the sender cannot detect the mismatch.
        problems.append("the sender should fail")
    if target_is == "ours" and taken == 0:
        problems.append("the receiver should fail")
    if target_is == "ours" and not untouched and ("magic" in fault or "certificate" in fault):
        problems.append("the target should be untouched")
    if fault.startswith("expired"):
        side = fault.rsplit(" ", 1)[1]
        code, is_ours = (sent, source_is == "ours") if side == "sender" else (taken, target_is == "ours")
        if is_ours and code != 2:
            problems.append("an own certificate that has expired should be refused")
    return problems


def check(condition, what):
    print("%-9s %s" % ("good" if condition else "WRONG", what))
    return 0 if condition else 1


def signatures_and_keys():
    """Moves a disk with the address that the receiver has signed, and tests signatures and the destruction of keys; returns the number of
    failed checks."""
    source, target = path("source"), path("target")
    disk(source, 1 << 20)
    with open(target, "wb") as out:
        out.truncate(1 << 20)
    for name in ("a", "b"):
        subprocess.run([PROGRAM, "move", "key", path(name + ".key"), path(name + ".pem"), "--secret", path("secret")], check=True)
    listening = [PROGRAM, "move", "receive", "127.0.0.1:0", target, "--overwrite", "--wait", str(WAIT)]
    taking = End(listening + ours("b", "a", "none", MAGIC), FOLDER, "signing")
    words = waited(taking, lambda: taking.words().partition("destination for the sender: ")[2].split())
    address, _, signature = words
    (host, port), (salt, digest) = address.rsplit(":", 1), signature.split("/")
    bad = check(instance.CheckRemoteExportDiskInfo(SECRET, 0, (host, int(port), MAGIC, digest, salt)) == (host, int(port), MAGIC),
                "Ganeti accepts the address that drophammer has signed")
    for what, other in (("port", (host, int(port) + 1, MAGIC)), ("host", ("127.0.0.2", int(port), MAGIC)), ("magic", (host, int(port), OTHER_MAGIC))):
        try:
            instance.CheckRemoteExportDiskInfo(SECRET, 0, (*other, digest, salt))
            bad += check(False, "Ganeti refuses another " + what)
        except errors.GenericError:
            bad += check(True, "Ganeti refuses another " + what)
    sending = [PROGRAM, "move", "send", address, source, *ours("a", "b", "none", MAGIC)]

    def refused(code, words, argv):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE)
        return check(done.returncode == code and words in done.stderr, "%d: %s" % (code, done.stderr.strip()))

    bad += refused(2, "must be signed", sending)
    bad += refused(2, "does not match", sending + ["--signature", salt + "/" + digest[::-1]])
    bad += refused(2, "must be signed", [*sending[:5], *[word for word in sending[5:] if word not in ("--secret", path("secret"))]])
    bad += refused(2, "RSA key of 1024 bits", [PROGRAM, "move", "send", address, source, *ours("short", "b", "none", MAGIC), "--signature", signature])
    bad += refused(2, "RSA key of 1024 bits", [PROGRAM, "move", "send", address, source, *ours("a", "short", "none", MAGIC), "--signature", signature])
    bad += check(all(os.path.exists(path(file)) for file in ("a.key", "b.key")), "the keys remain while the disk is not complete")
    done = subprocess.run(sending + ["--signature", signature], timeout=DEADLINE, check=False).returncode
    bad += check((done, taking.wait()) == (0, 0) and digest_of_both(source, target), "the disk is complete")
    bad += check(not any(os.path.exists(path(file)) for file in ("a.key", "a.pem", "b.key", "b.pem")), "both keys are destroyed after the disk")
    return bad


def digest_of_both(source, target):
    return digest(source, 1 << 20) == digest(target, 1 << 20)


FAULTS = [
    "none", "wrong magic", "other certificate of the sender", "other certificate of the receiver",
    "expired certificate of the sender", "expired certificate of the receiver", "cut", "killed sender", "killed receiver",
    "small disk, other certificate of the sender",
]


def main():
    certificates()
    cases = [(a, b, compression, fault) for a, b in (("ours", "ganeti"), ("ganeti", "ours")) for compression in COMPRESSIONS for fault in FAULTS]
    cases += [("ours", "ours", "own", fault) for fault in FAULTS]
    cases += [("ganeti", "ganeti", "none", FAULTS[-1])]
    run = [(a, b, "none" if compression == "own" else compression, fault) for a, b, compression, fault in cases]
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        found = list(pool.map(cell, run))
    bad = 0
    print("%-17s %-10s %-44s %-7s %-9s %s" % ("direction", "compressed", "fault", "sender", "receiver", "disk"))
    for case, result in zip(cases, found):
        sent, taken, same, untouched = result[:4]
        state = "identical" if same else "untouched" if untouched else "not whole"
        problems = wrong(case, result)
        row = "%-17s %-10s %-44s %-7s %-9s %s" % ("%s → %s" % case[:2], *case[2:], sent, taken, state)
        print(row + "".join("  WRONG: " + problem for problem in problems))
        if problems:
            bad += 1
            print("    sender: %s\n    receiver: %s" % (result[4][-900:], result[5][-900:]))
    print("%d cells, %d wrong" % (len(cases), bad))
    sys.exit(1 if bad + signatures_and_keys() else 0)


main()
