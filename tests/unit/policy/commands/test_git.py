"""git: settings, aliases, hooks, transports and sub-commands that run code."""

from __future__ import annotations

import pytest

from cellwall.parsing.shell.words import render_words
from unit.policy.commands.opening import Tables, opened, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
git -C frontend status
git add . ':!dist'
git config core.autocrlf input
git -c color.ui=never log
git status
git status -sb
git diff
git diff HEAD~1 -- src
git diff --stat
git diff --cached --name-only
git log --oneline -10
git log --graph --all --decorate
git log -p -S foo
git log --since='2 weeks ago' --author=me --format='%h %s'
git show HEAD:src/x.py
git add -A
git add .
git commit -m 'msg'
git commit -am 'msg'
git commit --amend --no-edit
git push
git push -u origin main
git push origin HEAD
git push --force-with-lease
git pull --rebase
git fetch --all --prune
git fetch origin
git checkout -b feat
git checkout main -- f
git switch -c x
git restore --staged f
git branch -a
git branch -D x
git merge main
git merge --no-ff x -m y
git rebase main
git rebase --continue
git rebase -i HEAD~3
git cherry-pick abc
git stash
git stash pop
git tag v1
git remote -v
git remote add origin https://github.com/a/b.git
git clone https://github.com/a/b.git
git clone git@github.com:a/b.git dir
git clone --depth 1 https://x/y
git init
git init -b main
git rev-parse HEAD
git ls-files
git blame -L 1,10 f
git reset --hard HEAD
git clean -fd
git grep foo
git config user.name 'X'
git config --global init.defaultBranch main
git config --get remote.origin.url
git config --list
git -C sub status
git -c user.name=x -c user.email=y commit -m z
git -c color.ui=always log
git --no-pager log
git worktree add ../x
git worktree list
git submodule update --init --recursive
git bisect start
git bisect good
git apply a.patch
git describe --tags
git archive -o x.tar HEAD
git format-patch -1
git cat-file -p HEAD
git ls-remote origin
git reflog
git shortlog -sn
git rm f
git mv a b
git lfs pull
git commit -m @u
git log --author=@u
git checkout @u
git fetch origin main
git pull origin main
git worktree add ../wt -b x
"""

FOUND = r"""
git -C sub diff --no-index /dev/null key -> read /dev/null | read sub/key
git -C a -C b hash-object -w key -> read a/b/key
git -C sub archive -o x.tar HEAD -> write sub/x.tar
git -C sub config -f x -l -> read sub/x
git -C sub grep --no-index '' -> read sub/.
git -C /tmp/e ls-remote origin -> danger -C
git -C a/../../x status -> danger -C
git -C a -C /etc apply x -> danger -C | read /etc/x
git -C @u status -> danger
git --git-dir=../../x/.git status -> danger --git-dir
git config --rename-section log core -> danger --rename-section | write .git/config
git config --rename-s log core -> danger --rename-s | write .git/config
git config rename-section log core -> danger rename-section | write .git/config
git -c gc.recentObjectsHook=id gc -> danger -c
git -c log.fsmonitor=id log -> danger -c
git -c branch.main.remote=ext::sh fetch -> danger -c
git -c blame.ignorerevsfile=.env blame f -> read .env
git -c core.excludesfile=.env status -> read .env
git diff-tree -p --output=/x HEAD -> write /x
git range-diff --outp=/x a b c -> write /x
git shortlog HEAD --output=/x -> write /x
git stash show -p --output=/x -> write /x
git stash -a -> danger -a
git stash push --all -> danger --all
git mailinfo a b -> write a | write b
git mailsplit -o../x y -> read y | write ../x
git read-tree --index-output=/x HEAD -> write /x
git worktree move a ../../x -> write ../../x
git index-pack -o ../x y -> read y | write ../x
git interpret-trailers --in-place --trailer 'a: b' f -> read f | write f
git tag -F.env t -> read .env
git notes add -F.env -> read .env
git commit-tree -F.env HEAD -> read .env
git hash-object -w --stdin-paths -> danger --stdin-paths
git add -f ':(top).env' -> danger :(top).env
git add -f '.en*' -> read .en*
git add --pathspec-from-file=.env -> read .env | read …
git grep x -- .env -> read .env
git lfs push origin main -> danger push
git -c core.pager='rm x' log -> script rm x
git -c core.sshCommand='rm x' fetch -> script rm x
git -ccore.editor='rm x' commit -> script rm x
git -c alias.x='!rm y' x -> danger x | script rm y
git -c alias.x=push x -> danger -c | danger x
git --exec-path=/x status -> danger --exec-path
git -c core.hooksPath=/x commit -> danger -c
git -c core.fsmonitor='rm x' status -> script rm x
git -c include.path=/x status -> danger -c
git -c credential.helper='!rm' fetch -> script rm
git -c diff.external='rm' diff -> script rm
git -c filter.x.clean=rm add . -> read . | script rm
git -c protocol.ext.allow=always clone 'ext::sh -c rm' -> danger -c | script sh -c rm
git -c url.ext::.insteadOf=x fetch -> danger -c
git -c gpg.program=x commit -> danger -c
git --config-env=core.pager=X log -> danger --config-env
git config core.pager 'rm x' -> script rm x | write .git/config
git config --global alias.x '!rm' -> script rm | write .git/config
git config set core.editor 'rm' -> script rm | write .git/config
git config --add core.hooksPath x -> danger core.hooksPath | write .git/config
git config -e -> danger -e
git config @u x -> danger | danger | danger
git rebase -x 'rm x' main -> script rm x
git rebase --exec='rm x' main -> script rm x
git rebase --ex 'rm x' main -> script rm x
git bisect run rm x -> inner rm x
git submodule foreach 'rm x' -> script rm x
git submodule --quiet foreach --recursive rm x -> script rm x
git filter-branch --tree-filter 'rm x' -> script rm x
git difftool -x 'rm' HEAD -> script rm
git difftool --extcmd=rm -> script rm
git grep -O'rm x' y -> script rm x
git grep --open-files-in-pager=rm y -> script rm
git grep --open='rm' y -> script rm
git clone -u 'rm x' a b -> script rm x | write b
git clone --upload-pack='rm x' a -> script rm x | write a
git clone --template=/x a -> danger --template | write .git/hooks | write a
git clone -c core.sshCommand=x a -> script x | write .git/config | write a
git clone --config core.pager='rm x' a -> script rm x | write .git/config | write a
git clone 'ext::sh -c rm' -> script sh -c rm
git clone ssh://-oProxyCommand=x/y -> danger ssh://-oProxyCommand=x/y | write y
git fetch --upload-pack='rm x' o -> script rm x
git pull --upload-pack 'rm x' -> script rm x
git push --receive-pack='rm' o -> script rm
git push --exec=rm o -> script rm
git ls-remote --upload-pack=rm o -> script rm
git ls-remote ext::sh -> script sh
git archive --exec=rm --remote=x HEAD -> script rm
git archive -o /etc/x HEAD -> write /etc/x
git init --template=/x -> danger --template | write .git/hooks
git daemon -> danger daemon
git send-email --smtp-server=/x y -> danger send-email
git instaweb -> danger instaweb
git log --output=/etc/x -> write /etc/x
git log --ext-diff -> danger --ext-diff
git diff --outpu=/etc/x -> write /etc/x
git hook run x -> danger hook
git xyz -> danger xyz
git -C x xyz -> danger xyz
git @u -> danger | danger
git fetch @u -> danger | danger
git credential fill -> danger credential
git apply --unsafe-paths x -> danger --unsafe-paths | read x
git upload-pack x -> danger upload-pack
git remote add x 'ext::sh -c y' -> script sh -c y
git for-each-repo --config=x rm -> danger for-each-repo
git merge-index rm -a -> danger merge-index
git maintenance start -> danger start
git fetch --multiple a ext::sh -> script sh
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize(
    ("command", "plain"),
    [
        ("git push", None),
        ("git -C x push origin main", "git push origin main"),
        ("git --no-pager -c color.ui=never log -1", "git log -1"),
        ("git --git-dir=.git remote -v add x y", "git remote add x y"),
    ],
)
def test_a_denial_sees_the_command_without_its_global_options(command: str, plain: str | None):
    found = opened(command).plain
    assert (found and render_words(found)) == plain


