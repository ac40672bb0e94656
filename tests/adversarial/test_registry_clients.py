"""uv, npx and raw requests in cells against the registry proxy: judged or refused (PKG-2, PKG-4).

Version 2.0 of each package was published a moment ago and must not arrive; its file has MARK.
"""

from __future__ import annotations

import json
import os
import shutil
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

import cellwall
from cellwall.core.host_programs import wheel_program
from conftest import need
from registries import NO_QUEUE, serve_registries

pytestmark = [
    pytest.mark.slow,
    pytest.mark.only_on("cold", reason="the registry proxy is outside of both kinds of cells"),
]

UV = Path(__file__).parents[2] / ".tools/uv/bin"
MARK = "ZEBRA-TWO"
YOUNG_FILE = "/packages/zebra_atlas-2.0-py3-none-any.whl"
OLD_FILE = "/packages/zebra_atlas-1.0-py3-none-any.whl"
TOOL = {
    "zebra_tool.py": "def main():\n    print('tool ran')\n",
    "zebra_tool-1.0.dist-info/entry_points.txt": "[console_scripts]\nzebra-tool = zebra_tool:main\n",
}


@pytest.fixture(scope="module")
def registries():
    now = datetime.now(UTC).isoformat()
    with serve_registries() as served:
        served.add_wheel("zebra-atlas", "1.0", requires=["quagga-lines>=1"])
        served.add_wheel(
            "zebra-atlas", "2.0", {"zebra_atlas.py": f"VERSION = '{MARK}'\n"}, uploaded=now
        )
        served.add_wheel("quagga-lines", "1.5")
        served.add_wheel("zebra-tool", "1.0", TOOL)
        script = "#!/usr/bin/env node\nconsole.log('cli ran')\n"
        served.add_npm("zoo-cli", "1.0.0", {"index.js": script}, bin={"zoo-cli": "index.js"})
        served.add_npm("zoo-cli", "2.0.0", {"index.js": f"// {MARK}\n"}, uploaded=now)
        yield served  # fmt: skip


@pytest.fixture(scope="module")
def config(registries, tmp_path_factory):
    path = tmp_path_factory.mktemp("clients") / "config.toml"
    path.write_text(
        f'[packages]\nwithout_feed = "allow"\npypi_url = "{registries.base}"\n'
        f'pypi_file_urls = []\nnpm_url = "{registries.base}/npm"\n{NO_QUEUE}'
    )
    path.chmod(0o600)
    return str(path)


@pytest.fixture(scope="module")
def run(registries, config):
    def in_cell(script, *names, **options):
        registries.seen.clear()
        return cellwall.run_command(
            ["sh", "-c", script.replace("{base}", registries.base)],
            registries=list(names or ("pypi",)), config=config, timeout=120, **options,
        )  # fmt: skip

    return in_cell


def downloads(registries):
    return sorted(path for _, path in registries.seen if path in registries.files)


@pytest.fixture(scope="module")
def uv():
    need((UV / "uv").exists(), "uv in .tools")
    return {"workspace": f"{UV}:ro"}


UV_INSTALLS = """
cd /tmp; export UV_CACHE_DIR=/tmp/cache; PATH=$PATH:/workspace
uv pip install -q --system --target /tmp/t zebra-atlas; cat /tmp/t/zebra_atlas.py
mkdir p; cd p; uv init -q --bare .; uv add -q zebra-atlas; grep -c files.pythonhosted.org uv.lock
uv export -q --no-emit-project > r.txt; uv venv -q --clear; uv pip sync -q --require-hashes r.txt
.venv/bin/python -c 'import zebra_atlas as z; print(z.VERSION)'
uvx -q zebra-tool
"""


@pytest.mark.requirement("PKG-1", "PKG-4")
def test_uv_installs_without_any_setting_and_the_second_cell_takes_no_download(run, registries, uv):
    first = run(UV_INSTALLS, **uv)
    assert first.stdout.split("\n") == ["VERSION = '1.0'", "2", "1.0", "tool ran", ""], first.stderr
    assert downloads(registries) == [
        "/packages/quagga_lines-1.5-py3-none-any.whl",
        OLD_FILE,
        "/packages/zebra_tool-1.0-py3-none-any.whl",
    ]
    second = run(UV_INSTALLS, **uv)
    assert (second.stdout, downloads(registries)) == (first.stdout, [])


