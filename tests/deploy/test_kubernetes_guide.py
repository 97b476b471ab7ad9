"""The kubectl commands of docs/operator.md without a cluster: what each would make is what the pods ask for.

`create` runs as written with `--dry-run=client`, `apply -k` is built by Kustomize. Only a cluster answers
`rollout` and `exec`; the overlays are asked whether there is such a set in that namespace.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.kubernetes_files import FOLDER, Built, built
from tests.services.guide_pages import blocks_of, words_of

INPUTS = ("database-url", "server.pem", "server.key", "client-ca.pem", "release-key.pem", "joining.pem")
"""The files that the guide's reader has in the folder."""


def lines(start: str) -> list[str]:
    found = [line for block in blocks_of("operator.md") for line in block.commands if line.startswith(start)]
    assert found
    return found


def made_by(line: str, folder: Path) -> dict[str, Any]:
    """What a `kubectl create` of the guide would send to the cluster."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    for name in INPUTS:
        (folder / name).write_text(f"content of {name}\n")
    command = [*words_of(line), "--dry-run=client", "--output=yaml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read: dict[str, Any] = yaml.safe_load(done.stdout)
    return read


def secrets_of(overlay: Built) -> Iterator[tuple[str, set[str]]]:
    """Each Secret that an overlay mounts or reads, with the keys that it takes from it by name."""
    config = overlay.config("site.toml" if overlay.is_site else "aggregator.toml")
    for container in overlay.containers():
        for folder, volume in overlay.mounts(container).items():
            if "secret" in volume:
                chosen = {one["key"] for one in volume["secret"].get("items", ())}
                named = set(re.findall(rf'"{folder}/([^"/]+)"', config))
                yield volume["secret"]["secretName"], chosen or named
        for one in container.get("env", ()):
            reference = one.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                yield reference["name"], {reference["key"]}


@pytest.mark.parametrize("line", lines("kubectl create"))
def test_what_the_guide_creates_has_the_name_and_the_keys_that_the_pods_ask_for(
    line: str, tmp_path: Path
) -> None:
    made = made_by(line, tmp_path)
    overlays = [built(name) for name in ("aggregator-postgres", "site-review")]
    if made["kind"] == "Namespace":
        assert made["metadata"]["name"] in {o.one("Namespace")["metadata"]["name"] for o in overlays}
        return
    (asks,) = [
        overlay
        for overlay in overlays
        if made["metadata"]["name"] in {name for name, _ in secrets_of(overlay)}
    ]
    assert made["metadata"]["namespace"] == asks.one("Namespace")["metadata"]["name"]
    taken = [keys for name, keys in secrets_of(asks) if name == made["metadata"]["name"]]
    assert set().union(*taken) <= set(made["data"])


def test_the_guide_creates_every_secret_that_the_overlays_ask_for(tmp_path: Path) -> None:
    made = [made_by(line, tmp_path) for line in lines("kubectl create")]
    created = {one["metadata"]["name"] for one in made if one["kind"] == "Secret"}
    for overlay in (built("aggregator-postgres"), built("site-review")):
        assert {name for name, _ in secrets_of(overlay)} <= created


@pytest.mark.parametrize("line", lines("kubectl apply"))
def test_the_overlay_that_the_guide_applies_is_there(line: str) -> None:
    *_, folder = words_of(line)
    assert (FOLDER.parents[1] / folder).resolve().parent == FOLDER / "overlays"
    assert built(Path(folder).name).documents


@pytest.mark.parametrize("line", lines("kubectl rollout") + lines("kubectl exec"))
def test_the_set_that_the_guide_speaks_to_exists_in_that_namespace(line: str) -> None:
    (name,), (namespace,) = re.findall(r"statefulset/(\S+)", line), re.findall(r"--namespace=(\S+)", line)
    found = {
        (one["metadata"]["name"], one["metadata"]["namespace"])
        for overlay in ("aggregator-postgres", "aggregator-sqlite", "site-review", "site-proxy")
        for one in built(overlay).all_of("StatefulSet")
    }
    assert (name, namespace) in found
