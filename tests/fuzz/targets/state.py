"""Files that Cellwall keeps and reads again, and what the kernel and programs print.

Whoever can write a state folder must get no more than an error: a record, a vault or a bundle is
read before anything proves it.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tempfile
from contextlib import suppress
from pathlib import Path

import zstandard

from cellwall.admin.bundle_check import check_bundle
from cellwall.admin.bundle_file import BadBundle
from cellwall.audit.merkle import BadProof, Checkpoint
from cellwall.audit.packed_frames import read_frames
from cellwall.audit.proofs import check_proof
from cellwall.audit.records import BadRecord, match_tail, parse_link, parse_record
from cellwall.audit.segments import (
    SEAL,
    BadSegment,
    Segment,
    find_notes,
    read_lines,
    read_seal,
    segment_name,
)
from cellwall.audit.text_chunk import BadChunk, read_header
from cellwall.core.errors import CellwallError, VaultError
from cellwall.core.labels import Label, LabelSource
from cellwall.core.notes import BadNote, PublicKey, open_note
from cellwall.packages import kept_trees, source_builds
from cellwall.redteam.sealed_report import read_report, seal_of
from cellwall.runtime import label_files, server_catalog
from cellwall.sandbox.linux.process_table import _parse as parse_stat
from cellwall.sandbox.protection import git_files
from cellwall.sandbox.templates.definitions import pinned_packages
from cellwall.sandbox.templates.uv_answers import _parse as parse_uv_answers
from cellwall.secrets.format import read_content, read_frame
from cellwall.secrets.recipients import _parse_private
from cellwall.secrets.values import parse_known
from cellwall.secrets.vault_file import _parse_note
from cellwall.skills.manifest import parse as parse_manifest
from fuzz.targets import target, text_of

_JSON = (
    b'{"',
    b'":',
    b'"}',
    b"[",
    b"]",
    b"null",
    b"true",
    b"1e999",
    b"\\ud800",
    b"NaN",
    b"-0",
    b"9999999999",
)
_KEY = PublicKey("cellwall.example", bytes(range(32)))


@target("audit.records", "audit.segments", tokens=(
    b'{"action_id":"', b'","body":{', b'},"id":"', b'","interface":"cli","kind":"', b'","prev":"' + b"0" * 64, b'","principal":"', b'","seq":1',
    b',"session_id":"', b'","time":"2026-01-01T00:00:00.000000Z","v":2}', b'"v":3}', b'"key":"', b'"sealed":"', b"\n", *_JSON,
))  # fmt: skip
def audit_record(data: bytes) -> None:
    """Lines of the audit log: one spelling for each record, and the quick reader of links agrees"""
    for line, _ in read_lines(io.BytesIO(data)):
        try:
            record = parse_record(line)
        except BadRecord:
            with suppress(BadRecord):
                match_tail(line)
            continue
        try:
            link = parse_link(line)
        except BadRecord:
            continue  # the quick reader may refuse more
        assert (link.seq, link.prev.decode()) == (record["seq"], record["prev"])


@target("audit.merkle", "audit.proofs", "core.notes", tokens=(
    b"cellwall.example", "\n\n\u2014 cellwall.example ".encode(), b"c2sp.org/tlog-proof@v1\n", b"extra ", b"index ", b"\n", b"AAAA", b"=", b"+",
))  # fmt: skip
def signed_note(data: bytes) -> None:
    """Checkpoints, proofs, keys and skill manifests: nothing unsigned passes; one spelling each"""
    text = text_of(data)
    for read in (lambda: open_note(data, [_KEY]), lambda: check_proof(text, [_KEY])):
        try:
            read()
        except (BadNote, BadProof):
            continue
        raise AssertionError("accepted without a signature")
    with suppress(BadNote):
        found = Checkpoint.parse(text)
        assert Checkpoint.parse(found.text()) == found
    with suppress(BadNote):
        key = PublicKey.parse(text)
        assert PublicKey.parse(str(key)) == key
    find_notes(data)


@target(
    "skills.manifest",
    tokens=(
        b"cellwall-skill/v1\n",
        b"name a\n",
        b"- 0 " + b"0" * 64 + b" a\n",
        b"x 1 ",
        b"/",
        b"..",
        "é".encode(),
    ),
)
def skill_manifest(data: bytes) -> None:
    """Manifests of skills: one spelling, relative paths, or the declared error"""
    text = text_of(data)
    try:
        found = parse_manifest(text)
    except CellwallError as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert found.encode() == text
    assert not any(
        file.path.startswith("/") or ".." in file.path.split("/") for file in found.files
    )


@target("audit.packed_frames", "audit.segments", "audit.text_chunk", tokens=(
    b"\x5e\x2a\x4d\x18", b"\xb1\xea\x92\x8f", b"\x28\xb5\x2f\xfd", b'{"first":1,"last":1,"leaf":"', b'","subtrees":["', *_JSON,
))  # fmt: skip
def audit_segment(data: bytes) -> None:
    """Packed segments, seals and chunks of the text index: bounded memory, or the declared error"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, segment_name(1, SEAL))
        path.write_bytes(data)
        with suppress(BadSegment):
            read_seal(Segment(folder, 1, frozenset({SEAL})))
        frames = read_frames(str(path))
        if frames is not None:
            with suppress(BadSegment, zstandard.ZstdError):
                start, plain = frames.read(0, frames.size_bytes)
                assert start == 0
                assert len(plain) == frames.size_bytes
    with suppress(BadChunk):
        header = read_header(io.BytesIO(data))
        assert read_header(io.BytesIO(header.encode())) == header


