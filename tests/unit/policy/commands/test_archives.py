"""Archives: what is unpacked where, and what an archiver starts."""

from __future__ import annotations

import pytest

from unit.policy.commands.opening import Tables, told

pytestmark = pytest.mark.requirement("POL-2", "POL-3")

EVERYDAY = r"""
zip -T x.zip
tar --transform 's,^,prefix/,' -xf a.tar
tar czf x.tgz src
tar xzf x.tgz
tar -xvf x.tar -C out
tar tf x.tar
tar -czvf x.tar.gz --exclude=node_modules .
zip -r x.zip src
unzip x.zip -d out
gzip f
gunzip f.gz
xz -k f
gzip -- @g*
gzip ./@g*.log
7z a x.7z f
7z x x.7z -oout
tar czf x.tgz -C src .
zip -rq x.zip src
"""

FOUND = r"""
tar --transform 's,^a$,.git/config,' -xf b.tar -> read b.tar | write .git/config | write .
cpio -i -D /x -F a -> danger -i | write /x | write a
zip a b -T -TT'rm x' -> danger -TTrm | danger -TTrm x | write a | read b
zip -T -TT 'rm x' a b -> read b | script rm x | write a
zip a b --unzip-command='rm x' -> read b | script rm x | write a
tar -I 'rm x' -cf a b -> read b | script rm x | write a
tar --use-compress-program='rm x' -xf a -> read a | script rm x | write .
tar --use-comp='rm x' -xf a -> read a | script rm x | write .
tar --to-command='rm' -xf a -> read a | script rm | write .
tar cf x --checkpoint=1 --checkpoint-action=exec='rm x' y -> read y | script rm x | write x
tar cf x --checkpoint=1 --checkpoint-ac exec='rm x' y -> read y | script rm x | write x
tar -F 'rm x' -cf a b -> read b | script rm x | write a
tar --info-script=x -cf a b -> read b | script x | write a
tar --rsh-command=x -cf h:a b -> danger -cf | read b | script x | write h:a
tar xPf a -> danger xP | read a | write .
tar cf a @s -> danger | read … | write a
tar cf a -T f --rmt-command=x -> danger -T | read f | read … | script x | write a
cpio --rsh-command=x -F h:a -> open x | write h:a
tar cf x -T list -> danger -T | read list | read … | write x
tar cf x --remove-files y -> danger --remove-files | read y | write x
tar cf x --remove y -> danger --remove | read y | write x
zip -m a b -> danger -m | read b | write a
zip -rmq a b -> danger -rm | read b | write a
zip --move a b -> danger --move | read b | write a
7z x -spf a -> danger -spf | read a | write a
7z a x.7z @u -> danger | read x.7z | read … | write x.7z
tar xf x --one-top-level=/etc/x -> read x | write . | write /etc/x
"""


class TestTables(Tables):
    """What stands in `EVERYDAY` and `FOUND`."""


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("tar xzf a.tgz", ["read a.tgz", "write ."]),
        ("tar -xzf a.tgz -C out", ["read a.tgz", "write out"]),
        ("tar xOf a.tar f", ["read a.tar"]),
        ("tar tf a.tar", ["read a.tar"]),
        ("tar cf a.tar x y", ["write a.tar", "read x", "read y"]),
        ("tar cfz a.tar x", ["write a.tar", "read x"]),
        ("gzip f", ["read f", "write f"]),
        ("xz -d f g", ["read f", "read g", "write f", "write g"]),
        ("zstd f -o g", ["read f", "write f", "write g"]),
        ("7z a x f g", ["read x", "write x", "read f", "read g"]),
        ("7z x x -oout", ["read x", "write x", "write out"]),
        ("tar --force-local -tf c:a.tar", ["read c:a.tar"]),
        ("unzip a.zip -d out", ["read a.zip", "write out"]),
        ("tar xfI a.tar 'rm x'", ["read a.tar", "script rm x", "write ."]),
    ],
)
def test_the_mode_says_what_is_read_and_written(command: str, found: list[str]):
    assert sorted(told(command)) == sorted(found)


@pytest.mark.parametrize(
    ("command", "packed"),
    [
        ("tar -cf x -C d a", ["a", "d/a"]),
        ("tar -C d -cf x a", ["a", "d/a"]),
        ("tar --directory=/etc -cf x shadow", ["/etc/shadow", "shadow"]),
        ("tar cf x -C d a -C e b", ["a", "b", "d/a", "d/b", "d/e/a", "d/e/b", "e/a", "e/b"]),
        ("tar rf x -C @u a", ["a", "…/a"]),
        ("tar cf x -C d -- @u", ["d/…", "…"]),
    ],
)
def test_the_folder_is_part_of_what_is_packed(command: str, packed: list[str]):
    assert sorted(told(command)) == [*(f"read {path}" for path in packed), "write x"]


@pytest.mark.parametrize("word", ["@g*", "@g*.txt", "@s", "@u", "@g[ab]*"])
def test_a_name_that_could_be_an_option_is_a_danger(word: str):
    assert "danger" in told(f"tar czf x.tgz {word}")
    assert "danger" not in told(f"tar czf x.tgz -- {word}")
    assert "danger" not in told(f"tar czf x.tgz ./{word}") or word == "@s"
