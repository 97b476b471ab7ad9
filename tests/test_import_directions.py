"""Imports go one way, and a rule that is not tested is lost: every source file is read with `ast` and judged.

    common.errors ← common.algorithm ← rest of common ← aggregator, site_agent, lab (which never meet)
    the services' stage modules ← integrations, which nothing imports

What runs is not looked at, only what is written: an import inside a function or under TYPE_CHECKING counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SERVICES = ("aggregator", "site_agent", "lab")
OURS = ("common", *SERVICES, "integrations")
# What a layer over another runtime may take of the services: stages that know no network and no database.
STAGES = (
    "aggregator.answer_headers",
    "aggregator.coordinator_state",
    "aggregator.results",
    "aggregator.update_checks",
    "site_agent.cell_counts",
    "site_agent.data_loader",
    "site_agent.egress",
    "site_agent.egress_checks",
    "site_agent.failures",
    "site_agent.local_trainer",
    "site_agent.policy",
    "site_agent.state",
)
FOLDERS = (*OURS, "tests")

# The algorithm gets tensors and gives tensors. Anything else of the standard library (files, clocks, logging,
# sockets, processes, randomness without a seed) has to be argued into this list.
ALGORITHM_LIBRARIES = frozenset({"torch", "numpy", "annotated_types"})
ALGORITHM_STANDARD = frozenset(
    [
        "__future__",
        "abc",
        "collections",
        "dataclasses",
        "enum",
        "functools",
        "hashlib",
        "itertools",
        "json",
        "math",
        "typing",
    ]
)
ALGORITHM_OURS = ("common.algorithm", "common.errors")
BUILT_IN_IO = frozenset({"open", "print", "input", "exec", "eval", "compile"})
LIBRARY_IO = frozenset(
    [
        "save",
        "load",
        "savez",
        "savez_compressed",
        "savetxt",
        "loadtxt",
        "genfromtxt",
        "fromfile",
        "tofile",
        "memmap",
    ]
)

PANDAS_MODULES = ("common.data", "lab.cohorts", "lab.public_data")
GRPC_MODULES = (
    "common.contract",
    "common.transport",
    "aggregator.servicers",
    "aggregator.server",
    "aggregator.operator_client",
    "site_agent.connection",
)
GRPC_LIBRARIES = ("grpc", "grpc_health", "grpc_reflection", "grpc_status")
WEB_MODULES = ("common.web", "site_agent.prediction_server", "lab.report.page")
WEB_LIBRARIES = ("starlette", "uvicorn", "h11", "jinja2", "markupsafe")
DATABASE_MODULES = ("aggregator.store",)
DATABASE_LIBRARIES = ("sqlalchemy", "alembic", "sqlite3", "psycopg")
FLOWER_MODULES = ("integrations.flower",)
FLOWER_LIBRARIES = ("flwr", "ray")
DYNAMIC_IMPORTS = frozenset({"__import__", "import_module"})


@dataclass(frozen=True)
class Import:
    """One imported name: `from a import b` gives a.b."""

    line: int
    target: str

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Module:
    """One source file as the rules see it."""

    name: str  # dotted; a package is named without __init__
    tree: ast.Module
    is_package: bool = False

    def imports(self) -> Iterator[Import]:
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                yield from (Import(node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = self._base(node)
                yield from (Import(node.lineno, f"{base}.{alias.name}") for alias in node.names)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = self.name.split(".")
        up = node.level - self.is_package
        package = parts[: len(parts) - up]
        return ".".join([*package, node.module] if node.module else package)

    def calls(self) -> Iterator[tuple[int, str]]:
        """(line, name) of each call, the name being the last part of what is called."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield node.lineno, node.func.id
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield node.lineno, f".{node.func.attr}"


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def parse(name: str, source: str, is_package: bool = False) -> Module:
    return Module(name, ast.parse(source), is_package)


def source_modules() -> list[Module]:
    modules = []
    for folder in OURS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules.append(parse(name, path.read_text(encoding="utf-8"), is_package))
    return modules


