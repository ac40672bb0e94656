"""What clients and servers say, read strictly: TLS hellos, SOCKS5, HTTP/1.1, refusals."""
