"""The API of the configured Kubernetes cluster, for reviews of pods and for sandboxes of a cluster.

A file of its own: neither of the two needs what the other imports.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cellwall.config.models import Settings
from cellwall.fleet.kubernetes_api import ClusterSettings, KubernetesApi


@asynccontextmanager
async def open_cluster_api(settings: Settings) -> AsyncIterator[KubernetesApi]:
    """As `[kubernetes]` names it."""
    section = settings.kubernetes
    api = KubernetesApi(
        ClusterSettings(
            url=section.url,
            namespace=section.namespace,
            token_file=section.token_file,
            ca_file=section.ca_file,
        )
    )
    try:
        yield api
    finally:
        await api.close()
