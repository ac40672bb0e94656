"""Packages that an agent installs: judged by name, version and content before they are there.

    cellwall packages feed update                  # once: the feed of malicious packages
    python examples/package_install.py [NAME]      # default: humanize

What it shows:

- a package by name, installed from the registry proxy; the sandbox itself gets no network;
- the file that was installed, with its hash;
- a misspelt name, as models write them, is a question to you, with the name that is meant;
- options of an installer, which could name another index, are refused;
- plain `pip install` inside fails: this sandbox was not given a registry.
"""

from __future__ import annotations

import sys
from typing import Any

import cellwall


def ask_person(question: Any) -> str:
    """Shows the question to you, on this terminal."""
    print("\n".join(f"  ? {line}" for line in question.shown.splitlines()))
    return "once" if input("  [y/N] ").lower() == "y" else "deny"


def main() -> None:
    """Install what a model asks for, good and bad."""
    name = sys.argv[1] if len(sys.argv) > 1 else "humanize"
    # A scripted model. A real one names packages that it remembers, or believes to remember.
    wishes = [name, "reqeusts", "--index-url=https://evil.example/simple"]
    with cellwall.Sandbox.create(timeout=120, on_question=ask_person) as sandbox:
        for wish in wishes:
            print(f"install {wish}")
            try:
                done = sandbox.packages.install(wish)
            except cellwall.CellwallError as error:
                print(f"  refused: {error}")
                continue
            for each in done.installed:
                print(f"  installed: {each.file} {each.digest}")
            if done.failure:
                print(f"  refused: {done.failure}")
        imported = sandbox.run_code(f"import {name}\n{name}.__name__")
        print(f"import {name}: {imported.status}")
        plain = sandbox.commands.run("pip install reqeusts", timeout=60)
        print(f"plain pip: exit code {plain.exit_code}")
        for finding in plain.outcome.findings:
            print(f"  {finding.message}")


if __name__ == "__main__":
    main()
