"""A Messages API on loopback that says what a test wants said, for a real agent to act on."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_USAGE = {"input_tokens": 1, "output_tokens": 1}


@dataclass
class FakeModel:
    """Asks for the tools one after the other, then ends; `results` is what the agent sent back."""

    tools: list[tuple[str, dict[str, Any]]]
    url: str = ""
    results: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that the model has been told of the tools."""
        return json.dumps(self.results)

    def answer(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        told = [
            block
            for message in request.get("messages", [])
            if message["role"] == "user" and isinstance(message["content"], list)
            for block in message["content"]
            if block.get("type") == "tool_result"
        ]
        self.results = max(self.results, told, key=len)
        if not request.get("tools") or len(told) >= len(self.tools):
            return [{"type": "text", "text": "done"}]
        name, given = self.tools[len(told)]
        return [{"type": "tool_use", "id": f"toolu_{len(told)}", "name": name, "input": given}]


def _events(model: object, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": []}
    ends: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**message, **ends, "usage": _USAGE}}
    if block["type"] == "tool_use":
        begun = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
    else:
        begun, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
    yield {"type": "content_block_start", "index": 0, "content_block": begun}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": _stop(block), "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": _USAGE}
    yield {"type": "message_stop"}


def _stop(block: dict[str, Any]) -> str:
    return "tool_use" if block["type"] == "tool_use" else "end_turn"


def _handler(model: FakeModel) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._send(b"{}", "application/json")

        do_HEAD = do_GET

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            if not self.path.startswith("/v1/messages?") and self.path != "/v1/messages":
                self._send(b"{}", "application/json")
                return
            request = json.loads(body)
            (block,) = model.answer(request)
            if request.get("stream"):
                events = _events(request.get("model"), block)
                text = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
                self._send(text.encode(), "text/event-stream")
                return
            message = {"id": "msg_1", "type": "message", "role": "assistant", "content": [block]}
            ends = {"stop_reason": _stop(block), "stop_sequence": None, "usage": _USAGE}
            self._send(json.dumps({**message, **ends}).encode(), "application/json")

        def _send(self, data: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


@contextmanager
def fake_model(*tools: tuple[str, dict[str, Any]]) -> Iterator[FakeModel]:
    """Served until the block ends."""
    model = FakeModel(list(tools))
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(model))
    server.daemon_threads = True
    model.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