INSTALL = (
    "UV_CACHE_DIR=/tmp/cache UV_HTTP_RETRIES=0 "
    "/workspace/uv pip install -v --system --target /tmp/{0} zebra-atlas && ls /tmp/{0}"
)


@pytest.mark.requirement("PKG-1", "PKG-2")
def test_a_copy_in_the_cache_of_uv_is_used_only_while_the_package_is_allowed(
    registries, config, uv, tmp_path, monkeypatch
):
    policy = tmp_path / "cellwall" / "policy.toml"
    policy.parent.mkdir()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with cellwall.Sandbox.create(registries=["pypi"], config=config, timeout=120, **uv) as sbx:
        first = sbx.commands.run(INSTALL.format("one"))
        second = sbx.commands.run(INSTALL.format("two"))
        policy.write_text('[permissions]\ndeny = ["Install(pypi:zebra-atlas)"]\n')
        policy.chmod(0o600)
        third = sbx.commands.run(INSTALL.format("three"))
    assert (first.exit_code, second.exit_code) == (0, 0), second.stderr
    assert "zebra_atlas.py" in second.stdout
    asked = f"Found not-modified response for: https://files.pythonhosted.org{OLD_FILE}"
    assert asked in second.stderr
    # On the record of the command that brought the bytes into the sandbox.
    assert sorted(each.name for each in first.packages) == ["quagga-lines", "zebra-atlas"]
    assert (third.exit_code, "zebra_atlas" in third.stdout) == (1, False), third


ASK = """
cd /tmp; export RUST_LOG=uv=trace
ask() { $1 python find --no-config --no-project --system 2>&1 | grep -o 'skipping query\\|Querying'; }
ask /workspace/uv; rm -r .cache; ask /workspace/uv
find .cache/uv/interpreter-* -name '*.msgpack' -exec sh -c 'echo forged > $1' sh {} ';'
"""


@pytest.mark.requirement("PKG-3")
def test_uv_has_answers_about_python_and_no_cell_changes_those_of_the_next(run):
    own_uv = Path(wheel_program("uv", "uv")).parent
    for _ in range(2):
        # The second answer is the control: without the entries uv asks.
        found = run(ASK, workspace=f"{own_uv}:ro")
        assert found.stdout.split("\n") == ["skipping query", "Querying", ""], found.stderr
    (kept,) = Path(os.environ["CELLWALL_HOME"], "programs").glob("python-*.json")
    assert b"Zm9yZ2Vk" not in kept.read_bytes()  # "forged"


UV_ATTACKS = """
cd /tmp; export UV_CACHE_DIR=/tmp/cache UV_HTTP_RETRIES=0; PATH=$PATH:/workspace
try() { "$@" 2>&1; grep -rlq ZEBRA-TWO /tmp/t /tmp/cache && echo "GOT IN: $*"; }
install="uv pip install -q --system --target /tmp/t --reinstall"
try $install --index-url {base}/simple zebra-atlas
try $install --default-index {base}/simple --allow-insecure-host 127.0.0.1 zebra-atlas==2.0
try $install --extra-index-url {base}/simple --index-strategy unsafe-best-match zebra-atlas==2.0
try $install --find-links {base}/packages zebra-atlas==2.0
try env UV_INDEX_URL={base}/simple $install zebra-atlas==2.0
try env UV_DEFAULT_INDEX=https://test.pypi.org/simple $install zebra-atlas==2.0
try $install 'zebra-atlas @ {base}/packages/zebra_atlas-2.0-py3-none-any.whl'
try $install 'zebra-atlas @ https://files.pythonhosted.org/packages/zebra_atlas-2.0-py3-none-any.whl'
try $install 'zebra-atlas @ git+https://github.com/example/zebra.git'
try $install -e 'git+https://pypi.org/simple/zebra-atlas#egg=zebra-atlas'
try $install --pre --exclude-newer 2999-01-01 'zebra-atlas>=2'
printf '[[index]]\\nurl = "{base}/simple"\\ndefault = true\\n' > uv.toml
try uv --config-file uv.toml pip install -q --system --target /tmp/t zebra-atlas==2.0
rm uv.toml; $install zebra-atlas && cat /tmp/t/zebra_atlas.py
"""


