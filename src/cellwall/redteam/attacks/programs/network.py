"""Reaching any network (NET-1). The servers are the test's own, on the host."""

# a part of a program: stage.py stands before it

import fcntl
import socket
import struct

PORTS = GIVEN.get("ports", {})
ADDRESSES = GIVEN.get("addresses", [])
_PATIENCE = 3


def tcp(address):
    with socket.create_connection((address, PORTS["tcp"]), _PATIENCE) as line:
        not_itself(line)
        return line.recv(16)


def not_itself(line):
    # By chance a socket's own port is the one it calls, and it hears itself.
    if line.getsockname() == line.getpeername():
        raise ConnectionRefusedError("nobody but itself")


def udp(address, port, question=b"?"):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as line:
        line.settimeout(_PATIENCE)
        line.connect((address, port))
        not_itself(line)
        line.send(question)
        return line.recv(512)


for _name, _address in {
    "loopback": "127.0.0.1", "loopback-elsewhere": "127.8.9.1", "loopback-short": "127.1", "zero": "0.0.0.0",
    "ipv6-loopback": "::1", "ipv4-mapped": "::ffff:127.0.0.1",
}.items():  # fmt: skip
    attack(f"tcp-{_name}")(lambda address=_address: tcp(address))


@attack("tcp-every-other-address-of-the-host")
def _():
    if not ADDRESSES:
        raise Lacking("an address besides loopback")
    for address in ADDRESSES:
        try:
            return tcp(address)
        except OSError as error:
            last = error
    raise last


@attack("udp-loopback")
def _():
    return udp("127.0.0.1", PORTS["udp"])


@attack("udp-every-other-address-of-the-host")
def _():
    if not ADDRESSES:
        raise Lacking("an address besides loopback")
    for address in ADDRESSES:
        try:
            return udp(address, PORTS["udp"])
        except OSError as error:
            last = error
    raise last


@attack("dns-question-to-a-server-of-the-host")
def _():
    question = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x07example\x03org\0\0\x01\0\x01"
    return udp("127.0.0.1", PORTS["udp"], question)


@attack("abstract-unix-socket")
def _():
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(GIVEN["abstract"])
        return line.recv(16)


@attack("abstract-unix-datagram")
def _():
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
        return line.sendto(b"?", GIVEN["abstract"] + "-datagram")


@attack("a-route-to-anywhere")
def _():
    # No packet is sent: connecting a datagram socket only asks the routing table.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.connect((ADDRESSES[0] if ADDRESSES else "127.0.0.2", 53))
        if not ADDRESSES:
            raise Lacking("an address besides loopback")
        return line.getsockname()


@attack("see-interfaces-of-the-host")
def _():
    with open("/proc/net/dev") as file:
        named = {line.split(":")[0].strip() for line in file if ":" in line}
    named |= {name for _, name in socket.if_nameindex()}
    if named == {"lo"}:
        raise Lacking("a network interface") if GIVEN.get("control") else Stopped("only lo")
    return sorted(named)


@attack("see-servers-of-the-host")
def _():
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):  # a dual-stack server is in the second alone
        with open(table) as file:
            if f":{PORTS['tcp']:04X} " in file.read():
                return "seen"
    raise Stopped("not in /proc/net/tcp")


@attack("see-unix-sockets-of-the-host")
def _():
    with open("/proc/net/unix") as file:
        if GIVEN["abstract"].lstrip("\0") not in file.read():
            raise Stopped("not in /proc/net/unix")
    return "seen"


# Only families that most kernels have: one that is missing says the same words as the filter, and
# proves nothing. The filter's own tests walk all of them.
for _name, (_family, _type, _protocol) in {
    "raw-icmp": (2, 3, 1), "raw-ip": (2, 3, 255), "raw-icmpv6": (10, 3, 58),
    "packet": (17, 3, 0x0300), "packet-datagram": (17, 2, 0x0300), "packet-as-inet": (2, 10, 0x0300),
    "netlink-sock-diag": (16, 3, 4), "netlink-audit": (16, 3, 9), "netlink-netfilter": (16, 3, 12),
    "netlink-uevent": (16, 3, 15), "netlink-generic": (16, 3, 16), "vsock": (40, 1, 0), "xdp": (44, 3, 0),
    "mptcp": (2, 1, 262), "udplite": (2, 2, 136),
}.items():  # fmt: skip

    @attack(f"socket-{_name}")
    def _(family=_family, kind=_type, protocol=_protocol):
        try:
            return syscall("socket", family, kind, protocol)
        except OSError as error:
            known = (
                errno.EAFNOSUPPORT,
                errno.EPROTONOSUPPORT,
                errno.ESOCKTNOSUPPORT,
                errno.ENOPROTOOPT,
            )
            if GIVEN.get("control") and error.errno in known:
                raise Lacking(f"sockets of family {family}, protocol {protocol}") from None
            raise


@attack("socket-packet-with-high-bits")
def _():
    return syscall("socket", (1 << 32) | 17, 3, 0x0300)


@attack("bring-an-interface-up")
def _():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        request = struct.pack("16sH22x", b"lo", 0)
        flags = struct.unpack("16sH22x", fcntl.ioctl(line, 0x8913, request))[1]
        return fcntl.ioctl(line, 0x8914, struct.pack("16sH22x", b"lo", flags | 1))


@attack("listen-where-the-host-can-reach-it")
def _():
    # An address of the host's own, which a namespace without one does not have.
    if not ADDRESSES:
        raise Lacking("an address besides loopback")
    with socket.create_server((ADDRESSES[0], 0)) as server:
        return server.getsockname()
