"""The overlays of deploy/kubernetes, built by the real Kustomize and taken apart for tests."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = tuple(sorted(path.name for path in (FOLDER / "overlays").iterdir()))
_OLDEST = 5  # before, Kustomize does not know `labels`
_MISSING = "no Kustomize 5 or newer is installed: neither kustomize nor a kubectl of 1.27 or newer"
Document = dict[str, Any]


@dataclass(frozen=True)
class Built:
    """What one overlay would put into a cluster."""

    overlay: str
    documents: tuple[Document, ...]

    @property
    def is_site(self) -> bool:
        return self.overlay.startswith("site-")

    def all_of(self, kind: str) -> tuple[Document, ...]:
        return tuple(one for one in self.documents if one["kind"] == kind)

    def one(self, kind: str) -> Document:
        (found,) = self.all_of(kind)
        return found

    @property
    def pod(self) -> Document:
        spec: Document = self.one("StatefulSet")["spec"]["template"]["spec"]
        return spec

    @property
    def container(self) -> Document:
        (found,) = self.pod["containers"]
        return dict(found)

    def containers(self) -> Iterator[Document]:
        yield from self.pod["initContainers"]
        yield from self.pod["containers"]

    def config(self, name: str) -> str:
        """A file of the ConfigMap that the pod really mounts."""
        mounted = {v["configMap"]["name"] for v in self.pod["volumes"] if "configMap" in v}
        (config,) = (one for one in self.all_of("ConfigMap") if one["metadata"]["name"] in mounted)
        return str(config["data"][name])

    def mounts(self, container: Document) -> dict[Path, Document]:
        """Folders in the container, each with its volume; claims of the set count as volumes."""
        claims = self.one("StatefulSet")["spec"]["volumeClaimTemplates"]
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        volumes |= {claim["metadata"]["name"]: {"claim": claim["spec"]} for claim in claims}
        return {
            Path(mount["mountPath"]): volumes[mount["name"]] | {"readOnly": mount.get("readOnly", False)}
            for mount in container["volumeMounts"]
        }


@cache
def built(overlay: str) -> Built:
    done = subprocess.run(
        [*_builder(), str(FOLDER / "overlays" / overlay)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return Built(overlay, tuple(yaml.safe_load_all(done.stdout)))


@cache
def _builder() -> tuple[str, ...]:
    """The command that builds a kustomization; the test is skipped, with the reason, where there is none."""
    kustomize, kubectl = shutil.which("kustomize"), shutil.which("kubectl")
    if kustomize is not None:
        return (kustomize, "build")
    if kubectl is not None:
        command = [kubectl, "version", "--client", "--output=json"]
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        version = json.loads(told).get("kustomizeVersion", "v0")
        if int(version.lstrip("v").partition(".")[0]) >= _OLDEST:
            return (kubectl, "kustomize")
    pytest.skip(_MISSING)


def manifests() -> Iterator[tuple[Path, Document]]:
    """The whole resources as they are written, before any overlay."""
    for path in sorted(FOLDER.glob("base/*/*.yaml")):
        if path.name != "kustomization.yaml":
            for document in yaml.safe_load_all(path.read_text()):
                yield path, document
