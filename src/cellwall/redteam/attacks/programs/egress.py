"""Reaching what the allowlist of a cell does not name (NET-2, NET-3), by every protocol of egress.

The cell may reach good.example on two or three ports. trap.example leads to the same address, so
that only its name is against it; 127.0.0.1 has a server on the same port, so that only its address
is. The control runs outside of a cell and connects without a proxy.
"""

# a part of a program: stage.py and knocks.py stand before it

PORTS = GIVEN.get("ports", {})
PORT = PORTS.get("good", 0)
IS_CONTROL = bool(GIVEN.get("control"))
GOOD, TRAP, LEAK = b"good.example", b"trap.example", b"leak.trap.example"


def egress_attack(name):
    """An attack where egress works: one that refuses everything proves nothing."""

    def register(function):
        @attack(name)
        def _():
            try:
                works = IS_CONTROL or connect(GOOD, PORT)[0] == "through"
            except OSError as error:  # else it would pass for a refusal
                raise ValueError(f"there is no egress: {error}") from None
            if not works:
                raise ValueError("the allowed host is not reached")
            return function()

        return function

    return register


def port_of(key):
    if key not in PORTS:
        raise Lacking("leave to listen on ports 80 and 443")
    return PORTS[key]


def without_walls(host, port, spoken=None):
    """Where the name leads, or the address itself, as the C library reads it."""
    text = host.decode()
    return direct(GIVEN["names"].get(text, text).strip("[]"), port, spoken or host)


def expect(wanted, *results):
    """Through if one of the answers is what the attack wants; else the words of all."""
    for kind, words in results:
        if kind == "through" and wanted in words:
            return words
    raise Stopped(", ".join(dict.fromkeys(str(words) for _, words in results)))


def by_all(host, port, ways=(connect, absolute, socks)):
    if IS_CONTROL:
        return [without_walls(host, port)]
    return [way(host, port) for way in ways]


for _way in ("connect", "absolute", "socks", "transparent"):

    @egress_attack(f"name-by-{_way}")
    def _(name=_way):
        return expect("host=trap.example", *by_all(TRAP, PORT, (WAYS[name],)))


for _name, _way in {"connect": connect, "socks": socks_by_address, "direct": direct}.items():

    @egress_attack(f"address-by-{_name}")
    def _(way=_way):
        # An allowed address, which a name may not stand for either.
        host = "127.0.0.1" if way is direct else b"127.0.0.1"
        found = without_walls(b"127.0.0.1", PORT) if IS_CONTROL else way(host, PORT)
        return expect("trap", found)


for _name, _text in {
    "decimal": b"2130706433",
    "hexadecimal": b"0x7f000001",
    "octal": b"0177.0.0.1",
    "short": b"127.1",
    "zero": b"0.0.0.0",
    "ipv4-mapped": b"[::ffff:127.0.0.1]",
    "ipv4-mapped-hexadecimal": b"[::ffff:7f00:1]",
    "ipv6-loopback": b"[::1]",
    "localhost": b"localhost",
}.items():

    @egress_attack(f"spelled-{_name}")
    def _(host=_text):
        return expect("trap", *by_all(host, PORT))


for _name in ("loopback", "zero", "mapped", "both"):

    @egress_attack(f"allowed-name-that-leads-to-{_name}")
    def _(name=_name):
        host = f"{name}.example".encode()
        return expect("trap", *by_all(host, PORT, (connect, absolute, socks, transparent)))


@egress_attack("another-port")
def _():
    return expect("trap", *by_all(GOOD, port_of("other")))


@egress_attack("another-host-header")
def _():
    """To the allowed host, for a site that the server has under another name."""
    if IS_CONTROL:
        return expect("host=trap.example", without_walls(GOOD, PORT, TRAP))
    head = b"GET http://good.example:%d/ HTTP/1.1\r\nHost: trap.example:%d\r\n\r\n"
    return expect("host=trap.example", told(say(head % (PORT, PORT)).encode("latin-1")))


@egress_attack("another-host-header-in-a-tunnel")
def _():
    port = port_of("http")
    if IS_CONTROL:
        return expect("host=trap.example", without_walls(GOOD, port, TRAP))
    with to_proxy() as line:
        line.sendall(b"CONNECT good.example:%d HTTP/1.1\r\nHost: good.example\r\n\r\n" % port)
        if not head_of(line).startswith(b"HTTP/1.1 200"):
            raise ValueError("the tunnel to an allowed host was refused")
        line.sendall(request(TRAP, port))
        return expect("host=trap.example", told(drain(line)))


@egress_attack("another-server-name-in-tls")
def _():
    port = port_of("https")
    if IS_CONTROL:
        with socket.create_connection((GIVEN["good"], port), PATIENCE_S) as line:
            return expect("sni=trap.example", _in_tls(line, "trap.example", None, 1))
    return expect("sni=trap.example", tls_by_connect(GOOD, port, "trap.example"))


@egress_attack("question-for-a-forbidden-name")
def _():
    """A question alone carries data to the name's server."""
    if IS_CONTROL:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.settimeout(PATIENCE_S)
            line.connect(("127.0.0.1", GIVEN["dns"]))
            line.send(question(LEAK))
            return f"an answer of {len(line.recv(4096))} bytes"
    if look_up(GOOD)[0] is None:
        raise ValueError("an allowed name is not answered")
    address, refused = look_up(LEAK)
    if refused is not None:
        raise Stopped(refused)
    return address
