"""Source archives for the registries of the tests, and a build backend that packs a wheel."""

from __future__ import annotations

import json

from registries import Registries, build_sdist

BACKEND = "tiny-backend"
# A PEP 517 backend in 30 lines; the project says in `wheel.json` what its wheel contains.
_BACKEND_CODE = """
import base64, hashlib, json, os, zipfile

def get_requires_for_build_wheel(config_settings=None):
    return _project().get("requires", [])

def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    if os.path.exists("configure"):
        assert os.system("sh ./configure") == 0
    project = _project()
    name, version = project["name"], project["version"]
    stem = name.replace("-", "_") + "-" + version
    files = dict(project["files"])
    lines = ["Requires-Dist: " + each for each in project.get("needs", [])]
    described = ["Metadata-Version: 2.1", "Name: " + name, "Version: " + version, *lines, ""]
    files[stem + ".dist-info/METADATA"] = "\\n".join(described)
    files[stem + ".dist-info/WHEEL"] = (
        "Wheel-Version: 1.0\\nGenerator: tiny\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    rows = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        rows.append(path + ",sha256=" + digest.decode().rstrip("=") + "," + str(len(text.encode())))
    files[stem + ".dist-info/RECORD"] = "\\n".join([*rows, stem + ".dist-info/RECORD,,", ""])
    filename = stem + "-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, filename), "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return filename

def _project():
    with open("wheel.json") as file:
        return json.load(file)
"""
# Stands for setuptools: runs setup.py, which calls `setup`.
_SETUPTOOLS = """
import json

def setup(**project):
    with open("wheel.json", "w") as file:
        json.dump(project, file)
"""
_BUILD_META = """
import runpy, tiny_backend

class _Legacy:
    def build_wheel(self, wheel_directory, config_settings=None, metadata_directory=None):
        runpy.run_path("setup.py", run_name="__main__")
        return tiny_backend.build_wheel(wheel_directory)

__legacy__ = _Legacy()
"""


def add_backend(registries: Registries) -> None:
    """Publish the backend as a wheel, and a `setuptools` that uses it."""
    registries.add_wheel(BACKEND, "1.0", {"tiny_backend.py": _BACKEND_CODE})
    files = {"setuptools/__init__.py": _SETUPTOOLS, "setuptools/build_meta.py": _BUILD_META}
    registries.add_wheel("setuptools", "80.0", files, requires=[BACKEND])


def project_files(name, version="1.0", *, configure="", module=None, **project):
    """The files of a project that the backend builds; `configure` is a shell script."""
    module = module if module is not None else f"VERSION = {version!r}\n"
    described = {
        "name": name,
        "version": version,
        "files": {f"{name.replace('-', '_')}.py": module},
        **project,
    }
    files = {
        "pyproject.toml": f'[build-system]\nrequires = ["{BACKEND}"]\nbuild-backend = "tiny_backend"\n',
        "wheel.json": json.dumps(described),
    }
    return {**files, "configure": configure} if configure else files


def add_source(registries: Registries, name, version="1.0", *, files=None, **project):
    """Publish a version as source only; returns its entry of the index."""
    content = files if files is not None else project_files(name, version, **project)
    return registries.add_file(name, *build_sdist(name, version, content))
