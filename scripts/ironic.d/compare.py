"""Sends each request of the table to two servers and compares status and body, except for uuids, times and addresses."""

import http.client
import json
import re
import sys
import urllib.parse

from templates import KNOWN, REQUESTS

UUID = re.compile(r"\b[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}\b")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?")


def ask(server, method, path, body, headers):
    base = urllib.parse.urlsplit(server["url"])
    sent = {"Accept": "application/json", **server["headers"]}
    version = headers.get("version", "1.115")
    if version:
        sent["X-OpenStack-Ironic-API-Version"] = version
    sent.update({name: value for name, value in headers.items() if name != "version"})
    if body is not None:
        sent["Content-Type"] = "application/json"
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(base.hostname, base.port, timeout=60)
    connection.request(method, path, body=body, headers=sent)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer, text


def plain(value, base):
    """Returns the value without the fields that differ on every server."""
    if isinstance(value, dict):
        # In Ironic this field is null as long as only steps have changed.
        return {name: "TIME" if name == "updated_at" else plain(inner, base) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner, base) for inner in value]
    if isinstance(value, str):
        return TIME.sub("TIME", UUID.sub("UUID", value.replace(base, "http://SERVER")))
    return value


def shown(server, method, path, body, headers):
    """Returns the status, the compared part of the body, and the error message."""
    status, answer, text = ask(server, method, path, body, headers)
    try:
        document = json.loads(text) if text else None
    except ValueError:
        document = {"text": text}
    words = None
    if isinstance(document, dict) and set(document) == {"error_message"}:
        inner = document["error_message"]
        try:
            inner = json.loads(inner) if isinstance(inner, str) else inner
        except ValueError:
            inner = {"text": inner}
        words = inner.get("faultstring") or inner.get("description") or inner.get("text")
        # Each server has its own error messages; only their form is compared.
        document = {"error_message": {"faultcode": inner.get("faultcode"), "fields": sorted(inner)}}
    versions = [answer.getheader("X-OpenStack-Ironic-API-" + name) for name in ("Minimum-Version", "Maximum-Version", "Version")]
    return status, plain(document, server["url"]), words, versions


def main(one, other):
    differ = known = 0
    for what, method, path, body, headers in REQUESTS:
        left, right = (shown(server, method, path, body, headers) for server in (one, other))
        wrong = [name for name, a, b in zip(("status", "body"), left, right) if a != b]
        if left[0] < 400 and left[3] != right[3]:
            wrong.append("versions")
        why = KNOWN.get(what)
        on_purpose = why and wrong and (left[0], right[0]) == why[:2]
        said = f"other on purpose: {why[2]}" if on_purpose else f"DIFFERENT: {', '.join(wrong)}" if wrong else "same"
        print(f"{method:6} {path[:60]:60} {what:38} {left[0]} {right[0]}  {said}")
        if on_purpose:
            known += 1
        elif wrong:
            differ += 1
            for name, answer in (("ironic", left), ("ours", right)):
                print(f"       {name}: {json.dumps(answer)[:1500]}")
        elif left[2] and "-v" in sys.argv:
            print(f"       ironic: {left[2]}\n       ours:   {right[2]}")
    same = len(REQUESTS) - differ - known
    print(f"{len(REQUESTS)} requests: {same} answered the same, {known} other on purpose, {differ} different")
    return 1 if differ else 0


if __name__ == "__main__":
    token = open(sys.argv[3]).read().strip() if len(sys.argv) > 3 and sys.argv[3] != "-v" else ""
    sys.exit(main({"url": sys.argv[1], "headers": {}}, {"url": sys.argv[2], "headers": {"X-Auth-Token": token}}))