@pytest.mark.requirement("PKG-2", "PKG-4")
def test_no_setting_of_uv_leads_past_the_proxy(run, registries, uv):
    found = run(UV_ATTACKS, **uv)
    assert "GOT IN" not in found.stdout
    assert found.stdout.endswith("VERSION = '1.0'\n"), found.stdout + found.stderr
    assert YOUNG_FILE not in downloads(registries)


NPM_ATTACKS = """
cd /tmp; export npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
export npm_config_fetch_retries=0
try() { "$@" 2>&1; grep -rlq ZEBRA-TWO /tmp/node_modules ~root/.npm $HOME && echo "GOT IN: $*"; }
npx -y zoo-cli
try npm install zoo-cli@2.0.0
try npm install --registry={base}/npm zoo-cli@2.0.0
try npm install {base}/npm/zoo-cli/-/zoo-cli-2.0.0.tgz
try npm install https://registry.npmjs.org/zoo-cli/-/zoo-cli-2.0.0.tgz
try npm install alias@npm:zoo-cli@2.0.0
try npm install git+https://github.com/example/zebra.git
printf 'registry={base}/npm\\n' > .npmrc
try npm install zoo-cli@2.0.0
rm .npmrc; npm publish 2>&1 | grep -c 'npm error'; rm -f package*.json
npm install -s alias@npm:zoo-cli && node node_modules/alias/index.js
"""


@pytest.mark.requirement("PKG-2", "PKG-4")
def test_npx_runs_an_allowed_package_and_no_setting_of_npm_leads_past_the_proxy(run, registries):
    need(shutil.which("npx"), "npx")
    found = run(NPM_ATTACKS, "npm")
    assert "GOT IN" not in found.stdout
    assert found.stdout.startswith("cli ran\n"), found.stdout + found.stderr
    assert found.stdout.endswith("cli ran\n"), found.stdout + found.stderr
    assert downloads(registries) == ["/npm/zoo-cli/-/zoo-cli-1.0.0.tgz"]