@pytest.mark.parametrize("value", ["less", "cat", "less -R", "false", "true"])
def test_a_plain_pager_or_editor_is_harmless(value: str):
    assert told(f"git -c core.pager='{value}' log") == []


@pytest.mark.parametrize(
    "key",
    [
        *("alias.x", "core.gitProxy", "core.hooksPath", "core.attributesFile", "core.worktree"),
        *("include.path", "includeIf.gitdir:/.path", "protocol.ext.allow", "url.x.insteadOf"),
        *("gpg.program", "gpg.ssh.program", "init.templateDir", "remote.x.vcs", "remote.x.proxy"),
        *(
            "http.proxy",
            "http.sslVerify",
            "web.browser",
            "instaweb.browser",
            "extensions.worktreeConfig",
        ),
        *("submodule.x.url", "core.askPass", "credential.helper", "remote.x.url", "safe.directory"),
    ],
)
@pytest.mark.parametrize("form", ["git -c {}=/x log", "git config {} /x", "git clone -c {}=/x y"])
def test_a_setting_that_is_not_known_to_be_harmless_is_a_danger(form: str, key: str):
    assert [line for line in told(form.format(key)) if line.startswith("danger")]


@pytest.mark.parametrize(
    "key",
    [
        *("core.editor", "core.sshCommand", "core.fsmonitor", "sequence.editor", "diff.external"),
        *(
            "diff.x.command",
            "diff.x.textconv",
            "merge.x.driver",
            "filter.x.clean",
            "filter.x.smudge",
        ),
        *(
            "filter.x.process",
            "pager.log",
            "interactive.diffFilter",
            "mergetool.x.cmd",
            "difftool.x.cmd",
        ),
        *("trailer.x.command", "uploadpack.packObjectsHook", "CORE.PAGER", "sendemail.toCmd"),
    ],
)
def test_a_setting_that_is_a_command_is_opened(key: str):
    assert "script rm x" in told(f"git -c {key}='rm x' log")
    assert "script rm x" in told(f"git config --global {key} 'rm x'")


