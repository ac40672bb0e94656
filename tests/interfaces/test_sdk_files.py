"""Trees in and out of a sandbox, and its changes as they come (FS-7)."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
import threading
import time

import anyio
import pytest

import cellwall
from cellwall.core.files import FileChange, Transfer
from conftest import audit_records


def packed(**files: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as found:
        return found.getnames()


TREE = packed(src__main=b"print(6 * 7)", data=bytes(range(256)))


def pieces(data: bytes):
    for at in range(0, len(data), 77):
        yield data[at : at + 77]


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize(
    "source",
    [
        lambda: TREE,
        lambda: gzip.compress(TREE),
        lambda: io.BytesIO(TREE),
        lambda: io.BufferedReader(io.BytesIO(gzip.compress(TREE))),
        lambda: pieces(TREE),
        lambda: [b"", TREE],
    ],
    ids=["bytes", "gzip", "file", "gzip file", "iterator", "list"],
)
def test_a_tree_goes_in_is_used_and_comes_out(source):
    with cellwall.Sandbox.create() as sbx:
        done = sbx.files.upload(source(), "in")
        assert (done.files, done.directories, done.content_bytes) == (2, 2, 268)
        assert sbx.commands.run("python3 in/src/main; echo new > in/made").stdout == "42\n"
        assert names(sbx.files.download("in")) == ["data", "made", "src", "src/main"]
        assert names(sbx.files.download()) == [
            "in",
            *(f"in/{n}" for n in ("data", "made", "src", "src/main")),
        ]
        file = io.BytesIO()
        assert sbx.files.download("in/src", to=file) == b""
        assert names(file.getvalue()) == ["main"]


@pytest.mark.requirement("FS-3", "FS-7")
def test_a_refused_upload_says_why_and_leaves_nothing():
    with cellwall.Sandbox.create(limits={"file_size_bytes": 4096}) as sbx:
        for archive, code in (
            (packed(fine=b"1", large=bytes(5000)), "CW-FILE-TOO-LARGE"),
            (packed(fine=b"1", **{"..__x": b"2"}), "CW-PATH-OUTSIDE"),
            (b"no archive", "CW-ARCHIVE-TRUNCATED"),
            (b"no archive" * 100, "CW-ARCHIVE-INVALID"),
            (TREE[:700], "CW-ARCHIVE-TRUNCATED"),
        ):
            with pytest.raises(cellwall.CellwallError) as caught:
                sbx.files.upload(archive)
            assert caught.value.code == code
            assert caught.value.hint
        assert sbx.files.list() == ()
        sbx.files.upload(packed(fine=b"1"))
        assert sbx.files.read("fine") == "1"


@pytest.mark.requirement("FS-7")
def test_errors_of_the_callers_own_streams_come_back_as_they_were(tmp_path):
    def breaking():
        yield TREE[:600]
        raise OSError(5, "mine")

    class Full(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            raise LookupError("mine")

    with cellwall.Sandbox.create() as sbx:
        with pytest.raises(OSError, match="mine"):
            sbx.files.upload(breaking())
        for source in ("text", 7, io.StringIO("text"), ["text"], None):
            with pytest.raises(cellwall.BadInput) as caught:
                sbx.files.upload(source)
            assert caught.value.code == "CW-BAD-SOURCE"
        assert sbx.files.list() == ()
        sbx.files.upload(TREE)
        with pytest.raises(LookupError, match="mine"):
            sbx.files.download(to=Full())
        with (tmp_path / "out.tar").open("wb", buffering=0) as raw:
            sbx.files.download(to=raw)
        assert names((tmp_path / "out.tar").read_bytes()) == ["data", "src", "src/main"]


@pytest.mark.requirement("AUD-1", "FS-7")
def test_transfers_and_watches_are_in_the_record(state_home):
    with cellwall.Sandbox.create() as sbx:
        done = sbx.files.upload(TREE)
        sbx.files.download()
        sbx.files.watch().close()
    assert isinstance(done, Transfer)
    text = json.dumps(audit_records())
    assert done.archive_sha256 in text
    asked = [part for part in ("upload", "download", "watch") if f'"file": "{part}"' in text]
    assert asked == ["upload", "download", "watch"]


@pytest.mark.requirement("FS-7")
def test_an_upload_ends_with_its_sandbox():
    sbx = cellwall.Sandbox.create()
    reached = threading.Event()

    def endless():
        yield TREE[:600]
        while True:
            reached.set()
            time.sleep(0.01)
            yield b""
            yield b"\0"

    ended = []

    def upload():
        with pytest.raises(cellwall.CellwallError) as caught:
            sbx.files.upload(endless())
        ended.append(caught.value.code)

    thread = threading.Thread(target=upload)
    thread.start()
    assert reached.wait(30)
    sbx.kill()
    thread.join(30)
    assert ended == ["CW-SANDBOX-ENDED"]


@pytest.mark.requirement("FS-7")
def test_changes_of_code_and_of_the_file_api_are_told():
    with cellwall.Sandbox.create() as sbx, sbx.files.watch(timeout=1.0) as changes:
        sbx.commands.run("mkdir d && echo x > d/a && mv d/a b")
        sbx.files.write("api", "1")
        seen = list(changes)
        assert FileChange("created", "d") in seen
        assert FileChange("moved", "d/a", "b") in seen or FileChange("created", "b") in seen
        assert seen[-1] == FileChange("created", "api")
        sbx.files.upload(packed(api=b"2", new=b"3"))
        assert list(changes) == [FileChange("modified", "api"), FileChange("created", "new")]
        sbx.files.remove("d")
        assert next(changes) == FileChange("removed", "d")


@pytest.mark.requirement("FS-7")
def test_async_changes_come_while_they_happen():
    async def main():
        seen = []
        async with cellwall.AsyncSandbox.create() as sbx, anyio.create_task_group() as tasks:
            async with sbx.files.watch(recursive=False) as changes:

                async def work():
                    for name in "abc":
                        await sbx.files.write(name, name)

                tasks.start_soon(work)
                with anyio.fail_after(30):
                    async for change in changes:
                        seen.append((change.kind, change.path))
                        if change.path == "c":
                            break
            with anyio.fail_after(30):
                assert [change async for change in changes] == []
                assert [c async for c in sbx.files.watch(timeout=0.01)] == []
        return seen

    assert anyio.run(main) == [("created", "a"), ("created", "b"), ("created", "c")]


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("how", ["close", "kill"])
def test_a_loop_over_changes_ends_when_the_watch_or_the_sandbox_does(how):
    sbx = cellwall.Sandbox.create()
    changes = sbx.files.watch()
    seen, came = [], threading.Event()

    def loop():
        for change in changes:
            seen.append(change)
            came.set()

    thread = threading.Thread(target=loop)
    thread.start()
    sbx.files.write("a", "")
    assert came.wait(30)
    (changes.close if how == "close" else sbx.kill)()
    thread.join(30)
    assert not thread.is_alive()
    assert seen[0] == FileChange("created", "a")
    sbx.kill()
    with pytest.raises(cellwall.BadInput):
        sbx.files.watch()


@pytest.mark.requirement("FS-2", "FS-4", "FS-7")
def test_a_given_directory_keeps_its_secrets_and_its_mode(tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project/.env").write_text("SECRET=1")
    (tmp_path / "project/main.py").write_text("1")
    with cellwall.Sandbox.create(workspace=f"{tmp_path}/project:rw") as sbx:
        assert names(sbx.files.download()) == ["main.py"]
        with pytest.raises(cellwall.CellwallError) as caught:
            sbx.files.upload(packed(**{".env": b"x"}))
        assert caught.value.code == "CW-PATH-PROTECTED"
        sbx.files.upload(packed(new=b"x"))
        with sbx.files.watch(timeout=0.2) as changes:
            (tmp_path / "project/.env").write_text("SECRET=2")
            (tmp_path / "project/main.py").write_text("2")
            assert {change.path for change in changes} == {"main.py"}
    with cellwall.Sandbox.create(workspace=f"{tmp_path}/project:ro") as sbx:
        assert names(sbx.files.download()) == ["main.py", "new"]
        with pytest.raises(cellwall.CellwallError) as caught:
            sbx.files.upload(packed(new=b"y"))
        assert caught.value.code == "CW-WORKSPACE-READ-ONLY"
    assert (tmp_path / "project/new").read_bytes() == b"x"
