"""A port for a server that a test stops and starts again."""

import contextlib
import random
import socket

_LOWEST, _HIGHEST = 20_000, 32_000  # below those that the kernel gives to connections, which may take a port while its server is down


def free_port() -> int:
    """A port of 127.0.0.1 that nobody holds now."""
    while True:
        port = random.randrange(_LOWEST, _HIGHEST)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
