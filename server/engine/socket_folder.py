"""Private folders for sockets, which the next server removes if their own was killed and could not."""

from __future__ import annotations

from inferir.ir.system.held_folder import HeldFolder, make_scratch
from inferir.server.engine.socket_root import socket_root

KIND = "server"


def make_socket_folder() -> HeldFolder:
    """A new folder that only this user can enter. The first one of a process removes those of killed servers."""
    return make_scratch(KIND, socket_root())
