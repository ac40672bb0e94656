"""Runs inside a cell: carries lines of standard input to a remote MCP server and its answers back.

Streamable HTTP by the standard library alone, since a cell has no other package. The cell's egress
decides which hosts are reached, and inserts the values of secrets: the headers here hold
placeholders. A server can exploit this program, but it then has a cell with one allowed host.

Arguments: the URL, then headers as `Name: value`, in which `${NAME}` is a variable.
"""

# standard output is the channel

from __future__ import annotations

import http.client
import json
import os
import re
import select
import ssl
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

MAX_BODY_BYTES = 8 * 1024 * 1024
TIMEOUT_S = 300.0
MAX_THREADS = 32
MAX_LISTENS = 100
LISTEN_PAUSE_S = 5.0
FAILED = -32050
"""Not -32000, by which the SDK says that the connection was closed."""
VERSION_KEY = "io.modelcontextprotocol/protocolVersion"


class Relay:
    """One remote server."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self.url = urlsplit(url)
        self.headers = headers
        self.session = ""
        self.version = ""
        self.idle: list[http.client.HTTPConnection] = []
        self.lock = threading.Lock()
        self.room = threading.Semaphore(MAX_THREADS)

    def run(self) -> None:
        """Until the end of standard input."""
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if not isinstance(message, dict):
                continue
            if "id" not in message or message.get("method") == "initialize":
                # In order: nothing may overtake the handshake.
                self.post(line, message)
                if message.get("method") == "notifications/initialized":
                    threading.Thread(target=self.listen, daemon=True).start()
            else:
                self.room.acquire()
                turn = (line, message)
                threading.Thread(target=self.post_in_turn, args=turn, daemon=True).start()
        # The requests under way are answered by nobody any more.
        os._exit(0)

    def post_in_turn(self, line: bytes, message: dict[str, Any]) -> None:
        try:
            self.post(line, message)
        finally:
            self.room.release()

    def post(self, line: bytes, message: dict[str, Any]) -> None:
        number = message.get("id")
        try:
            self.exchange(line, message)
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            if number is not None and "method" in message:
                self.fail(number, f"the remote server cannot be reached ({type(error).__name__})")

    def exchange(self, line: bytes, message: dict[str, Any]) -> None:
        headers = {
            **self.common(message),
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        connection, answer = self.request("POST", line.strip(), headers)
        kind = (answer.headers.get_content_type() or "").lower()
        is_request = "method" in message and message.get("id") is not None
        if answer.status >= 300:
            answer.read(MAX_BODY_BYTES)
            if is_request:
                self.fail(message["id"], f"the remote server answered with HTTP {answer.status}")
            connection.close()
            return
        if message.get("method") == "initialize":
            self.session = answer.headers.get("Mcp-Session-Id", "")
        if kind == "text/event-stream":
            self.events(answer, message)
            connection.close()
            return
        body = answer.read(MAX_BODY_BYTES + 1)
        if len(body) > MAX_BODY_BYTES:
            connection.close()
            raise ValueError("too large")
        with self.lock:
            self.idle.append(connection)
        if body.strip():
            self.give(json.loads(body), message)

    def events(self, answer: http.client.HTTPResponse, message: dict[str, Any]) -> None:
        """Server-sent events; only their data counts."""
        data: list[bytes] = []
        size = 0
        while line := answer.readline(MAX_BODY_BYTES):
            line = line.rstrip(b"\r\n")
            if line.startswith(b"data:"):
                data.append(line[5:].lstrip(b" "))
                size += len(line)
                if size > MAX_BODY_BYTES:
                    raise ValueError("too large")
            elif not line and data:
                text, data, size = b"\n".join(data), [], 0
                if text.strip():
                    self.give(json.loads(text), message)

    def listen(self) -> None:
        """The server's own messages, where it has a stream for them."""
        for _ in range(MAX_LISTENS):
            try:
                headers = {**self.common({}), "Accept": "text/event-stream"}
                connection, answer = self.request("GET", None, headers)
                if answer.status != 200:
                    connection.close()
                    return
                self.events(answer, {})
                connection.close()
            except (OSError, http.client.HTTPException, ValueError, RecursionError):
                pass
            time.sleep(LISTEN_PAUSE_S)

    def common(self, message: dict[str, Any]) -> dict[str, str]:
        headers = dict(self.headers)
        if self.session:
            headers["Mcp-Session-Id"] = self.session
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        modern = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if isinstance(modern, str):  # protocol 2026-07-28: each request says what it is
            headers["MCP-Protocol-Version"] = modern
            headers["Mcp-Method"] = str(message.get("method", ""))
            if isinstance(params.get("name"), str):
                headers["Mcp-Name"] = params["name"]
        elif self.version:
            headers["MCP-Protocol-Version"] = self.version
        return headers

    def request(
        self, method: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = self.kept() or self.connect()
        try:
            path = self.url.path or "/"
            target = f"{path}?{self.url.query}" if self.url.query else path
            connection.request(method, target, body=body, headers=headers)
            return connection, connection.getresponse()
        except (OSError, http.client.HTTPException):
            # Not repeated: the server may have done what was asked.
            connection.close()
            raise

    def kept(self) -> http.client.HTTPConnection | None:
        """A connection that the peer has not closed meanwhile."""
        while True:
            with self.lock:
                if not self.idle:
                    return None
                connection = self.idle.pop()
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def connect(self) -> http.client.HTTPConnection:
        host = self.url.hostname or ""
        is_tls = self.url.scheme == "https"
        port = self.url.port or (443 if is_tls else 80)
        proxy = urlsplit(os.environ.get("HTTPS_PROXY" if is_tls else "HTTP_PROXY", ""))
        near = (proxy.hostname, proxy.port) if proxy.hostname else (host, port)
        if is_tls:
            context = ssl.create_default_context()
            secure = http.client.HTTPSConnection(*near, timeout=TIMEOUT_S, context=context)
            if proxy.hostname:
                secure.set_tunnel(host, port)
            return secure
        plain = http.client.HTTPConnection(*near, timeout=TIMEOUT_S)
        if proxy.hostname:
            plain.set_tunnel(host, port)
        return plain

    def give(self, found: object, message: dict[str, Any]) -> None:
        for each in found if isinstance(found, list) else [found]:
            if message.get("method") == "initialize" and isinstance(each, dict):
                result = each.get("result")
                if isinstance(result, dict):
                    self.version = str(result.get("protocolVersion", ""))[:32]
            self.write(each)

    def fail(self, number: object, text: str) -> None:
        self.write({"jsonrpc": "2.0", "id": number, "error": {"code": FAILED, "message": text}})

    def write(self, message: object) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self.lock:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()


def main(arguments: list[str]) -> None:
    """Start the relay."""
    headers = {}
    for text in arguments[1:]:
        name, _, value = text.partition(":")
        known = re.sub(
            r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}", lambda found: os.environ.get(found[1], ""), value
        )
        headers[name.strip()] = known.strip()
    Relay(arguments[0], headers).run()


if __name__ == "__main__":
    main(sys.argv[1:])
