"""Writes schemas.json.xz anew: `python tests/kubernetes_schemas/make.py KUBERNETES CRD…`.

KUBERNETES is `_definitions.json` of the strict schemas in the package kubernetes-validate, CRD a
definition as YAML. See README.md for the versions that are stored.
"""

from __future__ import annotations

import json
import lzma
import sys
from pathlib import Path
from typing import Any

import yaml

STORED = Path(__file__).with_name("schemas.json.xz")
_KINDS = {
    "v1/ConfigMap": "io.k8s.api.core.v1.ConfigMap",
    "v1/Namespace": "io.k8s.api.core.v1.Namespace",
    "v1/Secret": "io.k8s.api.core.v1.Secret",
    "v1/Service": "io.k8s.api.core.v1.Service",
    "v1/ServiceAccount": "io.k8s.api.core.v1.ServiceAccount",
    "authentication.k8s.io/v1/TokenReview": "io.k8s.api.authentication.v1.TokenReview",
    "networking.k8s.io/v1/NetworkPolicy": "io.k8s.api.networking.v1.NetworkPolicy",
    "policy/v1/PodDisruptionBudget": "io.k8s.api.policy.v1.PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1/ClusterRole": "io.k8s.api.rbac.v1.ClusterRole",
    "rbac.authorization.k8s.io/v1/ClusterRoleBinding": "io.k8s.api.rbac.v1.ClusterRoleBinding",
    "rbac.authorization.k8s.io/v1/Role": "io.k8s.api.rbac.v1.Role",
    "rbac.authorization.k8s.io/v1/RoleBinding": "io.k8s.api.rbac.v1.RoleBinding",
}
_METADATA = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
_ANNOTATIONS = {"description", "default", "format"}
_REFERENCE = "#/definitions/"


def main(kubernetes: str, *crds: str) -> None:
    every = json.loads(Path(kubernetes).read_text("utf-8"))["$defs"]
    kinds = {kind: {"$ref": _REFERENCE + name} for kind, name in _KINDS.items()}
    for crd in crds:
        kinds |= _custom(yaml.safe_load(Path(crd).read_text("utf-8")))
    definitions: dict[str, Any] = {}
    _take(sorted(_references(kinds)), every, definitions)
    text = json.dumps({"kinds": kinds, "definitions": definitions}, separators=(",", ":"))
    STORED.write_bytes(lzma.compress(text.encode("utf-8"), preset=9))


def _custom(crd: dict[str, Any]) -> dict[str, Any]:
    """The served versions of a custom resource; as the API server does, with real metadata."""
    found = {}
    for version in crd["spec"]["versions"]:
        schema = _strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"$ref": _REFERENCE + _METADATA}
        names = crd["spec"]["group"], version["name"], crd["spec"]["names"]["kind"]
        if version["served"]:
            found["/".join(names)] = schema
    return found


def _strict(node: Any) -> Any:  # any part of a schema
    """Without texts; an object refuses fields that it does not name."""
    if isinstance(node, list):
        return [_strict(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {}
    for key, value in node.items():
        if key == "properties":
            kept[key] = {name: _strict(each) for name, each in value.items()}
        elif key not in _ANNOTATIONS and (not key.startswith("x-") or key == _FREE):
            kept[key] = _strict(value)
    is_free = kept.pop(_FREE, False)
    if "properties" in kept and "additionalProperties" not in kept and not is_free:
        kept["additionalProperties"] = False
    return kept


_FREE = "x-kubernetes-preserve-unknown-fields"


def _take(names: list[str], every: dict[str, Any], into: dict[str, Any]) -> None:
    for name in names:
        if name not in into:
            into[name] = _strict(_local(every[name]))
            _take(sorted(_references(into[name])), every, into)


def _local(node: Any) -> Any:  # any part of a schema
    if isinstance(node, list):
        return [_local(each) for each in node]
    if not isinstance(node, dict):
        return node
    found = {key: _local(value) for key, value in node.items()}
    if isinstance(found.get("$ref"), str):
        found["$ref"] = _REFERENCE + found["$ref"].rpartition("/")[2]
    return found


def _references(node: Any) -> set[str]:  # any part of a schema
    if isinstance(node, list):
        return set().union(*map(_references, node))
    if not isinstance(node, dict):
        return set()
    here = node.get("$ref")
    own = {here.removeprefix(_REFERENCE)} if isinstance(here, str) else set()
    return own.union(*map(_references, node.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
