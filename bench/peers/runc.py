"""runc and runsc (gVisor), without a daemon, from the default specification of `runc spec`."""

from __future__ import annotations

import json
import os
import tempfile
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar

from peers import oci
from peers.job import Ended, Job
from peers.peer import PeerMissing, ProgramPeer
from peers.processes import run_bounded

_SPEC_WITHIN_S = 20.0


class Runc(ProgramPeer):
    name = "runc"
    product = "runc"
    program = "runc"
    limits = oci.RLIMITED
    settings = (
        "`runc spec --rootless` with a network namespace of its own, no new privileges, "
        "read-only root, /usr of the host; rlimits, since an ordinary user has no cgroup here"
    )
    spec_program: ClassVar[str] = "runc"

    def inside(self, job: Job) -> str:
        del job
        return oci.WORKSPACE

    def open(self, env: Mapping[str, str]) -> None:
        super().open(env)
        self._folder = tempfile.mkdtemp(prefix=f"{self.name}-", dir=self.place.state())
        self._base = self._specification()

    def close(self) -> None:
        oci.remove_bundle(self._folder)

    def _specification(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            ended = run_bounded(
                [self.spec_program, "spec", "--rootless"],
                env=self.env,
                cwd=folder,
                timeout_s=_SPEC_WITHIN_S,
            )
            if ended.code != 0:
                raise PeerMissing(f"runc spec --rootless: {ended.reason()}")
            with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
                base: dict[str, Any] = json.load(file)
        base["process"]["noNewPrivileges"] = True
        kinds = [each["type"] for each in base["linux"]["namespaces"]]
        if "network" not in kinds:
            base["linux"]["namespaces"].append({"type": "network"})
        return base

    def words(self) -> list[str]:
        return [self.find(), "--root", os.path.join(self._folder, "run")]

    def run(self, job: Job, timeout_s: float) -> Ended:
        folder = tempfile.mkdtemp(dir=self._folder)
        name = f"peer-{uuid.uuid4().hex}"
        try:
            oci.make_bundle(folder, self._base, job)
            ended = run_bounded(
                [*self.words(), "run", "--bundle", folder, name],
                env=self.env,
                cwd=folder,
                timeout_s=timeout_s,
            )
            if ended.code is None:  # the runtime was stopped, its container perhaps not
                words = [*self.words(), "delete", "--force", name]
                run_bounded(words, env=self.env, cwd=folder, timeout_s=timeout_s)
        finally:
            oci.remove_bundle(folder)
        return ended


class Runsc(Runc):
    name = "runsc"
    product = "runsc"
    program = "runsc"
    has_own_kernel = True
    settings = (
        "`runsc --rootless --network=none --ignore-cgroups run` with the same specification, "
        "without its user namespace, which runsc makes by itself; platform ptrace, the default of "
        "this version"
    )

    def _specification(self) -> dict[str, Any]:
        base = super()._specification()
        linux = base["linux"]
        linux["namespaces"] = [each for each in linux["namespaces"] if each["type"] != "user"]
        for name in ("uidMappings", "gidMappings"):
            linux.pop(name, None)
        return base

    def words(self) -> list[str]:
        root = os.path.join(self._folder, "run")
        return [self.find(), "--rootless", "--network=none", "--ignore-cgroups", "--root", root]
