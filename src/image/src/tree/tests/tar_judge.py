"""Lists the members of tars: each request is a length in four bytes and a tar, each answer a line of JSON."""

import io
import json
import struct
import sys
import tarfile

KINDS = {
    tarfile.DIRTYPE: "d",
    tarfile.SYMTYPE: "l",
    tarfile.LNKTYPE: "h",
    tarfile.CHRTYPE: "c",
    tarfile.BLKTYPE: "b",
    tarfile.FIFOTYPE: "p",
}


def members(data):
    listed, content, end = [], b"", -1
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        for member in tar:
            # A negative size makes Python read the same members again and again (CVE-2025-8194).
            if tar.offset <= end:
                raise ValueError("the next member begins before the end of this member")
            end = tar.offset
            kind = KINDS.get(member.type, "-")
            link = member.linkname if kind in "lh" else ""
            listed.append([member.name, kind, member.size if kind == "-" else 0, link])
            if kind == "-" and member.size < 1 << 20:
                content += tar.extractfile(member).read()
    return {"members": listed, "content": content.hex()}


while True:
    head = sys.stdin.buffer.read(4)
    if len(head) < 4:
        break
    data = sys.stdin.buffer.read(struct.unpack(">I", head)[0])
    try:
        answer = members(data)
    except Exception as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
