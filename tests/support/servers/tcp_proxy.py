"""A network between a client and a server that a test cuts: a real proxy on a free port."""

from __future__ import annotations

import enum
import socket
import threading
from contextlib import suppress

__all__ = ["Network", "TcpProxy"]

_CHUNK = 4096


class Network(enum.Enum):
    """What the proxy does with bytes and connections."""

    WHOLE = "whole"
    REFUSED = "refused"
    """Open connections are reset, new ones end at once."""
    SILENT = "silent"
    """Connections stay open and take bytes, none of which arrives: a cable that was pulled."""
    ONE_WAY = "one way"
    """The server gets what the client sends; no answer comes back."""


class TcpProxy:
    """``with TcpProxy(port) as proxy``: ``proxy.port`` leads to ``port`` of this machine until the network is cut."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._network, self._left = Network.WHOLE, -1
        self._open: list[socket.socket] = []
        self._is_over = False

    def __enter__(self) -> TcpProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._listener.close()
        self._reset()

    def set(self, network: Network) -> None:
        """Change the network; bytes that a silent one swallowed are lost, as its connections are once it is whole."""
        was, self._network, self._left = self._network, network, -1
        if network is Network.REFUSED or was is not Network.WHOLE:
            self._reset()

    def cut_after(self, answered: int, network: Network) -> None:
        """Let the server answer this number of bytes more, then change the network."""
        self._after, self._left = network, answered

    @property
    def is_cut(self) -> bool:
        """Whether the network is not whole."""
        return self._network is not Network.WHOLE

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self._network is Network.REFUSED:
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for pair in ((client, server, False), (server, client, True)):
                    threading.Thread(target=self._carry, args=pair, daemon=True).start()

    def _carry(self, source: socket.socket, to: socket.socket, is_answer: bool) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                if is_answer and self._left >= 0:
                    part = data[: self._left]
                    self._left -= len(part)
                    if not self._left:
                        to.sendall(part)
                        self.set(self._after)
                        continue
                if self._network is Network.WHOLE or (self._network is Network.ONE_WAY and not is_answer):
                    to.sendall(data)
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)

    def _reset(self) -> None:
        """End every connection with a reset."""
        while self._open:
            one = self._open.pop()
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
                one.shutdown(socket.SHUT_RDWR)
            one.close()
