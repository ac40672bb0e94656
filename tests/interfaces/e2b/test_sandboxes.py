"""The unmodified E2B SDK: sandboxes and their lifetime, commands and files."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    FileType,
    InvalidArgumentException,
    NotEnoughSpaceException,
    RateLimitException,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
)
from e2b.exceptions import SandboxNotRunningException
from e2b_code_interpreter import Sandbox

from interfaces.e2b.conftest import options
from interfaces.http.running_service import ROOT, UNANSWERED, RunningService, running_service

pytestmark = pytest.mark.requirement("INT-2")


def test_sandbox_is_made_found_and_killed(service: RunningService):
    sandbox = Sandbox.create(timeout=100, metadata={"who": "me"}, **options(service))
    try:
        info = sandbox.get_info()
        assert (info.state, info.metadata) == (SandboxState.RUNNING, {"who": "me"})
        assert 90 < (info.end_at - info.started_at).total_seconds() < 110
        query = SandboxQuery(metadata={"who": "me"})
        listed = Sandbox.list(query=query, **options(service)).next_items()
        assert [each.sandbox_id for each in listed] == [sandbox.sandbox_id]
        other = SandboxQuery(metadata={"who": "you"})
        assert Sandbox.list(query=other, **options(service)).next_items() == []
        same = Sandbox.connect(sandbox.sandbox_id, timeout=400, **options(service))
        assert same.is_running()
        left = same.get_info().end_at.timestamp() - time.time()
        assert 300 < left < 410
    finally:
        assert sandbox.kill()
    assert not sandbox.kill()
    assert not sandbox.is_running()
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_sandbox_ends_at_its_timeout_also_while_it_is_in_use(service: RunningService):
    sandbox = Sandbox.create(timeout=600, **options(service))
    sandbox.set_timeout(1)
    with pytest.raises(SandboxException):
        sandbox.commands.run("sleep 60", timeout=50)
    assert not sandbox.is_running()


def test_list_has_pages(service: RunningService, sandbox: Sandbox):
    with Sandbox.create(**options(service)):
        pages = Sandbox.list(limit=1, **options(service))
        found = pages.next_items()
        assert pages.has_next
        found += pages.next_items()
        assert len({each.sandbox_id for each in found}) == 2


def test_command_runs_with_its_output_exit_code_folder_and_variables(sandbox: Sandbox):
    sandbox.files.make_dir("inner")
    done = sandbox.commands.run(
        "echo out; echo err >&2; pwd; echo $WHO", envs={"WHO": "me"}, cwd="/workspace/inner"
    )
    assert (done.stdout, done.stderr) == ("out\n/workspace/inner\nme\n", "err\n")
    with pytest.raises(CommandExitException) as refused:
        sandbox.commands.run("echo half; exit 3")
    assert (refused.value.exit_code, refused.value.stdout) == (3, "half\n")
    with pytest.raises(SandboxException):
        sandbox.commands.run("true", cwd="/workspace/missing")


def test_files_are_written_read_listed_moved_and_removed(sandbox: Sandbox):
    written = sandbox.files.write("kept/a.txt", "hällo")
    assert written.path == "/workspace/kept/a.txt"
    assert sandbox.files.read("kept/a.txt") == "hällo"
    assert sandbox.commands.run("cat kept/a.txt").stdout == "hällo"
    content = bytes(range(256)) * 10_000
    sandbox.files.write("/workspace/kept/b.bin", content)
    assert sandbox.files.read("kept/b.bin", format="bytes") == content
    assert b"".join(sandbox.files.read("kept/b.bin", format="stream")) == content
    several = sandbox.files.write_files(
        [{"path": "kept/c", "data": "1"}, {"path": "kept/d/e", "data": b"2"}]
    )
    assert [each.path for each in several] == ["/workspace/kept/c", "/workspace/kept/d/e"]
    sandbox.files.write("kept/zipped", "z" * 100_000, gzip=True)
    assert sandbox.files.get_info("kept/zipped").size == 100_000
    listed = {each.name: each.type for each in sandbox.files.list("kept")}
    assert listed == {
        **dict.fromkeys(("a.txt", "b.bin", "c", "zipped"), FileType.FILE),
        "d": FileType.DIR,
    }
    deep = [each.path for each in sandbox.files.list("/workspace/kept/", depth=2)]
    assert "/workspace/kept/d/e" in deep
    assert sandbox.files.rename("kept/c", "kept/f").path == "/workspace/kept/f"
    assert not sandbox.files.make_dir("kept/d")
    assert sandbox.files.make_dir("kept/g/h")
    sandbox.files.remove("kept")
    assert not sandbox.files.exists("kept")
    with pytest.raises(FileNotFoundException):
        sandbox.files.read("kept/a.txt")
    with pytest.raises(FileNotFoundException):
        sandbox.files.get_info("kept")


def test_paused_sandbox_keeps_its_files_and_is_resumed_by_its_id(service: RunningService):
    sandbox = Sandbox.create(metadata={"pause": "1"}, **options(service))
    sandbox.files.write("a.txt", "kept")
    with pytest.raises(SandboxException, match="only files are kept"):
        sandbox.pause(mode="full")
    assert sandbox.pause()
    assert not sandbox.is_running()
    query = SandboxQuery(state=[SandboxState.PAUSED])
    (paused,) = Sandbox.list(query=query, **options(service)).next_items()
    assert (paused.sandbox_id, paused.metadata) == (sandbox.sandbox_id, {"pause": "1"})
    same = sandbox.connect()
    assert same.files.read("a.txt") == "kept"
    other = Sandbox.connect(sandbox.sandbox_id, **options(service))
    other.files.write("a.txt", "again")
    assert same.files.read("a.txt") == "again"
    assert same.kill()


def test_resumed_sandbox_has_its_variables_and_its_egress(service: RunningService):
    wanted = {"envs": {"WHO": "me"}, "network": {"allow_out": ["pypi.org"]}}
    sandbox = Sandbox.create(**wanted, **options(service, "owner"))
    seen = "echo $WHO; env | grep -c -i proxy"
    first = sandbox.commands.run(seen).stdout
    assert first.startswith("me\n")
    assert sandbox.pause()
    same = sandbox.connect()
    assert same.commands.run(seen).stdout == first
    assert same.run_code("import os\nos.environ['WHO']").text == "'me'"
    assert same.kill()


def test_repeated_request_with_one_key_gets_one_sandbox(service: RunningService):
    def create(key: str, **wanted: object) -> Sandbox:
        return Sandbox.create(idempotency_key=key, **wanted, **options(service))

    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(create, ["one-key"] * 3))
    assert len({each.sandbox_id for each in made}) == 1
    other = create("other-key")
    try:
        assert [each.commands.run("echo hi").stdout for each in (*made, other)] == ["hi\n"] * 4
        assert other.sandbox_id != made[0].sandbox_id
        with pytest.raises(SandboxException, match=r"409: .*another request"):
            create("one-key", metadata={"who": "me"})
        service.add_user("key-thief")
        thief = Sandbox.create(idempotency_key="one-key", **options(service, "key-thief"))
        assert thief.sandbox_id != made[0].sandbox_id
        thief.kill()
        assert made[0].kill()
        again = create("one-key")
        assert again.sandbox_id != made[0].sandbox_id
        again.kill()
    finally:
        other.kill()


def test_metrics_tell_the_memory_in_use(sandbox: Sandbox):
    sandbox.run_code("1")
    (sample,) = sandbox.get_metrics()
    assert 0 < sample.mem_used < sample.mem_total


def test_wrong_api_key_is_an_authentication_error(service: RunningService):
    with pytest.raises(AuthenticationException):
        Sandbox.create(**{**options(service), "api_key": "e2b_wrong"})


def test_revoked_api_key_ends_the_tokens_of_its_sandboxes(service: RunningService):
    service.add_user("leaver")
    sandbox = Sandbox.create(**options(service, "leaver"))
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    disable = service.accounts.directory.set_disabled
    service.call(disable(service.ids["leaver"], is_disabled=True, by=ROOT))
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("echo hi")
    with pytest.raises(AuthenticationException):
        sandbox.files.read("a.txt")


def test_sandbox_of_another_user_is_as_absent_as_an_unknown_one(
    service: RunningService, sandbox: Sandbox
):
    service.add_user("stranger")
    stranger = options(service, "stranger")
    for name in (sandbox.sandbox_id, "sbx_00000000000000000000000000"):
        with pytest.raises(SandboxNotFoundException):
            Sandbox.connect(name, **stranger)
        with pytest.raises(SandboxNotFoundException):
            Sandbox.get_info(name, **stranger)
        assert not Sandbox.kill(name, **stranger)
    assert sandbox.is_running()
    assert Sandbox.list(**stranger).next_items() == []


def test_full_workspace_and_too_many_sandboxes_have_exceptions_of_their_own(
    tmp_path_factory: pytest.TempPathFactory,
):
    home = tmp_path_factory.mktemp("cellwall-e2b-few")
    config = f"{UNANSWERED}[limits]\ndisk_bytes = 1048576\n"
    with (
        running_service(home, config=config, max_sessions_per_user=1) as service,
        Sandbox.create(**options(service)) as sandbox,
    ):
        sandbox.files.write("small", bytes(1000))
        with pytest.raises(NotEnoughSpaceException):
            sandbox.files.write("large", bytes(2_000_000))
        with pytest.raises(RateLimitException):
            Sandbox.create(**{**options(service), "retries": 3})


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"lifecycle": {"on_timeout": "pause"}}, "ends at its timeout"),
        ({"network": {"allow_out": ["0.0.0.0/0"]}}, "name the hosts"),
    ],
)
def test_what_is_not_offered_is_refused_with_the_reason(service: RunningService, wanted, reason):
    with pytest.raises(SandboxException, match=reason):
        Sandbox.create(**wanted, **options(service))


@pytest.mark.requirement("FS-9")
def test_snapshots_and_forks_have_files_and_plain_variables(service, sandbox: Sandbox):
    sandbox.run_code("n = 7\n_ = open('a', 'w').write('one')")
    with pytest.raises(SandboxException, match=r"501: .*plain variables"):
        sandbox.create_snapshot(mode="full")
    taken = sandbox.create_snapshot("first")
    sandbox.files.write("a", "two")
    listed = Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id, **options(service)).next_items()
    assert [(each.snapshot_id, each.names) for each in listed] == [(taken.snapshot_id, ["first"])]
    made = [Sandbox.create(taken.snapshot_id, **options(service)), *sandbox.fork(count=2)]
    try:
        seen = [each.run_code("f'{n} {open(\"a\").read()}'").text for each in made]
        assert seen == ["'7 one'", "'7 two'", "'7 two'"]
        assert Sandbox.delete_snapshot(taken.snapshot_id, **options(service)) is True
        assert Sandbox.delete_snapshot(taken.snapshot_id, **options(service)) is False
        assert made[0].files.read("a") == "one"
    finally:
        for each in made:
            each.kill()


def test_unknown_template_is_refused(service: RunningService):
    with pytest.raises(SandboxException, match="template"):
        Sandbox.create("no-such-template", **options(service))


def test_files_of_tmp_are_reached_like_those_of_the_workspace(sandbox: Sandbox):
    assert sandbox.files.write("/tmp/kept/a.txt", "hällo").path == "/tmp/kept/a.txt"
    assert sandbox.commands.run("cat /tmp/kept/a.txt").stdout == "hällo"
    sandbox.commands.run("echo -n made > /tmp/kept/b")
    assert sandbox.files.read("/tmp/kept/b") == "made"
    assert [each.path for each in sandbox.files.list("/tmp/kept")] == [
        "/tmp/kept/a.txt",
        "/tmp/kept/b",
    ]
    assert sandbox.files.rename("/tmp/kept/b", "/tmp/kept/c").path == "/tmp/kept/c"
    sandbox.files.remove("/tmp/kept")
    assert not sandbox.files.exists("/tmp/kept")


def test_home_of_e2b_is_the_workspace(sandbox: Sandbox):
    home = "/home/user"
    assert sandbox.files.write(f"{home}/kept/a.txt", "hi").path == "/workspace/kept/a.txt"
    sandbox.files.write_files([{"path": f"{home}/kept/b", "data": "1"}])
    assert sandbox.files.read(f"{home}//./kept/a.txt") == "hi"
    assert [each.name for each in sandbox.files.list(f"{home}/kept")] == ["a.txt", "b"]
    assert sandbox.commands.run("pwd; cat kept/a.txt", cwd=home).stdout == "/workspace\nhi"
    watch = sandbox.files.watch_dir(f"{home}/kept")
    sandbox.files.rename(f"{home}/kept/b", f"{home}/kept/c")
    assert "c" in {each.name for each in watch.get_new_events()}
    watch.stop()
    context = sandbox.create_code_context(cwd=f"{home}/kept")
    assert (
        sandbox.run_code("import os\nsorted(os.listdir())", context=context).text
        == "['a.txt', 'c']"
    )
    sandbox.remove_code_context(context)
    sandbox.files.remove(f"{home}/kept")
    for path in ("/home/user2/a", "/home/a", f"{home}/../other/a", "/home/./x/user/a"):
        with pytest.raises(InvalidArgumentException):
            sandbox.files.write(path, "x")


def test_path_outside_the_workspace_is_refused(sandbox: Sandbox):
    sandbox.commands.run("ln -s /usr outside")
    for path in ("/etc/passwd", "../etc/passwd", "outside/bin/env", "a/../../../etc/passwd"):
        with pytest.raises((InvalidArgumentException, FileNotFoundException)):
            sandbox.files.read(path)
        with pytest.raises(SandboxException):
            sandbox.files.write(path, "x")
    sandbox.files.remove("outside")


def test_port_is_reached_by_the_host_name_of_the_sdk(service: RunningService, sandbox: Sandbox):
    sandbox.commands.run("python3 -m http.server 8008 --directory /usr/share", background=True)
    host = sandbox.get_host(8008)
    assert host == f"8008-{sandbox.sandbox_id}.localhost:{service.port}"
    token = {"e2b-traffic-access-token": sandbox.traffic_access_token}
    deadline = time.monotonic() + 20
    while True:
        with service.client(headers={"Host": host, **token}) as client:
            answer = client.get("/")
        if answer.status_code == 200:
            break
        assert time.monotonic() < deadline, answer.text
    assert "Directory listing" in answer.text
    with service.client(headers={"Host": host}) as client:
        assert client.get("/").status_code == 401
