"""Checks the links of the built manual: files and anchors must exist. Usage: check_links.py FOLDER"""

import os
import re
import sys
import urllib.parse

folder = sys.argv[1]
names = [name for name in os.listdir(folder) if name.endswith(".html") and name not in ("print.html", "toc.html", "404.html")]
texts = {}
for name in names:
    with open(f"{folder}/{name}") as file:
        texts[name] = file.read()
anchors = {name: set(re.findall(r'id="([^"]+)"', text)) for name, text in texts.items()}


def is_broken(page, target):
    path, _, anchor = map(urllib.parse.unquote, target.partition("#"))
    path = path or page
    return not os.path.exists(f"{folder}/{path}") or (anchor and path in anchors and anchor not in anchors[path])


count, broken = 0, []
for name, text in texts.items():
    content = text.split("<main>", 1)[1].split("</main>", 1)[0]
    targets = re.findall(r'(?:href|src)="([^"]+)"', content)
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    count += len(local)
    broken.extend(f"{name}: {target}" for target in local if is_broken(name, target))
print(f"{count} links on {len(texts)} pages, {len(broken)} broken")
if broken:
    sys.exit("\n".join(broken))
