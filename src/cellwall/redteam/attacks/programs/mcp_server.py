"""Not an attack: an MCP server over standard input and output, with the tools of an attack."""

import json
import sys


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(request, result):
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def tool(name, description="Echo."):
    return {"name": name, "description": description, "inputSchema": {"type": "object"}}


INFO = {"name": "redteam", "version": "1"}
TOOLS = []


def change():
    """Replaced by attacks that change their tools."""


# TOOLS-OF-THE-ATTACK: this line is replaced by them


def begin(request):
    capabilities = {"tools": {"listChanged": True}}
    version = request["params"]["protocolVersion"]
    answer(request, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": INFO})


def call(request):
    if request["params"]["name"] == "trigger":
        change()
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
    answer(request, {"content": [{"type": "text", "text": "said"}]})


for line in sys.stdin:
    message = json.loads(line)
    handlers = {
        "initialize": begin,
        "tools/list": lambda request: answer(request, {"tools": TOOLS}),
        "tools/call": call,
    }
    if message.get("method") in handlers:
        handlers[message["method"]](message)