RAW_REQUESTS = """
import json, socket, ssl, sys
OLD, YOUNG = "%s", "%s"
FILES, DIGEST = "files.pythonhosted.org", sys.argv[1]
context = ssl.create_default_context()

def connect(target=f"{FILES}:443", name=FILES, protocols=(), direct=None):
    if direct:
        sock = socket.create_connection(direct, 10)
    else:
        sock = socket.create_connection(("127.0.0.1", 3128), 10)
        sock.sendall(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
        if b" 200 " not in sock.recv(4096):
            raise ConnectionError("refused")
    if protocols:
        context.set_alpn_protocols(list(protocols))
    context.check_hostname = name == FILES
    return context.wrap_socket(sock, server_hostname=name)

def ask(sock, head):
    sock.settimeout(10)
    sock.sendall(head.encode("latin-1"))
    data = b""
    while chunk := sock.recv(65536):
        data += chunk
    return data

def plain(head):
    return ask(socket.create_connection(("127.0.0.1", 3128), 10), head)

def get(path, host=FILES, version="1.1", method="GET", more="", **how):
    head = f"{method} {path} HTTP/{version}\\r\\nHost: {host}\\r\\nConnection: close\\r\\n{more}\\r\\n"
    return ask(connect(**how), head)

def socks(host, port):
    sock = socket.create_connection(("127.0.0.1", 3128), 10)
    name = host.encode()
    sock.sendall(b"\\x05\\x01\\x00"); sock.recv(2)
    sock.sendall(b"\\x05\\x01\\x00\\x03" + bytes([len(name)]) + name + port.to_bytes(2, "big"))
    if sock.recv(64)[1]:
        raise ConnectionError("refused")
    return ask(context.wrap_socket(sock, server_hostname=FILES),
               f"GET {YOUNG} HTTP/1.1\\r\\nHost: {FILES}\\r\\nConnection: close\\r\\n\\r\\n")

controls = {
    "the old file": lambda: get(OLD),
    "without a proxy": lambda: get(OLD, direct=(FILES, 443)),
    "without TLS": lambda: plain(f"GET http://{FILES}{OLD} HTTP/1.1\\r\\nHost: {FILES}\\r\\nConnection: close\\r\\n\\r\\n"),
    "another case of the host": lambda: get(OLD, host=FILES.upper()),
    "a part": lambda: get(OLD, more="Range: bytes=2-3\\r\\n"),
    "a copy": lambda: get(OLD, more=f'If-None-Match: "sha256-{DIGEST}"\\r\\n'),
}
attacks = {
    "the young file": lambda: get(YOUNG),
    "HTTP/1.0": lambda: get(YOUNG, version="1.0"),
    "no proxy": lambda: get(YOUNG, direct=(FILES, 443)),
    "absolute form": lambda: get(f"https://{FILES}{YOUNG}"),
    "absolute form without TLS": lambda: plain(f"GET http://{FILES}{YOUNG} HTTP/1.1\\r\\nHost: {FILES}\\r\\n\\r\\n"),
    "absolute https form to the proxy": lambda: plain(f"GET https://{FILES}{YOUNG} HTTP/1.1\\r\\nHost: {FILES}\\r\\n\\r\\n"),
    "another port": lambda: get(YOUNG, target=f"{FILES}:8443"),
    "port 80": lambda: get(YOUNG, target=f"{FILES}:80"),
    "an address": lambda: get(YOUNG, target="151.101.1.63:443"),
    "a decimal address": lambda: get(YOUNG, target="2543124799:443"),
    "a NUL byte": lambda: get(YOUNG, target=f"evil.example\\0.{FILES}:443"),
    "a suffix": lambda: get(YOUNG, target=f"evil{FILES}:443"),
    "another name in SNI": lambda: get(YOUNG, name="pypi.org"),
    "another host in the header": lambda: get(YOUNG, host="evil.example"),
    "two host headers": lambda: get(YOUNG, more="Host: evil.example\\r\\n"),
    "a trailing dot": lambda: get(YOUNG, target=f"{FILES}.:443"),
    "a Cyrillic letter": lambda: get(YOUNG, target="xn--yp-emc0a.org:443"),
    "encoded": lambda: get(YOUNG.replace("2.0", "%%32%%2e0")),
    "encoded twice": lambda: get(YOUNG.replace("2.0", "%%2532.0")),
    "a doubled slash": lambda: get("/" + YOUNG),
    "dots": lambda: get("/packages/../packages" + YOUNG[9:]),
    "dots below an allowed file": lambda: get(OLD + "/.." + YOUNG[9:]),
    "a NUL byte in the path": lambda: get(OLD + "%%00" + YOUNG),
    "a parameter": lambda: get(OLD + ";" + YOUNG),
    "a fragment": lambda: get(YOUNG + "#" + OLD),
    "capitals": lambda: get(YOUNG.upper()),
    "metadata": lambda: get(YOUNG + ".metadata"),
    "a range": lambda: get(YOUNG, more="Range: bytes=0-100\\r\\n"),
    "the end": lambda: get(YOUNG, more="Range: bytes=-100\\r\\n"),
    "the rest of an allowed file": lambda: get(YOUNG, more=f'Range: bytes=0-\\r\\nIf-Range: "sha256-{DIGEST}"\\r\\n'),
    "a copy of any file": lambda: get(YOUNG, more='If-None-Match: *\\r\\n'),
    "a copy of an allowed file": lambda: get(YOUNG, more=f'If-None-Match: "sha256-{DIGEST}"\\r\\n'),
    "another method": lambda: get(YOUNG, method="POST"),
    "a rewritten method": lambda: get(YOUNG, method="POST", more="X-HTTP-Method-Override: GET\\r\\n"),
    "a rewritten path": lambda: get(OLD, more=f"X-Original-URL: {YOUNG}\\r\\nX-Forwarded-Host: evil\\r\\n").replace(b"zebra_atlas.py", b""),
    "a body": lambda: get(YOUNG, more="Content-Length: 0\\r\\nTransfer-Encoding: chunked\\r\\n"),
    "smuggled": lambda: get(OLD, more=f"Content-Length: {60 + len(YOUNG)}\\r\\n\\r\\nGET {YOUNG} HTTP/1.1\\r\\nHost: {FILES}\\r\\n").replace(b"x", b""),
    "HTTP/2 offered": lambda: get(YOUNG, protocols=("h2", "http/1.1")),
    "SOCKS": lambda: socks(FILES, 443),
    "SOCKS to another port": lambda: socks(FILES, 8080),
    "SOCKS with a NUL byte": lambda: socks(FILES + "\\0.example", 443),
    "the older API": lambda: get("/pypi/zebra-atlas/2.0/json", host="pypi.org", target="pypi.org:443", name="pypi.org"),
}

def result(call):
    try:
        return call().decode("latin-1")
    except Exception as error:
        return type(error).__name__

print(json.dumps([{name: result(call)[:100_000] for name, call in table.items()} for table in (controls, attacks)]))
""" % (OLD_FILE, YOUNG_FILE)  # noqa: UP031  # the script is full of braces


