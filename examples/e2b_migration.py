"""E2B migration: a program for E2B's SDK runs in sandboxes of Cellwall, unchanged.

    cellwall user add ann --role user          # once
    cellwall serve                             # in another terminal
    export E2B_API_KEY=$(cellwall token create --user ann --ttl 1h)
    export E2B_API_URL=http://127.0.0.1:8750/e2b E2B_SANDBOX_URL=http://127.0.0.1:8750/e2b
    pip install e2b-code-interpreter
    python examples/e2b_migration.py

Nothing below is Cellwall's: the three variables are the whole migration. What it shows:

- code with state, files, commands with output as it comes, a background process;
- what differs is an exception of the SDK: paths outside of the sandbox's directories are refused;
- the sandbox has no network unless `network={"allow_out": [...]}` names hosts.
"""

from __future__ import annotations

from e2b import InvalidArgumentException
from e2b_code_interpreter import Sandbox


def main() -> None:
    """A typical program: data in, code, commands, results out."""
    with Sandbox.create(timeout=120) as sandbox:
        sandbox.files.write("/home/user/data.csv", "tea,cents\nassam,320\nsencha,410\n")
        sandbox.run_code("import csv\nrows = list(csv.DictReader(open('data.csv')))")
        mean = sandbox.run_code("sum(int(row['cents']) for row in rows) / len(rows)")
        print("mean price:", mean.text)
        sandbox.commands.run(
            "wc -l data.csv", on_stdout=lambda text: print("command:", text.strip())
        )

        server = sandbox.commands.run("python3 -m http.server 8000", background=True)
        print("in the background:", [each.cmd for each in sandbox.commands.list()] != [])
        server.kill()

        failed = sandbox.run_code("rows[7]")
        print("error:", failed.error.name, "-", failed.error.value)
        outside = sandbox.run_code(
            "import urllib.request\nurllib.request.urlopen('https://collector.example/')"
        )
        print("network:", outside.error.name)
        try:
            sandbox.files.read("/opt/data.csv")
        except InvalidArgumentException as refused:
            print("refused:", refused)


if __name__ == "__main__":
    main()
