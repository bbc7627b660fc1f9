"""Logs in at `drophammer serve` through npm's oidc-provider: at the web page (authorization code with PKCE), and on the command line
(device flow). Also sends expired, foreign, replayed, forged and unsigned tokens. Prints a table, and a line that scripts/test counts.
Usage: drive.py PROGRAM FOLDER MODULES. MODULES contains node_modules with oidc-provider."""

import base64
import html
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.parse

import chromium

PROGRAM, FOLDER, MODULES = sys.argv[1:4]
HERE = os.path.dirname(os.path.abspath(__file__))
DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
results, processes, addresses = [], [], iter(range(2, 250))


def free_port():
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


def request(method, url, body=None, headers=None, source="127.0.0.1"):
    """Sends one request, and returns status, headers and text."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30, source_address=(source, 0))
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    connection.request(method, target or "/", body, headers or {})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


class Browser:
    """Client with cookies that follows redirects and submits the forms of the provider, as a browser does."""

    def __init__(self):
        self.cookies = {}
        # Refused logins are limited per address.
        self.source = f"127.0.0.{next(addresses)}"

    def send(self, method, url, fields=None):
        origin = urllib.parse.urlsplit(url).netloc
        jar = self.cookies.setdefault(origin, {})
        headers = {"Accept": "text/html", "Cookie": "; ".join(f"{name}={value}" for name, value in jar.items())}
        body = None
        if fields is not None:
            body = urllib.parse.urlencode(fields)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        status, answer, text = request(method, url, body, headers, self.source)
        for line in answer.get_all("Set-Cookie") or []:
            name, _, value = line.split(";")[0].partition("=")
            jar[name] = value
            if not value or "Max-Age=0" in line or "1970" in line:
                jar.pop(name)
        return status, answer.get("Location"), text

    def visit(self, url, user, stop=None, abort=False):
        """Opens a URL, follows redirects and submits forms. Returns status, text and URL of the last page, or of the first URL that begins
        with `stop`."""
        method, fields = "GET", None
        for _ in range(20):
            if stop and url.startswith(stop):
                return None, "", url
            status, location, text = self.send(method, url, fields)
            if location:
                method, fields, url = "GET", None, urllib.parse.urljoin(url, location)
                continue
            form = re.search(r'<form[^>]*action="([^"]*)"[^>]*>(.*?)</form>', text, re.S)
            if not form or 'action="/login"' in text:
                return status, text, url
            fields = {}
            for field in re.findall(r"<input[^>]*>", form[2], re.S):
                name, value = re.search(r'name="([^"]*)"', field), re.search(r'value="([^"]*)"', field)
                if name:
                    fields[name[1]] = html.unescape(value[1]) if value else ""
            fields.update({"login": user, "password": "x"} if "login" in fields else {})
            method, url = "POST", urllib.parse.urljoin(url, html.unescape(form[1]))
            if abort and "confirm" in fields:
                del fields["confirm"]
                status, _, text = self.send(method, url, {**fields, "abort": "yes"})
                return status, text, url
        raise AssertionError(f"{url}: too many pages")


def check(name, is_good, shown):
    """Records one row of the table."""
    shown = re.sub(r"\s+", " ", shown)
    results.append((name, is_good))
    print(f"| {name} | {shown[:150]} | {'ok' if is_good else 'FAILED'} |", flush=True)


def message(text):
    """Returns the message of an error response, or of an error page."""
    try:
        return json.loads(text)["message"]
    except (ValueError, KeyError):
        found = re.search(r'role="alert">(.*?)</p>', text, re.S)
        return html.unescape(found[1]) if found else re.sub(r"<[^>]*>", " ", text)


def start_process(arguments, log, expected, cwd=None):
    with open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT, cwd=cwd)
    processes.append(process)
    for _ in range(600):
        with open(log, encoding="utf-8") as written:
            text = written.read()
        if expected in text:
            return process
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"{log}: {expected!r} did not appear")


def start_provider(port, callback):
    arguments = ["node", f"{HERE}/provider.mjs", str(port), callback]
    return start_process(arguments, f"{FOLDER}/provider-{port}.log", "listening at", MODULES)


def stop(process):
    process.terminate()
    process.wait(10)


def post_form(url, **fields):
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    return json.loads(request("POST", url, urllib.parse.urlencode(fields), headers)[2])


def device_token(issuer, user, client="drophammer"):
    """Returns an ID token of the device flow."""
    device = post_form(f"{issuer}/device/auth", client_id=client, scope="openid profile groups")
    Browser().visit(device["verification_uri_complete"], user)
    tokens = post_form(f"{issuer}/token", client_id=client, grant_type=DEVICE, device_code=device["device_code"])
    return tokens["id_token"]


def encode(value):
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def decode(token):
    header, claims, _ = token.split(".")
    return [json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (header, claims)]


class Server:
    def __init__(self, port, issuer):
        self.url, self.issuer = f"http://127.0.0.1:{port}", issuer
        directory = f"{FOLDER}/server"
        for folder in ("machines", "layouts", "images", "boot"):
            os.makedirs(f"{directory}/{folder}")
        with open(f"{directory}/oidc.yaml", "w", encoding="utf-8") as settings:
            settings.write(f"issuer: {issuer}\nclient_id: drophammer\nname: Lab ID\nscopes: [profile, groups]\nroles:\n"
                           "  - {group: admins, role: admin}\n  - {group: shift, role: operator, projects: [blue]}\n"
                           "  - {group: auditors, role: viewer}\n")
        arguments = [PROGRAM, "serve", directory, "--listen", f"127.0.0.1:{port}", "--json"]
        start_process(arguments, f"{FOLDER}/server.log", self.url)
        with open(f"{directory}/operator.token", encoding="utf-8") as token:
            self.token = token.read().strip()

    def call(self, method, path, body=None, token=None):
        headers = {"Authorization": f"Bearer {token or self.token}"}
        status, _, text = request(method, self.url + path, json.dumps(body) if body else None, headers)
        return status, json.loads(text)

    def exchange(self, token):
        source = f"127.0.0.{next(addresses)}"
        body = json.dumps({"id_token": token, "host": "laptop"})
        status, _, text = request("POST", f"{self.url}/v1/oidc/token", body, source=source)
        return status, text

    def run(self, *arguments, **options):
        environment = {**os.environ, "HOME": FOLDER, "XDG_CONFIG_HOME": f"{FOLDER}/config"}
        return subprocess.run([PROGRAM, *arguments], env=environment, text=True, capture_output=True, timeout=60,
                              check=False, stdin=subprocess.DEVNULL, **options)


def judge_page(server):
    browser = Browser()
    _, _, callback = browser.visit(f"{server.url}/oidc/login", "ann", stop=f"{server.url}/oidc/callback")
    saved = {origin: dict(jar) for origin, jar in browser.cookies.items()}
    stranger = Browser().send("GET", callback)
    status, _, text = browser.send("GET", callback)
    check("page: code + PKCE", status == 200 and "Logged in as ann" in text, re.sub(r"<[^>]*>", " ", text).split("·")[-1])
    status, _, text = browser.send("GET", f"{server.url}/")
    check("page: the session is valid", status == 200 and "ann" in text, f"GET / = {status}")
    browser.cookies = saved
    status, _, text = browser.send("GET", callback)
    check("page: replayed callback", status == 403 and "code" in message(text), f"{status} {message(text)}")
    check("page: callback in another browser", stranger[0] == 403, f"{stranger[0]} {message(stranger[2])}")
    other = Browser()
    other.visit(f"{server.url}/oidc/login", "bea", stop=f"{server.url}/oidc/callback")
    status, _, text = other.send("GET", callback)
    check("page: callback of another login", status == 403 and "another login" in text, f"{status} {message(text)}")
    for user, why in (("eve", "no group of the user has a role"), ("local", "belongs to another user")):
        status, text, _ = Browser().visit(f"{server.url}/oidc/login", user)
        check(f"page: user {user}", status == 403 and why in text, f"{status} {message(text)}")
    server.call("POST", "/v1/users/ann", {"disabled": True})
    status, text, _ = Browser().visit(f"{server.url}/oidc/login", "ann")
    check("page: disabled user", status == 403 and "the user is disabled" in text, f"{status} {message(text)}")
    server.call("POST", "/v1/users/ann", {"disabled": False})


def log_in_cli(server, user, abort=False):
    environment = {**os.environ, "HOME": FOLDER, "XDG_CONFIG_HOME": f"{FOLDER}/config"}
    process = subprocess.Popen([PROGRAM, "login", server.url, "--oidc"], env=environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    processes.append(process)
    shown = [process.stdout.readline(), process.stdout.readline()]
    url = re.search(r"Or open (\S+)", shown[1])[1]
    Browser().visit(url, user, abort=abort)
    output, errors = process.communicate(timeout=60)
    return process.returncode, shown[0] + output, errors


def judge_commands(server):
    code, output, errors = log_in_cli(server, "cli")
    check("login: device flow", code == 0 and "has the role viewer" in output, output + errors)
    who = server.run("whoami")
    check("whoami", who.returncode == 0 and "cli" in who.stdout, who.stdout + who.stderr)
    refused = server.run("user", "list")
    check("user list as a viewer", refused.returncode != 0 and "requires the role admin" in refused.stderr, refused.stderr)
    code, _, errors = log_in_cli(server, "cli", abort=True)
    check("login: aborted by the user", code != 0 and "access_denied" in errors, errors)
    code, output, errors = log_in_cli(server, "eve")
    check("login: user without a role", code != 0 and "no group of the user" in errors, errors)
    code, output, errors = log_in_cli(server, "bea")
    listed = server.run("user", "list")
    rows = [row for row in listed.stdout.splitlines() if "oidc" in row]
    check("login as an admin, user list", code == 0 and len(rows) == 3, " / ".join(" ".join(row.split()) for row in rows))


def judge_tokens(server, other):
    def refuse(name, token, why):
        status, text = server.exchange(token)
        check(name, status == 403 and why in text, f"{status} {message(text)}")

    token = device_token(server.issuer, "cli")
    (header, claims), now = decode(token), int(time.time())

    def sign(changes, key="own", **changed_header):
        body = {"claims": {**claims, "iat": now, "exp": now + 300, **changes}, "header": {"alg": "RS256", **changed_header}, "key": key}
        body["claims"] = {name: value for name, value in body["claims"].items() if value is not None}
        return request("POST", f"{server.issuer}/test/sign", json.dumps(body))[2]

    status, text = server.exchange(token)
    check("token of the provider", status == 201, f"{status} user {json.loads(text).get('identity', {}).get('user')}")
    refuse("token: replayed", token, "used before")
    refuse("token: expired", sign({"exp": now - 120, "iat": now - 300}), "the token has expired")
    refuse("token: issued in the future", sign({"iat": now + 300}), "issued in the future")
    refuse("token: issued an hour ago", sign({"iat": now - 3600}), "more than 10 minutes ago")
    refuse("token: not valid yet", sign({"nbf": now + 300}), "not valid yet")
    refuse("token: another client of the provider", device_token(server.issuer, "cli", "grafana"), "another client")
    refuse("token: another provider", device_token(other, "bea"), "not signed with a key")
    refuse("token: another issuer, known key", sign({"iss": other}), "another identity provider")
    refuse("token: foreign key with the known key id", sign({}, "foreign"), "the token's signature is invalid")
    refuse("token: unknown key id", sign({}, kid="other"), "not signed with a key")
    refuse("token: alg none", f"{encode({'alg': 'none'})}.{encode(claims)}.", "algorithm is not accepted")
    refuse("token: HS256 with the public key", sign({}, alg="HS256"), "algorithm HS256 is not accepted")
    forged = {**claims, "groups": ["admins"]}
    refuse("token: changed groups", f"{encode(header)}.{encode(forged)}.{token.split('.')[2]}", "the token's signature is invalid")
    refuse("token: without a signature", token.rsplit(".", 1)[0] + ".", "the token's signature is invalid")
    refuse("token: several audiences", sign({"aud": ["drophammer", "grafana"]}), "several audiences")
    refuse("token: of a login at the page", sign({"nonce": "n"}), "login at a web page")
    refuse("token: without an expiry", sign({"exp": None}), "lacks the claim exp")


def judge_failures(server, provider, port, callback):
    stop(provider)
    status, text, _ = Browser().visit(f"{server.url}/oidc/login", "bea", stop=server.issuer)
    check("provider stopped: cached metadata", text == "" and status is None, "the page redirects to the provider")
    status, _ = server.call("GET", "/v1/machines")
    check("provider stopped: local token", status == 200, f"GET /v1/machines = {status}")
    provider = start_provider(port, callback)
    # The provider has a new key, which the server fetches at most every 10 seconds.
    time.sleep(10)
    status, text, _ = Browser().visit(f"{server.url}/oidc/login", "bea")
    check("provider with a new key", status == 200 and "Logged in as bea" in text, re.sub(r"<[^>]*>", " ", text).split("·")[-1])
    stop(provider)
    entries = server.call("GET", "/v1/audit?action=oidc&limit=1000")[1]
    done, refused = ([entry for entry in entries if entry["outcome"] == outcome] for outcome in ("done", "refused"))
    check("audit log", len(done) >= 5 and len(refused) >= 20 and all(entry["user"] for entry in done),
          f"{len(done)} logins, {len(refused)} refused logins")
    with open(f"{FOLDER}/server.log", encoding="utf-8") as log:
        check("no token in the log", "eyJ" not in log.read() + json.dumps(entries), "neither in the audit log")


def main():
    port, other_port, server_port = free_port(), free_port(), free_port()
    callback = f"http://127.0.0.1:{server_port}/oidc/callback"
    provider = start_provider(port, callback)
    start_provider(other_port, callback)
    server = Server(server_port, f"http://localhost:{port}")
    server.call("PUT", "/v1/users", {"name": "local", "role": "viewer"})
    print("| case | result | verdict |\n|---|---|---|")
    judge_page(server)
    for row in chromium.log_in(server.url, free_port(), "ann", f"{FOLDER}/chromium.png"):
        check(*row)
    judge_commands(server)
    judge_tokens(server, f"http://localhost:{other_port}")
    judge_failures(server, provider, port, callback)


code = 1
try:
    main()
    failed = sum(not is_good for _, is_good in results)
    code = int(failed > 0)
    print(f"test result: {'FAILED' if failed else 'ok'}. {len(results) - failed} passed; {failed} failed; 0 ignored;")
finally:
    for process in processes:
        if process.poll() is None:
            process.terminate()
            process.wait(10)
sys.exit(code)
