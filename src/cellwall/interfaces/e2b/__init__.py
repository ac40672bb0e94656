"""Endpoints below `/e2b` for unmodified E2B SDKs: control plane, envd, code interpreter."""
