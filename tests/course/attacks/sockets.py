"""1.1: the network, by sockets of every family, and by io_uring, which opens them too."""

import ctypes
import os
import socket


def attention(q, k, v, positions):
    def ring():
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(425, 1, ctypes.create_string_buffer(120)) < 0:  # io_uring_setup
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    told = []
    for name, act in (
        ("internet", lambda: socket.socket(socket.AF_INET)),
        ("datagram", lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)),
        ("unix", lambda: socket.socket(socket.AF_UNIX)),
        ("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)),
        ("pair", socket.socketpair),
        ("ring", ring),
    ):
        try:
            act()
            told.append(f"{name}: DONE")
        except OSError as error:
            told.append(f"{name}: {error.strerror}")
    return "; ".join(told)
