"""1.1: the network, by sockets of every family, and by io_uring, which opens them too."""

import ctypes
import socket

from attempts import call, told


def attention(q, k, v, positions):
    return told({
        "internet": lambda: socket.socket(socket.AF_INET),
        "datagram": lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
        "pair": socket.socketpair,
        "ring": lambda: call("syscall", 425, 1, ctypes.create_string_buffer(120)),  # io_uring_setup
    })  # fmt: skip