def violations(module: Module) -> list[str]:
    """Every breach of a rule in one module, as `module:line what, why`."""
    found = [
        f"{module.name}:{i.line} imports {i.target}, {why}"
        for i in module.imports()
        for why in _why(module, i)
    ]
    for line, name in module.calls():
        if name.lstrip(".") in DYNAMIC_IMPORTS:
            found.append(f"{module.name}:{line} calls {name}, an import that no rule can see")
        if within(module.name, "common.algorithm"):
            if name in BUILT_IN_IO:
                found.append(f"{module.name}:{line} calls {name}, which the algorithm may not")
            if name.startswith(".") and name[1:] in LIBRARY_IO:
                found.append(f"{module.name}:{line} calls {name}, file access in the algorithm")
    if within(module.name, "common.algorithm"):
        found += [
            f"{module.name}:{node.lineno} has a global statement, and the algorithm keeps no state"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Global)
        ]
    return found


def _why(module: Module, imported: Import) -> Iterator[str]:
    """The rules that one import breaks."""
    name, target = module.name, imported.target
    ours = imported.top in FOLDERS
    if name == "common.errors" and ours:
        yield "but common.errors imports nothing of ours"
    if within(name, "common.algorithm"):
        if ours and not within(target, *ALGORITHM_OURS):
            yield "but common.algorithm imports only itself and common.errors of ours"
        if not ours and imported.top not in ALGORITHM_LIBRARIES | ALGORITHM_STANDARD:
            yield "which is not on the algorithm's list of libraries"
    if within(name, "common") and within(target, *SERVICES):
        yield "but common never imports a service or the lab"
    for service in SERVICES:
        if within(name, service) and within(target, *(other for other in SERVICES if other != service)):
            yield "but aggregator, site_agent and lab never import each other"
    if within(target, "integrations") and not within(name, "integrations"):
        yield "but nothing imports an integration"
    if within(name, "integrations") and within(target, *SERVICES) and not within(target, *STAGES):
        yield "but an integration takes the services' stages only"
    if within(target, "tests"):
        yield "but nothing imports the tests"
    if imported.top == "pandas" and not within(name, *PANDAS_MODULES):
        yield f"but pandas is imported in {', '.join(PANDAS_MODULES)} only"
    if imported.top in GRPC_LIBRARIES and not within(name, *GRPC_MODULES):
        yield "but grpc is imported in the transport modules only"
    if imported.top in WEB_LIBRARIES and not within(name, *WEB_MODULES):
        yield "but the web libraries are imported in the web modules only"
    if imported.top in FLOWER_LIBRARIES and not within(name, *FLOWER_MODULES):
        yield "but Flower is known to its integration only"
    if imported.top in DATABASE_LIBRARIES and not within(name, *DATABASE_MODULES):
        yield "but the database is spoken to in aggregator.store only"


def test_every_module_keeps_to_the_import_directions() -> None:
    found = [violation for module in source_modules() for violation in violations(module)]
    assert not found, "\n" + "\n".join(found)


def test_the_whole_tree_was_read() -> None:
    names = {module.name for module in source_modules()}
    assert {"common", "common.errors", "common.algorithm", "common.algorithm.fitting", *SERVICES} <= names
    assert len(names) == sum(1 for folder in OURS for _ in (ROOT / folder).rglob("*.py"))


def test_every_listed_exception_still_exists() -> None:
    names = {module.name for module in source_modules()}
    listings = (PANDAS_MODULES, GRPC_MODULES, WEB_MODULES, DATABASE_MODULES, FLOWER_MODULES, STAGES)
    for listed in (one for listing in listings for one in listing):
        assert any(within(name, listed) for name in names), f"{listed} is listed and gone"


