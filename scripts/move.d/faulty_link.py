"""TCP forwarder between sender and receiver that triggers a fault after a number of bytes."""

import socket
import threading


class FaultyLink:
    """Forwards the sender's data, and triggers the fault after a number of bytes."""

    def __init__(self, port, after=None, act=None):
        self.port, self.after, self.act, self.cut = port, after, act, False
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                near.close()
                continue
            threading.Thread(target=self.pass_on, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self.pass_on, args=(far, near, False), daemon=True).start()
            # The last thread that uses the connections closes them.
            del near, far

    def pass_on(self, source, sink, forward):
        passed = 0
        try:
            while True:
                data = source.recv(65536)
                if not data:
                    break
                sink.sendall(data)
                passed += len(data)
                if forward and self.after is not None and passed > self.after and not self.cut:
                    self.cut = True
                    self.act()
                    if self.act is cut_connection:
                        break
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            shut_down(source, sink)
        if self.cut and self.act is cut_connection:
            shut_down(source, sink)


def shut_down(*sockets):
    for one in sockets:
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


def cut_connection():
    """Fault that closes both connections. `FaultyLink` closes them itself, so the function does nothing."""
