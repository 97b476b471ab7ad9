"""What is compared, and the digests by which a resumed comparison is known to be the same one."""

from __future__ import annotations

import hashlib
import platform
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.errors import FedmapError
from fedmap.files.digests import file_sha256
from fedmap.study.plan.study_plan import StudyPlan
from fedmap_lab.federation.engines import EngineName
from fedmap_lab.methods.names import METHOD_NAMES

IDENTITY, DESCRIPTION = "identity.json", "comparison.json"
LIBRARIES = ("fedmap", "torch", "numpy", "scikit-learn", "scikit-survival")


@dataclass(frozen=True)
class Request:
    """A comparison as it was asked for."""

    plan: StudyPlan
    data: Path
    methods: tuple[str, ...]
    seeds: int
    rounds: int
    trials: int  # 0: nothing is tuned
    engine: EngineName


class Identity(BaseModel):
    """What may not change when a comparison is resumed. Methods and seeds may be added."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    plan_digest: str
    data_digest: str
    rounds: int
    trials: int
    engine: str
    fedmap: str


def choose_methods(text: str) -> tuple[str, ...]:
    """Names from a comma-separated list, in the order of the registry; `all` is every one."""
    asked = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in asked if name not in (*METHOD_NAMES, "all")]
    if unknown or not asked:
        raise FedmapError(
            f"unknown method: {', '.join(unknown)}" if unknown else "no method is named",
            hint=f"choose among {', '.join(METHOD_NAMES)}; or all",
        )
    return tuple(name for name in METHOD_NAMES if name in asked or "all" in asked)


def identity_of(request: Request) -> Identity:
    return Identity(
        plan_digest=request.plan.digest,
        data_digest=data_digest(request.data),
        rounds=request.rounds,
        trials=request.trials,
        engine=request.engine,
        fedmap=version("fedmap"),
    )


def data_digest(directory: Path) -> str:
    """SHA-256 over the names and digests of the files that a cohort directory lists."""
    whole = hashlib.sha256()
    files = [directory / "sites.csv", *(entry.path for entry in read_cohort_directory(directory))]
    for path in files:
        whole.update(f"{path.name} {file_sha256(path)}\n".encode())
    return whole.hexdigest()


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def command() -> str:
    """How this comparison was called."""
    return shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