@target(
    "admin.bundle_file",
    "admin.bundle_check",
    tokens=(b"payload.tar", b"ustar\x0000", b"note", bytes(64), b"0000644\0", *_JSON),
    max_bytes=4096,
)
def incident_bundle(data: bytes) -> None:
    """Bundles of incidents: nothing unsigned passes, whatever the file holds"""
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            check_bundle(file.name, [str(_KEY)], None)
        except (BadBundle, BadNote, CellwallError):
            return
    raise AssertionError("accepted without a signature")


@target("secrets", tokens=(
    b"cellwall-vault 1 ", b'{"generation":1', b'"schema":', b'"vault":"', b'"slot":{"source":"', b'"argon2id":[', b'"salt":"', b'"check":"', b'"nonce":"',
    b'"sealed":"', b'"secrets":{"', b'"keys":{', b'"known":{', b'"current":{', b'"previous":null', b'"grants":[', b"AAAA", *_JSON,
))  # fmt: skip
def vault_file(data: bytes) -> None:
    """Files of the vault: the declared error for any bytes that its MAC does not cover"""
    for read in (read_frame, read_content, _parse_note, _parse_private, parse_known):
        try:
            read(data)
        except VaultError as error:
            assert error.hint  # noqa: PT017
        except CellwallError as error:
            assert error.code.startswith("CW-")  # noqa: PT017


@target("sandbox.protection.git_files", "sandbox.templates", "sandbox.linux.process_table", tokens=(
    b"DIRC\0\0\0\2\0\0\0\1", b"DIRC\0\0\0\4", b".git/hooks/x\0", b"[core]\n", b"hooksPath = ", b"[include]\n", b"path = ", b"\\\n",
    b'{"a/b.whl":"', b"1 (a) S 1 1 1 0 -1 ", b")", b"==1.0 \\\n --hash=sha256:", *_JSON,
))  # fmt: skip
def host_files(data: bytes) -> None:
    """The index and configuration of git, answers of uv in a cell, and /proc: bounded, or the declared error"""
    with suppress(ValueError, IndexError, struct.error):
        for path, object_id in git_files._entries(data, {".git", "a/b"}):
            assert path
            assert len(object_id) <= 20
    for _, name, value in git_files._variables(text_of(data)):
        assert name == name.lower()
        git_files._words(value)
    with suppress(ValueError):
        assert parse_uv_answers(data)
    with suppress(ValueError):
        parse_stat(os.getpid(), data)
    with suppress(UnicodeDecodeError):
        pinned_packages(data)


@target("runtime.label_files", "runtime.server_catalog", "packages.kept_trees", "mcp_servers", tokens=(
    b'{"sources":[{"label":"untrusted","source":"', b'","action":"', b'"admitted":true}]}', b'{"directories":{"/a":[', b'"identities":{"/a":[1,2]', b"\n",
    b'{"format":1,"server":{"name":"server"', b'"identity":', b'"accepted":{', b'"definition":{', b'"digests":{', b'"rejected":{', b'"seen":', b'"seen_at":"',
    b'"key":"k","sha256":"', b'"answers":[[', *_JSON,
))  # fmt: skip
def kept_state(data: bytes) -> None:
    """Labels of information flow, reviewed MCP servers and kept package trees: the same once written again, the
    strictest labels, or the declared error"""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, label_files.LABELS_FILE)
        Path(path).write_bytes(data)
        stored = label_files.read_labels(path)
        label_files.write_labels(path, stored)
        assert label_files.read_labels(path) == stored
        labels = label_files.LabelFolder(folder)
        with labels.locked():
            Path(labels._directories).write_bytes(data)
        known = labels.tainted()
        labels.taint("/new", [LabelSource(Label.UNTRUSTED, "page")])
        assert {*known, "/new"} == set(labels.tainted())
    try:
        entry = server_catalog._decode("server", data)
    except CellwallError as error:
        assert error.hint  # noqa: PT017
    else:
        assert server_catalog._decode("server", server_catalog._encode(entry)) == entry
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        kept_trees._parse(data, "k")


_KEY_OF_RUN = b"00" * 16


@target("redteam.sealed_report", "redteam.attack", "packages.source_builds", tokens=(
    b'{"report":"', b'","seal":"', b'["through","', b'["stopped","', b'"sentinel":', b'["setuptools>=1"', b"; python_version < '3'", b"a @ https://",
    b"--index-url", b"a[b]==1", *_JSON,
))  # fmt: skip
def cell_answer(data: bytes) -> None:
    """What programs in a cell report: attacks under their seal, requirements of a build; nothing without the seal,
    no address and no option"""
    assert read_report(data, _KEY_OF_RUN) is None, "accepted without a seal"
    text = data.decode("utf-8", "replace")
    sealed = {"report": text, "seal": seal_of(text, _KEY_OF_RUN)}
    for observation in (read_report(json.dumps(sealed).encode(), _KEY_OF_RUN) or {}).values():
        assert len(observation.words) <= 1000
    try:
        requirements = source_builds.hook_requirements(data, "3.11")
    except source_builds.BuildRefused as error:
        assert str(error).isprintable()  # noqa: PT017
        return
    assert not any(each.startswith("-") or "@" in each or "/" in each for each in requirements)
