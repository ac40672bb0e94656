"""Human approval over HTTP: an agent waits for a person before it deploys.

In a clone, with two accounts and a service that asks about `./deploy.sh`:

    cellwall user add bot --role user
    cellwall user add ann --role administrator
    echo "policy.files = ['$PWD/examples/http_approval/policy.toml']" > asking.toml
    cellwall serve --config asking.toml                 # in another terminal
    export BOT_TOKEN=$(cellwall token create --user bot --ttl 1h)
    export ANN_TOKEN=$(cellwall token create --user ann --ttl 1h)
    python examples/http_approval/agent.py [URL]        # default: http://127.0.0.1:8750

What it shows:

- what a rule allows runs at once, and what a rule asks about waits;
- the person sees the command, the rule and who asks. The dashboard shows the same question;
- the agent's own token cannot answer it;
- after a no, or without an answer in time, the command is denied and nothing has run.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

# A scripted model. A real one gets each answer and names the next command.
STEPS = [
    "printf 'echo deployed to $1' > deploy.sh && chmod +x deploy.sh",
    "./deploy.sh production",
]


def client(token: str) -> httpx.Client:
    """Somebody who uses the service."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8750"
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120)


def answer_questions(bot: httpx.Client, ann: httpx.Client) -> None:
    """The bot tries to answer for itself; then ann is shown the question and types y or n."""
    for question in ann.get("/v1/approvals").json()["approvals"]:
        print("\n".join(f"  ? {line}" for line in question["shown"].splitlines()))
        path = f"/v1/approvals/{question['id']}"
        own = bot.post(path, json={"answer": "once"})
        print(f"  the bot says yes: {own.status_code} {own.json()['error']['code']}")
        says = "once" if input("  ann [y/N] ").lower() == "y" else "deny"
        ann.post(path, json={"answer": says}).raise_for_status()


def main() -> None:
    """Run each step as the bot; what waits for a person is answered by ann."""
    with client(os.environ["BOT_TOKEN"]) as bot, client(os.environ["ANN_TOKEN"]) as ann:
        session = bot.post("/v1/sessions", json={"timeout": 60}).raise_for_status().json()["id"]
        path = f"/v1/sessions/{session}/commands"
        with ThreadPoolExecutor() as threads:
            for command in STEPS:
                print(f"$ {command}")
                running = threads.submit(bot.post, path, json={"command": command})
                while not running.done():
                    answer_questions(bot, ann)
                    time.sleep(0.1)
                done = running.result().json()
                print(f"  {done['status']} {done['stdout']}".rstrip())
                if done["error"]:
                    print(f"  {done['error']['code']}: {done['error']['message']}")
        bot.delete(f"/v1/sessions/{session}")


if __name__ == "__main__":
    main()
