"""Serves the files of a folder, with range requests: served.py FOLDER PORT. Python's own server does not support ranges, which qcow2 images require."""

import functools
import http.server
import os
import re
import sys


class Parts(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        path = self.translate_path(self.path)
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not wanted or not os.path.isfile(path):
            return super().do_GET()
        size, changed = os.path.getsize(path), self.date_time_string(int(os.path.getmtime(path)))
        if self.headers.get("If-Range", changed) != changed:
            return super().do_GET()
        first, last = int(wanted[1]), min(int(wanted[2] or size), size - 1)
        if first > last:
            return self.send_error(416)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("Last-Modified", changed)
        self.end_headers()
        with open(path, "rb") as file:
            file.seek(first)
            left = last - first + 1
            while left > 0 and (part := file.read(min(left, 1 << 20))):
                self.wfile.write(part)
                left -= len(part)


handler = functools.partial(Parts, directory=sys.argv[1])
http.server.ThreadingHTTPServer(("0.0.0.0", int(sys.argv[2])), handler).serve_forever()