@pytest.mark.parametrize(
    ("name", "source", "named"),
    [
        ("common.errors", "import common.plan", "common.plan"),
        ("common.errors", "from common.algorithm.examples import Examples", "common.algorithm.examples"),
        ("common.algorithm.fitting", "from common.plan import StudyPlan", "common.plan.StudyPlan"),
        ("common.algorithm.fitting", "from common import models", "common.models"),
        ("common.algorithm.fitting", "import common", "imports common,"),
        ("common.algorithm.fitting", "from common import *", "common.*"),
        ("common.algorithm.fitting", "from ..data import loading", "common.data.loading"),
        ("common.algorithm.fitting", "from .. import metrics", "common.metrics"),
        ("common.algorithm.fitting", "import pandas as pd", "pandas"),
        ("common.algorithm.fitting", "import logging", "logging"),
        ("common.algorithm.fitting", "from pathlib import Path", "pathlib.Path"),
        ("common.algorithm.fitting", "import os.path", "os.path"),
        ("common.algorithm.fitting", "def f():\n    import time", "time"),
        ("common.algorithm.fitting", "import structlog", "structlog"),
        ("common.algorithm.fitting", "import sqlite3", "sqlite3"),
        ("common.algorithm.fitting", "import random", "random"),
        ("common.algorithm.fitting", "open('x')", "open"),
        ("common.algorithm.fitting", "torch.save(x, 'x')", ".save"),
        ("common.algorithm.fitting", "def f():\n    global x", "global"),
        ("common.plan.reading", "from lab.cohorts import cprd", "lab.cohorts.cprd"),
        (
            "common.models",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import aggregator.store",
            "aggregator.store",
        ),
        ("common.models", "from site_agent import egress", "site_agent.egress"),
        ("aggregator.wiring", "import lab", "lab"),
        ("site_agent.egress", "from aggregator.store import Store", "aggregator.store"),
        ("lab.simulator", "from site_agent.local_trainer import train", "site_agent.local_trainer"),
        ("lab.simulator", "import pandas", "pandas"),
        ("lab.public_database", "import pandas", "pandas"),
        ("common.metrics.survival", "from pandas import DataFrame", "pandas.DataFrame"),
        ("site_agent.egress", "import grpc", "grpc"),
        ("aggregator.store", "from grpc import aio", "grpc.aio"),
        ("aggregator.service", "from sqlalchemy import select", "sqlalchemy.select"),
        ("aggregator.service", "import uvicorn", "uvicorn"),
        ("common.telemetry", "from starlette.requests import Request", "starlette.requests.Request"),
        ("site_agent.personal_report", "import jinja2", "jinja2"),
        ("aggregator.doctor", "import sqlite3", "sqlite3"),
        ("lab.simulator", "import tests.common", "tests.common"),
        ("lab.simulator", "from integrations.flower import strategy", "integrations.flower.strategy"),
        ("common.models", "import integrations", "integrations"),
        ("aggregator.wiring", "import flwr", "flwr"),
        ("integrations.flower.server", "from aggregator.store import Store", "aggregator.store.Store"),
        ("integrations.flower.node", "import site_agent.connection", "site_agent.connection"),
        ("integrations.flower.node", "import lab.engines", "lab.engines"),
        ("integrations.flower.node", "import grpc", "grpc"),
        ("common.models", "import importlib\nimportlib.import_module('lab')", "import_module"),
        ("common.models", "__import__('lab')", "__import__"),
    ],
)
def test_a_forbidden_import_is_found_and_named(name: str, source: str, named: str) -> None:
    found = violations(parse(name, source))
    assert found, "the violation was not seen"
    assert all(line.startswith(f"{name}:") and named in line for line in found)


def test_a_relative_import_of_a_package_is_resolved_from_the_package_itself() -> None:
    assert not violations(parse("common.algorithm", "from .likelihood import Outcome", is_package=True))
    (found,) = violations(parse("common.algorithm", "from ..plan import StudyPlan", is_package=True))
    assert "common.plan.StudyPlan" in found


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("common.errors", "from __future__ import annotations"),
        ("common.algorithm.fitting", "import torch.nn.functional as F\nimport numpy as np"),
        ("common.algorithm.fitting", "from common.errors import ModelError\nfrom common import errors"),
        ("common.algorithm.fitting", "from .likelihood import Outcome\nfrom annotated_types import Ge"),
        ("common.data.loading", "import pandas as pd\nimport os\nfrom common.plan import StudyPlan"),
        ("lab.cohorts.cprd", "import pandas as pd\nfrom common.algorithm import fitting"),
        ("lab.public_data", "import pandas as pd"),
        ("aggregator.store", "from common.algorithm.prior import Prior\nimport sqlite3"),
        ("common.web.pages", "import jinja2\nfrom starlette.routing import Route"),
        ("common.laboratory", "import labelling"),
        ("integrations.flower.client", "import flwr\nfrom site_agent.local_trainer import perform"),
        ("integrations.flower.exchange", "from aggregator.update_checks import check_answer"),
    ],
)
def test_an_allowed_import_is_left_alone(name: str, source: str) -> None:
    assert violations(parse(name, source)) == []
