"""Strict parsers of untrusted protocols: TLS hellos, SOCKS5, HTTP/1.1, HTTP/2."""
