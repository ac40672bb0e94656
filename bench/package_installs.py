"""The second install of a tree of 20 packages, beside uv from its own warm cache.

Three ways into a new sandbox, each with a judgement of each package: uv inside, through the
registry proxy, without packages in its cache (and then once more, with them); a sandbox that is
created with the packages, which shares the tree of the sandbox before; and an installation by
Cellwall in a live sandbox, which copies the tree of the installation before.
uv outside: asks the registry about each entry of its warm cache, takes
the cache as it is (offline), or has none (cold). The registry has TLS, as the public ones do: the
start of TLS in uv takes 50 ms.
"""

from __future__ import annotations

import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import trustme

import cellwall
from cellwall.core.host_programs import wheel_program

ROOT = Path(__file__).parents[1]
UV = Path(wheel_program("uv", "uv"))
"""Of the version with which Cellwall installs; inside and outside."""
PACKAGES = 20
_AUTHORITY = "ca.pem"


def measure_installs(rounds: int) -> dict[str, Any]:
    """In turns: other load of the machine meets all in the same way."""
    sys.path.insert(0, str(ROOT / "tests"))
    from registries import serve_registries  # noqa: PLC0415  # of the tests

    with tempfile.TemporaryDirectory(prefix="cellwall-installs-") as folder:
        authority, context = _make_certificate()
        authority.cert_pem.write_to_path(f"{folder}/{_AUTHORITY}")
        # Cellwall's own requests trust public authorities only, and its second install makes none.
        with serve_registries() as plain, serve_registries(tls=context) as served:
            for each in (plain, served):
                _add_tree(each)
            config, url = _write_config(folder, plain.base), served.base
            taken = [
                {
                    "direct_warm": _install_directly(folder, url),
                    "direct_offline": _install_directly(folder, url, "--offline"),
                    "direct_cold": _install_directly(folder, url, "--no-cache"),
                    "direct_warm_without_tls": _install_directly(folder, plain.base),
                    **_install_inside(config),
                    "template": _install_as_template(config),
                    "live_sandbox": _install_in_live_sandbox(config),
                }
                for _ in range(rounds + 1)
            ][1:]
    seconds = {name: statistics.median(each[name] for each in taken) for name in taken[0]}

    def over(way: str, other: str) -> float:
        return round(seconds[way] / seconds[other], 2)

    return {
        **{f"install_20_{name}_ms": round(taken * 1000) for name, taken in seconds.items()},
        "install_20_second_over_direct": over("second", "direct_warm"),
        "install_20_second_over_direct_cold": over("second", "direct_cold"),
        "install_20_same_sandbox_over_direct": over("same_sandbox", "direct_warm"),
        "install_20_second_over_direct_without_tls": over("second", "direct_warm_without_tls"),
        "install_20_live_sandbox_over_direct": over("live_sandbox", "direct_warm"),
        "install_20_template_over_direct": over("template", "direct_warm"),
        "install_20_template_over_direct_offline": over("template", "direct_offline"),
    }


def _make_certificate() -> tuple[trustme.CA, ssl.SSLContext]:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return authority, context


def _add_tree(served: Any) -> None:
    names = [f"zebra-part-{number}" for number in range(PACKAGES)]
    served.add_wheel("zebra-tree", "1.0", requires=names[1:], described=True)
    for name in names[1:]:
        module = {f"{name.replace('-', '_')}/m{n}.py": "x = 1\n" * 200 for n in range(20)}
        served.add_wheel(name, "1.0", module, described=True)


def _install_directly(folder: str, base: str, *words: str) -> float:
    target = tempfile.mkdtemp(dir=folder)
    command = [UV, "pip", "install", "-q", "--target", target, *words]
    if "--no-cache" not in words:
        command += ["--cache-dir", f"{folder}/cache"]
    index = ["--index-url", f"{base}/simple", "--no-config", "zebra-tree"]
    started = time.perf_counter()
    subprocess.run(
        [*command, *index],
        check=True,
        env=os.environ | {"SSL_CERT_FILE": f"{folder}/{_AUTHORITY}"},
    )
    return time.perf_counter() - started


def _write_config(folder: str, base: str) -> str:
    path = os.path.join(folder, "config.toml")
    with open(path, "w") as written:
        written.write(
            f'[packages]\nwithout_feed = "allow"\npypi_url = "{base}"\npypi_file_urls = []\n'
        )
    os.chmod(path, 0o600)
    return path


_SCRIPT = """
cd /tmp
for target in first again; do
  s=$(date +%s%N)
  /workspace/uv pip install -q --system --target /tmp/$target zebra-tree || exit 1
  echo $(( $(date +%s%N) - s ))
done
"""


def _install_inside(config: str) -> dict[str, float]:
    """In a new sandbox, which has nothing but the registry proxy, and again in the same one, where
    uv has a cache of its own. Without the start of the sandbox."""
    found = cellwall.run_command(
        ["sh", "-c", _SCRIPT],
        registries=["pypi"],
        config=config,
        workspace=f"{UV.parent}:ro",
        timeout=120,
    )
    found.outcome.raise_for_status()
    first, again = (int(each) / 1e9 for each in found.stdout.split())
    return {"second": first, "same_sandbox": again}


def _install_as_template(config: str) -> float:
    """A new sandbox with the packages, until a program in it has ended."""
    started = time.perf_counter()
    found = cellwall.run_command(
        ["/bin/sh", "-c", "test -e /opt/packages/zebra_part_19/m19.py"],
        packages=["zebra-tree"],
        config=config,
        timeout=120,
    )
    found.outcome.raise_for_status()
    if found.exit_code != 0:
        raise RuntimeError("the packages are not in the sandbox")
    return time.perf_counter() - started


def _install_in_live_sandbox(config: str) -> float:
    with cellwall.Sandbox.create(config=config) as sandbox:
        sandbox.commands.run("true").outcome.raise_for_status()
        started = time.perf_counter()
        sandbox.packages.install("zebra-tree").raise_for_status()
        return time.perf_counter() - started
