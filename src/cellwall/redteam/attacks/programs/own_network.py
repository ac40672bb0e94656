"""Changing the network that a cell was given (ISO-5, NET-2). The control runs in a namespace of its own."""

# a part of a program: stage.py stands before it

import fcntl
import os
import socket
import struct

only_in_throwaway_namespaces()
if __name__ == "__main__" and os.readlink("/proc/self/ns/net") == GIVEN["hosts"]:
    raise SystemExit("this control must not run in the host's own network")

UP = 1
LO = b"lo"


def address(text, port=0):
    return struct.pack("=HH4s8x", socket.AF_INET, socket.htons(port), socket.inet_aton(text))


def flags_of(line):
    return struct.unpack("16sH22x", fcntl.ioctl(line, 0x8913, struct.pack("16sH22x", LO, 0)))[1]


def datagram_socket():
    """With loopback up, as it is in a cell; in a fresh namespace it has to be brought up first."""
    line = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if not flags_of(line) & UP:
        fcntl.ioctl(line, 0x8914, struct.pack("16sH22x", LO, flags_of(line) | UP))
    return line


def netlink(kind, body, flags=0x605):  # REQUEST | ACK | CREATE | EXCL
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as line:
        line.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 1, 0) + body)
        answer = line.recv(4096)
    number = -struct.unpack("=i", answer[16:20])[0]
    if number:
        raise OSError(number, os.strerror(number))
    return "acknowledged"


def attribute(kind, content):
    return struct.pack("=HH", 4 + len(content), kind) + content.ljust(
        -(-len(content) // 4) * 4, b"\0"
    )


@attack("add-an-address-by-ioctl")
def _():
    with datagram_socket() as line:
        fcntl.ioctl(line, 0x8916, struct.pack("16s", b"lo:7") + address("10.9.8.7"))
    return "added"


@attack("add-an-address-by-netlink")
def _():
    local = attribute(2, socket.inet_aton("10.9.8.6"))
    index = socket.if_nametoindex("lo")
    return netlink(20, struct.pack("=BBBBI", socket.AF_INET, 32, 0, 0, index) + local)


@attack("change-the-mask")
def _():
    with datagram_socket() as line:
        fcntl.ioctl(line, 0x891C, struct.pack("16s", LO) + address("255.255.255.255"))
    return "changed"


@attack("take-loopback-down")
def _():
    with datagram_socket() as line:
        return fcntl.ioctl(line, 0x8914, struct.pack("16sH22x", LO, flags_of(line) & ~UP))


@attack("add-a-route-by-ioctl")
def _():
    with datagram_socket() as line:
        name = ctypes.create_string_buffer(LO)
        where = address("10.0.0.0") + address("0.0.0.0") + address("255.0.0.0")
        route = struct.pack("@L48sHhLLhP", 0, where, 1, 0, 0, 0, 1, ctypes.addressof(name))
        return fcntl.ioctl(line, 0x890B, route.ljust(128, b"\0"))


@attack("add-a-route-by-netlink")
def _():
    datagram_socket().close()
    head = struct.pack("=BBBBBBBBI", socket.AF_INET, 8, 0, 0, 254, 3, 253, 1, 0)
    to = attribute(1, socket.inet_aton("11.0.0.0"))
    return netlink(24, head + to + attribute(4, struct.pack("=I", socket.if_nametoindex("lo"))))


@attack("make-an-interface")
def _():
    kind = attribute(18, attribute(1, b"veth"))
    try:
        return netlink(16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + kind)
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP and not GIVEN.get("cell"):
            raise Lacking("veth") from None
        raise


@attack("speak-from-any-address")
def _():
    with datagram_socket() as line:
        line.setsockopt(socket.SOL_IP, 19, 1)  # IP_TRANSPARENT
    return "transparent"


@attack("mark-packets")
def _():
    with datagram_socket() as line:
        line.setsockopt(socket.SOL_SOCKET, 36, 1)  # SO_MARK
    return "marked"


# The ports on which egress listens: another listener there would get the cell's requests.
for _name, _kind, _place in (
    ("the-proxy", socket.SOCK_STREAM, ("127.0.0.1", 3128)),
    ("the-proxy-on-every-address", socket.SOCK_STREAM, ("0.0.0.0", 3128)),
    ("names", socket.SOCK_DGRAM, ("127.0.0.1", 53)),
    ("names-on-every-address", socket.SOCK_DGRAM, ("0.0.0.0", 53)),
    ("port-443", socket.SOCK_STREAM, ("0.0.0.0", 443)),
    ("port-443-of-one-address", socket.SOCK_STREAM, ("127.0.0.1", 443)),
):
    for _option, _number in (("", 0), ("-by-reuse", 2), ("-by-sharing", 15)):

        @attack(f"take-the-place-of-{_name}{_option}")
        def _(kind=_kind, place=_place, number=_number):
            datagram_socket().close()
            with socket.socket(socket.AF_INET, kind) as line:
                if number:
                    line.setsockopt(socket.SOL_SOCKET, number, 1)
                line.bind(place)
                if kind == socket.SOCK_STREAM:
                    line.listen()
                return line.getsockname()
