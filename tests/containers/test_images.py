"""What the built images hold, and what they do not."""

from __future__ import annotations

import json

import pytest

from tests.containers.engine import IMAGES, VERSION, Engine

pytestmark = pytest.mark.containers

COPYLEFT = {"aggregator": "LGPL-3.0-only", "site": "GPL-3.0-or-later", "lab": "GPL-3.0-or-later"}
"""What an image brings along beside permissive licences: see NOTICE."""
FOUND = """
import importlib.util, json, sys
print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n) is not None]))
"""


def importable(engine: Engine, image: str, *names: str) -> list[str]:
    listed = f"import sys; sys.argv[1:] = {list(names)!r}\n{FOUND}"
    found: list[str] = json.loads(engine.inside(image, listed))
    return found


@pytest.mark.parametrize(
    ("image", "needed", "unwanted"),
    [
        ("site", ["fedmap_site", "fedmap", "torch", "pandas"], ["sqlalchemy", "alembic"]),
        ("aggregator", ["fedmap_aggregator", "fedmap", "torch", "psycopg"], ["pandas", "sklearn"]),
        ("lab", ["fedmap_lab", "fedmap", "matplotlib"], ["sqlalchemy"]),
    ],
)
def test_an_image_holds_its_own_packages_and_nobody_elses(
    engine: Engine, image: str, needed: list[str], unwanted: list[str]
) -> None:
    others = [f"fedmap_{other}" for other in (*IMAGES, "flower") if other != image]
    unwanted = [*unwanted, *others, "tests", "deploy", "pytest", "pip", "grpc_tools"]
    assert importable(engine, image, *needed, *unwanted) == needed


@pytest.mark.parametrize("image", IMAGES)
def test_no_image_holds_compilers_sources_of_tests_or_commands_beside_its_own(
    engine: Engine, image: str
) -> None:
    looked = """
import json, pathlib, shutil
bin = sorted(p.name for p in pathlib.Path("/opt/fedmap/bin").iterdir() if not p.name.startswith("python"))
site = next(pathlib.Path("/opt/fedmap/lib").glob("python3*/site-packages"))
heavy = [str(p) for p in (site / "torch/include", site / "pandas/tests", site / "numpy/tests") if p.exists()]
tools = [t for t in ("cc", "gcc", "g++", "make", "curl", "wget", "git") if shutil.which(t)]
print(json.dumps({"bin": bin, "heavy": heavy, "tools": tools}))
"""
    assert json.loads(engine.inside(image, looked)) == {"bin": [f"fedmap-{image}"], "heavy": [], "tools": []}


@pytest.mark.parametrize("image", IMAGES)
def test_torch_is_the_cpu_build_of_the_pinned_version(engine: Engine, image: str) -> None:
    code = "import torch; print(torch.version.cuda, torch.__version__.partition('+')[0])"
    assert engine.inside(image, code).split() == ["None", "2.13.0"]


@pytest.mark.parametrize("image", IMAGES)
def test_labels_and_the_user_are_set(engine: Engine, image: str) -> None:
    config = engine.inspect(IMAGES[image])["Config"]
    labels = {key.rpartition(".")[2]: value for key, value in config["Labels"].items()}
    assert (labels["title"], labels["licenses"]) == (f"fedmap-{image}", f"Apache-2.0 AND {COPYLEFT[image]}")
    assert labels["version"] == VERSION
    assert len(labels["revision"]) == 40 or labels["revision"] == "unknown"
    assert config["User"] == "65532:65532"


@pytest.mark.parametrize(("image", "command"), [("site", "fedmap-site"), ("aggregator", "fedmap-aggregator")])
def test_a_service_has_a_health_check_of_its_own(engine: Engine, image: str, command: str) -> None:
    found = engine.inspect(IMAGES[image])
    check = found["Config"].get("Healthcheck") or found["Healthcheck"]  # docker, podman
    assert check["Test"] == ["CMD", command, "health"]


@pytest.mark.parametrize("image", IMAGES)
def test_a_read_only_container_finds_all_byte_code_and_writes_none(engine: Engine, image: str) -> None:
    """Else it would compile at every start and at every health check."""
    looked = """
import importlib.util, json, pathlib, sys
import pydantic, structlog, typer
files = {getattr(m, "__file__", None) for m in list(sys.modules.values())}
sources = [f for f in files if f and f.endswith(".py")]
print(json.dumps([f for f in sources if not pathlib.Path(importlib.util.cache_from_source(f)).exists()]))
"""
    assert json.loads(engine.inside(image, looked)) == []


@pytest.mark.parametrize("image", IMAGES)
def test_a_container_starts_without_home_and_without_an_account(engine: Engine, image: str) -> None:
    options = ("--rm", "--network", "none", *engine.hardened, "--env", "HOME=")
    assert "Usage" in engine.run("run", *options, IMAGES[image], "--help").stdout