@pytest.mark.requirement("PKG-2", "PKG-4")
def test_no_request_gets_a_file_that_the_filtered_index_does_not_name(run, registries, tmp_path):
    (tmp_path / "ask.py").write_text(RAW_REQUESTS)
    digest = registries.pypi["zebra-atlas"]["files"][0]["hashes"]["sha256"]
    found = run(f"python3 /workspace/ask.py {digest}", workspace=f"{tmp_path}:ro")
    controls, attacks = json.loads(found.stdout)
    part, copy = controls.pop("a part"), controls.pop("a copy")
    assert {name: text.partition("\r\n")[0] for name, text in controls.items()} == dict.fromkeys(
        controls, "HTTP/1.1 200 OK"
    )
    old = registries.files[OLD_FILE].decode("latin-1")
    assert part.partition("\r\n")[0] == "HTTP/1.1 206 Partial Content"
    assert part.partition("\r\n\r\n")[2] == old[2:4]
    assert copy.partition("\r\n")[0] == "HTTP/1.1 304 Not Modified"
    assert copy.partition("\r\n\r\n")[2] == ""
    young = registries.files[YOUNG_FILE].decode("latin-1")
    got = [name for name, text in attacks.items() if young[:60] in text and young[-60:] in text]
    assert got == []
    # None but the two that ask for the allowed file has an answer with content.
    answered = {
        name
        for name, text in attacks.items()
        if any(f" {code} " in text for code in (200, 206, 304))
    }
    assert answered <= {"a rewritten path", "smuggled"}
    assert YOUNG_FILE not in downloads(registries)
    assert len(attacks) > 30


def _answers(url):
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return reply.status == 200
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.requirement("PKG-1")
def test_a_well_known_package_of_each_real_registry_is_installed(tmp_path):
    need(_answers("https://pypi.org/simple/six/"), "access to pypi.org")
    path = tmp_path / "config.toml"
    path.write_text('[packages]\nwithout_feed = "allow"\n')
    path.chmod(0o600)
    options = {"config": str(path), "timeout": 120}
    script = "pip install -q --target /tmp/t six && PYTHONPATH=/tmp/t python3 -c 'import six; print(six.__name__)'"
    found = cellwall.run_command(["sh", "-c", script], registries=["pypi"], **options)
    assert found.stdout == "six\n", found.stderr
    need(shutil.which("npm") and _answers("https://registry.npmjs.org/is-odd"), "access to npm")
    script = "cd /tmp && npm install -s is-odd && node -p 'require(\"is-odd\")(3)'"
    found = cellwall.run_command(["sh", "-c", script], registries=["npm"], **options)
    assert found.stdout == "true\n", found.stderr


@pytest.mark.long
@pytest.mark.requirement("PKG-1", "PKG-2")
def test_pnpm_adds_an_allowed_package(run, registries, tmp_path):
    need(shutil.which("npm"), "npm")
    fetched = os.system(f"cd {tmp_path} && npm install -s pnpm@10 >/dev/null 2>&1")
    need(fetched == 0, "pnpm from the registry of npm")
    pnpm = "node /workspace/node_modules/pnpm/bin/pnpm.cjs"
    script = f"cd /tmp; {pnpm} add zoo-cli >&2; node node_modules/zoo-cli/index.js; {pnpm} add zoo-cli@2.0.0 >&2; cat node_modules/zoo-cli/package.json"
    found = run(script, "npm", workspace=f"{tmp_path}:ro")
    assert found.stdout.startswith("cli ran\n"), found.stderr
    assert '"1.0.0"' in found.stdout
