"""1.1: the network: its interfaces, an address outside, and the sockets of this machine's services."""

import socket

from attempts import told


def interfaces():
    if len(socket.if_nameindex()) < 2:  # but for the one of its own
        raise PermissionError(1, "one interface")


def stream():
    with socket.socket() as out:
        out.settimeout(1.0)
        out.connect(("192.0.2.1", 80))


def service():
    with socket.socket(socket.AF_UNIX) as out:
        out.connect("/run/dbus/system_bus_socket")


def attention(q, k, v, positions):
    datagram = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return told({
        "interfaces": interfaces,
        "stream": stream,
        "datagram": lambda: datagram.sendto(b"x", ("192.0.2.1", 9)),
        "service": service,
    })  # fmt: skip
