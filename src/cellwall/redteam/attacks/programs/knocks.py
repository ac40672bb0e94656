"""Not attacks by themselves: every way in which code of a cell can ask to get out (NET-2).

Each returns ("through", what the server said) or ("refused", the word for it). Anything that is
neither, such as a wait without end, is an exception: it must not pass for a refusal.
"""

import contextlib
import re
import socket
import ssl
import struct

PATIENCE_S = 30
PROXY = ("127.0.0.1", 3128)
DNS_CODES = {1: "FORMERR", 2: "SERVFAIL", 3: "NXDOMAIN", 4: "NOTIMP", 5: "REFUSED"}


def to_proxy():
    return socket.create_connection(PROXY, PATIENCE_S)


def drain(line):
    """Until the other side ends; a reset is an end as well."""
    data = b""
    try:
        while piece := line.recv(65_536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def head_of(line):
    data = b""
    while b"\r\n\r\n" not in data:
        piece = line.recv(1)
        if not piece:
            break
        data += piece
    return data


def told(data):
    """What a whole answer means; without any it was cut, and that is a word too."""
    if found := re.search(rb"\r\nX-Cellwall-Refused: (\S+)\r\n", data):
        return "refused", found[1].decode()
    if data.startswith(b"HTTP/1.1 200"):
        return "through", data.partition(b"\r\n\r\n")[2].decode()
    if not data:
        return "refused", "cut"
    raise ValueError(data)


def request(host, port):
    return b"GET / HTTP/1.1\r\nHost: %s:%d\r\nConnection: close\r\n\r\n" % (host, port)


def connect(host, port):
    with to_proxy() as line:
        line.sendall(b"CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host, port, host, port))
        head = head_of(line)
        if not head.startswith(b"HTTP/1.1 200"):
            return told(head)
        line.sendall(request(host, port))
        return told(drain(line))


def absolute(host, port):
    with to_proxy() as line:
        line.sendall(request(host, port).replace(b" /", b" http://%s:%d/" % (host, port), 1))
        return told(drain(line))


def socks(host, port, kind=3):
    with to_proxy() as line:
        line.sendall(b"\x05\x01\x00")
        assert line.recv(2) == b"\x05\x00"
        content = bytes([len(host)]) + host if kind == 3 else host
        line.sendall(b"\x05\x01\x00" + bytes([kind]) + content + struct.pack(">H", port))
        answer = line.recv(10, socket.MSG_WAITALL)
        if answer[:2] != b"\x05\x00":
            assert len(answer) == 10, answer
            return "refused", f"SOCKS {answer[1]}"
        line.sendall(request(host, port))
        return told(drain(line))


def socks_by_address(host, port):
    """For what is an address to begin with; IPv4 in its four bytes, IPv6 in its sixteen."""
    text = host.strip(b"[]").decode()
    if ":" in text:
        return socks(socket.inet_pton(socket.AF_INET6, text), port, 4)
    return socks(socket.inet_aton(text), port, 1)


def question(host, kind=1):
    labels = b"".join(bytes([len(label)]) + label for label in host.split(b"."))
    return b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\x00" + struct.pack(">HH", kind, 1)


def look_up(host, kind=1):
    """The answer's address, or the word of a refusal; the C library is not asked."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        line.settimeout(PATIENCE_S)
        line.connect(("127.0.0.1", 53))
        line.send(question(host, kind))
        answer = line.recv(4096)
    if code := answer[3] & 15:
        return None, DNS_CODES[code]
    if struct.unpack(">H", answer[6:8])[0] != 1:
        return None, "no answer"
    return socket.inet_ntoa(answer[-4:]), None


def transparent(host, port):
    address, refused = look_up(host)
    return ("refused", refused) if address is None else direct(address, port, host)


def direct(address, port, host=b"x"):
    try:
        line = socket.create_connection((address, port), PATIENCE_S)
    except TimeoutError:
        raise
    except ConnectionResetError:  # as soon as it was there
        return "refused", "cut"
    except (OSError, UnicodeError) as error:
        return "refused", type(error).__name__
    with line:
        try:
            line.sendall(request(host, port))
            return told(drain(line))
        except (ConnectionResetError, BrokenPipeError):
            return "refused", "cut"


WAYS = {"connect": connect, "absolute": absolute, "socks": socks, "transparent": transparent}


def knock(host, port):
    """By every way; `host` is text of which each character is one byte."""
    name = host.encode("latin-1")
    found = {way: go(name, port) for way, go in WAYS.items()}
    try:
        found["direct"] = direct(host.strip("[]"), port)
    except ValueError as error:  # NUL in a name never gets as far as a socket
        found["direct"] = ("refused", type(error).__name__)
    return found


def hello(line, server_name, *, pieces=1):
    """A TLS handshake by hand, so that its first message can be cut into pieces."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname=server_name)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while True:
        try:
            tls.do_handshake()
            line.sendall(outgoing.read())
            return "through", tls, incoming, outgoing
        except ssl.SSLWantReadError:
            data = outgoing.read()
            size = -(-len(data) // pieces) or 1
            for at in range(0, len(data), size):
                line.sendall(data[at : at + size])
            pieces = 1
        except ssl.SSLError as error:
            return "refused", error.reason, None, None
        try:
            incoming_bytes = line.recv(65_536)
        except ConnectionResetError:
            return "refused", "cut", None, None
        if not incoming_bytes:
            return "refused", "cut", None, None
        incoming.write(incoming_bytes)


def tls_by_connect(host, port, server_name, *, asks=None, pieces=1):
    """CONNECT to one host, TLS for another; `asks` is a request in it, for what is opened."""
    with to_proxy() as line:
        line.sendall(b"CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (host, port, host, port))
        head = head_of(line)
        if not head.startswith(b"HTTP/1.1 200"):
            return told(head)
        return _in_tls(line, server_name, asks, pieces)


def tls_transparent(host, port, server_name, *, asks=None, pieces=1):
    address, refused = look_up(host)
    if address is None:
        return "refused", refused
    with socket.create_connection((address, port), PATIENCE_S) as line:
        return _in_tls(line, server_name, asks, pieces)


def _in_tls(line, server_name, asks, pieces):
    kind, word, incoming, outgoing = hello(line, server_name, pieces=pieces)
    if kind == "refused":
        return kind, word
    tls = word
    tls.write(asks or request(server_name.encode(), 443))
    line.sendall(outgoing.read())
    data = b""
    while True:
        try:
            piece = tls.read(65_536)
            if not piece:
                return told(data)
            data += piece
        except ssl.SSLWantReadError:
            more = line.recv(65_536)
            incoming.write(more) if more else incoming.write_eof()
        except ssl.SSLError:
            return told(data)


def say(data, *, transparent_to=None):
    """Raw bytes to the proxy, or to what a name stands for; every answer until the end."""
    if transparent_to is None:
        line = to_proxy()
    else:
        host, port = transparent_to
        line = socket.create_connection((look_up(host)[0], port), PATIENCE_S)
    with line:
        line.sendall(data)
        with contextlib.suppress(OSError):  # the proxy may have refused it, and gone, before
            line.shutdown(socket.SHUT_WR)
        return drain(line).decode("latin-1")
