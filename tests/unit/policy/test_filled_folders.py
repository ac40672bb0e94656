"""Files whose names stand nowhere in a text are judged where they come to lie."""

from __future__ import annotations

import pytest

from cellwall.core.verdict import Verdict
from unit.policy.policies import policy

pytestmark = pytest.mark.requirement("POL-12", "POL-4")

HOME, CWD = "/home/ann", "/home/ann/app"
EVERYTHING = policy(allow=["Bash(*)", "Read(//**)", "Write(//**)"])

LINKS = [
    "ln -s .netrc ~/y; cat ~/y",
    "ln -s ../../../.netrc sub/y; cat sub/y",
    "ln -sf ../../../.netrc sub/y",
    "ln --symbolic ../../../.netrc sub",
    "ln -st sub ../../../.netrc",
    "cp -s ../../../.netrc sub/y",
    # From the folder at hand, and from that of the link, it leads nowhere; from where it goes, it does.
    "ln -s .netrc y; cp -P y ~/z; cat ~/z",
    "ln -s ../.netrc sub/y; mv sub ~/sub; cat ~/sub/y",
]
HARMLESS_LINKS = [
    "ln -s ../lib sub/lib && cat sub/lib/x",
    "ln -s a.txt b; mv b c",
    "ln -s /opt/tool bin/tool",
]
FILLED = [
    "cp -r sub/. ~",
    "cp -a . ~",
    "cp -rT sub ~",
    "cp -RT sub ../..",
    "rsync -a sub/ ~/",
    "cd ~; tar xf work/app/a.tar",
    "cd ../..; tar xf work/app/a.tar",
    "cd ../.. && unzip work/app/a.zip",
    "cd ~ && 7z x work/app/a.7z",
    "cd ~; patch -p0 -i work/app/p",
    "patch -d ~ -i p",
    "pax -rw . ~",
    "git --work-tree=$HOME checkout .",
    "git --work-tree ../.. restore .",
    "git checkout-index -a --prefix=../../",
    "git -C ~ checkout .",
    "cd ~; git apply work/app/p",
    "git clone /tmp/r .git/modules/x",
    "git clone https://example.com/.vscode",
    "git clone https://example.com/a/.claude.git",
    "git worktree add .git/modules/x",
    "git submodule add https://example.com/a .vscode",
    "tar xPf a.tar",
    "tar -x --absolute-names -f a.tar",
    "cpio -idm < a.cpio",
    "rpm2cpio a.rpm | cpio -id",
    "dpkg-deb -x a.deb ~",
    "dpkg -x a.deb .git",
]
HARMLESS_FILLED = [
    "cp -r sub/. out",
    "cp -r sub ~/x/",
    "cp a.txt ~/",
    "rsync -a sub/ out/",
    "tar xf a.tar",
    "cd sub && tar xf ../a.tar",
    "cd ~ && tar tf work/app/a.tar",
    "unzip a.zip",
    "cd ~ && unzip -l work/app/a.zip",
    "patch -p1 -i p",
    "git checkout .",
    "git -C sub restore .",
    "cd sub && git pull",
    "git clone git@example.com:a/b.git",
    "git clone https://example.com/a/b lib/b",
    "git worktree add ../feature",
    "git submodule add https://example.com/a lib/a",
    "tar cPf a.tar /tmp/x",
    "cpio -idm --no-absolute-filenames < a.cpio",
    "dpkg -x a.deb /tmp/x",
]


def _verdict(command: str) -> Verdict:
    call = {"tool": "Bash", "input": {"command": command}}
    return EVERYTHING.check(call, cwd=CWD, home=HOME).verdict


@pytest.mark.parametrize("command", [*LINKS, *FILLED])
def test_what_is_denied_is_not_reached_by_names_from_elsewhere(command: str):
    assert _verdict(command) is Verdict.DENY


@pytest.mark.parametrize("command", [*HARMLESS_LINKS, *HARMLESS_FILLED])
def test_ordinary_copies_and_links_are_allowed(command: str):
    assert _verdict(command) is Verdict.ALLOW