def test_reading_settings_is_harmless():
    for command in ("git config --get core.pager", "git config -l", "git config get alias.x"):
        assert told(command) == []


def test_differences_of_files_outside_are_read():
    assert told("git diff --no-index a /etc/passwd") == ["read a", "read /etc/passwd"]


def test_an_unknown_word_matters_only_where_an_option_could_run_code():
    assert told("git add @s") == ["read …"]
    assert told("git checkout @u") == []
    assert "danger" in told("git clone @u")
    assert "danger" in told("git log @s")


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("git config core.hooksPath x", ".git/config"),
        ("git config set core.hooksPath x", ".git/config"),
        ("git config --global CORE.FSMONITOR ./x", ".git/config"),
        ("git config --add include.path ../x", ".git/config"),
        ("git config alias.x '!id'", ".git/config"),
        ("git config hook.x.command id", ".git/config"),
        ("git config url.https://evil.insteadOf https://github.com", ".git/config"),
        ("git config --rename-section a alias", ".git/config"),
        ("git -C sub config gpg.ssh.program ./x", "sub/.git/config"),
        ("git clone -c core.sshCommand=./x . y", ".git/config"),
        ("git clone --template=./x . y", ".git/hooks"),
        ("git init --template ./x", ".git/hooks"),
        ("git -c init.templateDir=./x init", ".git/hooks"),
    ],
)
def test_a_setting_that_stays_and_names_code_writes_a_protected_file(command: str, path: str):
    written = [file.path.text for file in opened(command).files if file.access == "write"]
    assert path in written


@pytest.mark.parametrize(
    "command",
    [
        "git config user.name x",
        "git config alias.st status",
        "git config core.pager cat",
        "git config core.fsmonitor true",
        "git config credential.helper store",
        "git config --get core.hooksPath",
        "git config --unset core.hooksPath",
        "git -c core.hooksPath=/dev/null commit -m x",
        "git clone -c core.autocrlf=false https://github.com/a/b",
        "git init",
    ],
)
def test_other_settings_write_no_protected_file(command: str):
    assert not [file for file in opened(command).files if ".git/" in file.path.text]
