"""Commands that install packages are found by their words, wherever they stand in a text."""

from __future__ import annotations

import pytest

from cellwall.policy.engine import registries_in

PYPI = [
    *("pip install x", "pip3 install x", "pip3.11 install -r r.txt", "pip -q install x"),
    *("pip download x", "pip wheel x", "/usr/bin/pip install x", "p\\ip ins''tall x"),
    *(
        "python -m pip install x",
        "python3 -Im pip install x",
        "venv/bin/python3.11 -I -m pip install x",
    ),
    *("python -mpip install x", "pypy3 -m pip install x", "python -W error -m pip install x"),
    *("uv add x", "uv pip install x", "uv sync", "uv tool install x", "uv run pytest", "uvx ruff"),
    *("pipx run black", "pipx install x", "poetry add x", "pdm add x", "python -m pipx run x"),
    # wrappers, scripts and code
    *("env A=1 pip install x", "sudo -u a pip install x", "command pip install x"),
    *("bash -c 'pip install x'", "nohup pip install x &", "timeout 60 nice pip install x"),
    *(
        "xargs pip install < names",
        "echo x | xargs -n1 pip install",
        "find . -exec pip install {} ';'",
    ),
    *("if true; then pip install x; fi", "f() { pip install x; }; f", "(cd a && pip install .)"),
    *("python -c 'import os; os.system(\"pip install x\")'", "cat <<E | bash\npip install x\nE"),
    "pip $WHAT x",
    # the same programs by other names
    *(
        "python3 /usr/bin/pip install x",
        "python venv/bin/pip3.11 install x",
        "python pip.pyz install x",
    ),
    *("python -m pip.__main__ install x", "python /usr/lib/python3/dist-packages/pip install x"),
    *("pipenv install x", "python -m pipenv sync", "rye add x", "hatch env create", "pip-sync"),
    *("python setup.py develop", "python -m build", "uv build"),
]
NPM = [
    *("npm install", "npm i x", "npm add x", "npm isntall x", "npm ci", "npm exec tsc"),
    *("npm --prefix a install x", "npx tsc", "pnpm add x", "pnpm dlx x", "pnpx x", "yarn"),
    *("yarn add x", "bun add x", "bunx x", "npm create vite", "bash -lc 'cd a; npm i'"),
    *(
        "node /usr/bin/npm i x",
        "node lib/node_modules/npm/bin/npm-cli.js install x",
        "node a/pnpm.cjs add x",
    ),
    *(
        "node a/npx-cli.js x",
        "corepack pnpm add x",
        "deno add npm:x",
        "volta install x",
        "npm audit fix",
    ),
    *("yarn --frozen-lockfile", "npm dedupe", "cnpm i x"),
]
NONE = [
    *("pip list", "pip --version", "npm test", "npm run build", "uv --version", "pipx list"),
    *("echo pip install x", "git commit -m 'pip install x'", "grep -r 'npm install' ."),
    *("python script.py pip install", "python -m pytest", "make install", "yarn test", "ls"),
    *(
        "node build.js",
        "python build.py",
        "./build x",
        "node server.js install",
        "npm audit",
        "node -e 1",
    ),
    *(
        "python setup.py --version",
        "python tools/run.py install",
        "hatch run test",
        "deno run a.ts",
    ),
    *("python -W -m pip", "python", "python -m", "$(echo pip) install x", "'", "", "\0"),
]


@pytest.mark.requirement("PKG-2")
@pytest.mark.parametrize(
    ("text", "registries"),
    [
        *((text, {"pypi"}) for text in PYPI),
        *((text, {"npm"}) for text in NPM),
        *((text, set()) for text in NONE),
        ("cd a && npm add x; pip download y", {"npm", "pypi"}),
    ],
)
def test_the_registries_of_a_text(text, registries):
    assert registries_in(text, cwd="/home/me/a", home="/home/me") == registries
