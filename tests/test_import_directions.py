"""Imports go one way, and a rule that is not tested is lost: every source file is read with `ast` and judged.

    fedmap ← fedmap_aggregator, fedmap_site, fedmap_lab, which never meet
    the services' stage modules ← fedmap_flower, which nothing imports

Inside a package, `ROOMS` is the one table of rooms, lowest first: a module imports from its own room and from
rooms below it. What runs is not looked at, only what is written: an import inside a function or under
TYPE_CHECKING counts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    "fedmap": "common",
    "fedmap_aggregator": "aggregator",
    "fedmap_site": "site_agent",
    "fedmap_lab": "lab",
    "fedmap_flower": "integrations/flower",
}
"""Each import package, and the folder that is its source root."""
SERVICES = ("fedmap_aggregator", "fedmap_site", "fedmap_lab")
ROOMS = {
    "fedmap": (
        *("errors", "names", "contract", "files", "process", "trust"),
        *("algorithm.settings", "algorithm.seeding", "algorithm.examples"),
        *("algorithm.model", "algorithm.prior", "algorithm.fit", "algorithm.pooling", "algorithm"),
        *("outcomes", "metrics", "study.plan", "scoring", "data.table", "data.rules", "data"),
        *("shift.told", "shift", "study.course", "study.tensors", "study"),
        *("bundles.manifest", "bundles.card", "bundles", "transport", "web"),
    ),
    "fedmap_aggregator": (
        *("config", "store.database", "store", "metrics", "identity", "studies", "estimation"),
        *("gate", "release", "upkeep", "rpc.handlers", "rpc", "operator", "checkup", "study_metrics"),
        *("wiring", "cli"),
    ),
    "fedmap_site": (
        *("config", "policy", "metrics", "link", "identity", "state", "data"),
        *("exit", "upkeep", "loop", "bundles", "predict", "personalise", "checkup", "wiring"),
        *("cli.options", "cli.bundles", "cli"),
    ),
    "fedmap_lab": (
        *(
            "wording",
            "tables",
            "eicu",
            "cohorts",
            "federation",
            "methods.names",
            "methods",
            "simulation",
            "statistics",
        ),
        *("comparison", "report.facts", "report.prior", "report.figures", "report.page", "report"),
        *("local", "bench", "cli"),
    ),
    "fedmap_flower": ("records", "node", "centre", "processes", "cli"),
}
"""The rooms of each package in their one order: a dotted prefix, or a module that stands alone."""
MOST_MODULES, MOST_LINES = 12, 1_600
LIKE_THINGS = ("fedmap_lab.cohorts", "fedmap_lab.methods")
"""Folders of like things, one method or one cohort a file: they may hold more."""
# What a layer over another runtime may take of the services: stages that know no network and no database.
STAGES = (
    "fedmap_aggregator.gate.headers",
    "fedmap_aggregator.gate.updates",
    "fedmap_aggregator.operator.results",
    "fedmap_site.data.cell_counts",
    "fedmap_site.data.loader",
    "fedmap_site.exit.checks",
    "fedmap_site.exit.gate",
    "fedmap_site.policy",
    "fedmap_site.state.studies",
)

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
ALGORITHM_OURS = ("fedmap.algorithm", "fedmap.errors")
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

PANDAS_MODULES = ("fedmap.data", "fedmap_lab.eicu", "fedmap_lab.cohorts")
GRPC_MODULES = (
    "fedmap.contract",
    "fedmap.transport",
    "fedmap_aggregator.rpc.services",
    "fedmap_aggregator.rpc.server",
)
GRPC_LIBRARIES = ("grpc", "grpc_health", "grpc_reflection", "grpc_status")
WEB_MODULES = (
    "fedmap.bundles.card.text",
    "fedmap.web",
    "fedmap_site.predict.server",
    "fedmap_lab.report.writing",
)
WEB_LIBRARIES = ("starlette", "uvicorn", "h11", "jinja2", "markupsafe")
DATABASE_MODULES = ("fedmap_aggregator.store",)
DATABASE_LIBRARIES = ("sqlalchemy", "alembic", "sqlite3", "psycopg")
FLOWER_MODULES = ("fedmap_flower",)
FLOWER_LIBRARIES = ("flwr", "ray")
_SAID = ("In", "Out", "May import")
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
    lines: int = 0

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
    return Module(name, ast.parse(source), is_package, source.count("\n"))


def source_modules() -> list[Module]:
    modules = []
    for package, folder in SOURCES.items():
        for path in sorted((ROOT / folder / package).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            modules.append(parse(name, path.read_text(encoding="utf-8"), is_package))
    return modules


def room_of(name: str) -> tuple[str, int] | None:
    """The package of a module or of something in one, and the place of its room in the order."""
    package, _, rest = name.partition(".")
    places = [place for place, room in enumerate(ROOMS.get(package, ())) if within(rest, room)]
    if not places:
        return None
    return package, max(places, key=lambda place: len(ROOMS[package][place]))


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
        if within(module.name, "fedmap.algorithm"):
            if name in BUILT_IN_IO:
                found.append(f"{module.name}:{line} calls {name}, which the algorithm may not")
            if name.startswith(".") and name[1:] in LIBRARY_IO:
                found.append(f"{module.name}:{line} calls {name}, file access in the algorithm")
    if within(module.name, "fedmap.algorithm"):
        found += [
            f"{module.name}:{node.lineno} has a global statement, and the algorithm keeps no state"
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Global)
        ]
    return found


def _why(module: Module, imported: Import) -> Iterator[str]:
    """The rules that one import breaks."""
    name, target = module.name, imported.target
    ours = imported.top in (*SOURCES, "tests")
    here, there = room_of(name), room_of(target)
    if here and there and here[0] == there[0] and here[1] < there[1]:
        room = ROOMS[there[0]][there[1]]
        yield f"but the room {room} is above its own, and imports go to lower rooms only"
    if name == "fedmap.errors" and ours:
        yield "but fedmap.errors imports nothing of ours"
    if within(name, "fedmap.algorithm"):
        if ours and not within(target, *ALGORITHM_OURS):
            yield "but fedmap.algorithm imports only itself and fedmap.errors of ours"
        if not ours and imported.top not in ALGORITHM_LIBRARIES | ALGORITHM_STANDARD:
            yield "which is not on the algorithm's list of libraries"
    if within(name, "fedmap") and within(target, *SERVICES):
        yield "but the library never imports a service or the lab"
    for service in SERVICES:
        if within(name, service) and within(target, *(other for other in SERVICES if other != service)):
            yield "but the services and the lab never import each other"
    if within(target, "fedmap_flower") and not within(name, "fedmap_flower"):
        yield "but nothing imports an integration"
    if within(name, "fedmap_flower") and within(target, *SERVICES) and not within(target, *STAGES):
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
        yield "but the database is spoken to in fedmap_aggregator.store only"


def test_every_module_keeps_to_the_import_directions() -> None:
    found = [violation for module in source_modules() for violation in violations(module)]
    assert not found, "\n" + "\n".join(found)


def test_every_module_stands_in_a_room_of_the_table() -> None:
    modules = (module for module in source_modules() if not within(module.name, "fedmap_flower.apps"))
    packages = {"fedmap.data", "fedmap.shift", "fedmap_lab.report"}
    lost = [m.name for m in modules if "." in m.name and not room_of(m.name) and m.name not in packages]
    assert not lost, lost


def test_no_room_holds_more_than_a_reader_can_keep_in_mind() -> None:
    modules: dict[str, int] = {}
    lines: dict[str, int] = {}
    for module in source_modules():
        place = room_of(module.name)
        if place is None or within(module.name, "fedmap.contract.v1"):
            continue
        room = f"{place[0]}.{ROOMS[place[0]][place[1]]}"
        modules[room] = modules.get(room, 0) + (not module.is_package)
        lines[room] = lines.get(room, 0) + module.lines
    full = {
        room: (count, lines[room])
        for room, count in modules.items()
        if room not in LIKE_THINGS and (count > MOST_MODULES or lines[room] > MOST_LINES)
    }
    assert not full, f"modules and lines: {full}"


def test_no_chain_of_imports_has_twenty_modules() -> None:
    """Whoever follows an import downwards arrives."""
    imports = {module.name: set(module.imports()) for module in source_modules()}

    def named(target: str) -> str:
        while target and target not in imports:
            target = target.rpartition(".")[0]
        return target

    @cache
    def longest(name: str) -> tuple[str, ...]:
        below = {named(found.target) for found in imports[name]} - {name, ""}
        return (name, *max((longest(one) for one in below), key=len, default=()))

    chain = max(map(longest, imports), key=len)
    assert len(chain) < 20, " → ".join(chain)


def test_few_modules_know_protobuf() -> None:
    knowing = {
        module.name
        for module in source_modules()
        for found in module.imports()
        if within(found.target, "google.protobuf") or "_pb2" in found.target
    }
    ours = {name for name in knowing if not within(name, "fedmap.contract.v1")}
    assert ours <= {
        "fedmap.contract.wire",
        "fedmap_aggregator.rpc.server",
        "fedmap_flower.processes.executor",
    }


@pytest.mark.parametrize(
    ("function", "callers"),
    [
        ("next_prior", {"fedmap.study.centre_step"}),
        ("fit_sites", {"fedmap.study.engine", "fedmap_lab.federation.engines"}),
    ],
)
def test_each_half_of_a_round_is_called_in_one_place(function: str, callers: set[str]) -> None:
    """The centre's by the centre's step, the sites' once by each engine, whatever runs the study."""
    calling = {
        module.name
        for module in source_modules()
        if not within(module.name, "fedmap.algorithm") and function in (name for _, name in module.calls())
    }
    assert calling == callers


def test_every_room_says_what_comes_in_what_goes_out_and_what_it_may_import() -> None:
    silent = [
        module.name
        for module in source_modules()
        if module.is_package
        and room_of(module.name)
        and not all(f"\n{word}: " in (ast.get_docstring(module.tree) or "") for word in _SAID)
    ]
    assert not silent, silent


def test_the_whole_tree_was_read() -> None:
    names = {module.name for module in source_modules()}
    assert {"fedmap.errors", "fedmap.algorithm.fit.fitting", *SOURCES} <= names
    assert len(names) == sum(1 for folder in set(SOURCES.values()) for _ in (ROOT / folder).rglob("*.py"))


def test_every_listed_exception_still_exists() -> None:
    names = {module.name for module in source_modules()}
    rooms = tuple(f"{package}.{room}" for package, order in ROOMS.items() for room in order)
    listings = (PANDAS_MODULES, GRPC_MODULES, WEB_MODULES, DATABASE_MODULES, STAGES, LIKE_THINGS, rooms)
    for listed in (one for listing in listings for one in listing):
        assert any(within(name, listed) for name in names), f"{listed} is listed and gone"


@pytest.mark.parametrize(
    ("name", "source", "named"),
    [
        ("fedmap.errors", "import fedmap.study.plan", "fedmap.study.plan"),
        ("fedmap.errors", "from fedmap.algorithm.examples import Examples", "fedmap.algorithm.examples"),
        (
            "fedmap.algorithm.fit.fitting",
            "from fedmap.study.plan import StudyPlan",
            "fedmap.study.plan.StudyPlan",
        ),
        ("fedmap.algorithm.fit.fitting", "from fedmap.study import models", "fedmap.study.models"),
        ("fedmap.algorithm.fit.fitting", "import fedmap", "imports fedmap,"),
        ("fedmap.algorithm.fit.fitting", "from fedmap import *", "fedmap.*"),
        ("fedmap.algorithm.fit.fitting", "from ...data import loading", "fedmap.data.loading"),
        ("fedmap.algorithm.fit.fitting", "from ... import metrics", "fedmap.metrics"),
        ("fedmap.algorithm.fit.fitting", "import pandas as pd", "pandas"),
        ("fedmap.algorithm.fit.fitting", "import logging", "logging"),
        ("fedmap.algorithm.fit.fitting", "from pathlib import Path", "pathlib.Path"),
        ("fedmap.algorithm.fit.fitting", "import os.path", "os.path"),
        ("fedmap.algorithm.fit.fitting", "def f():\n    import time", "time"),
        ("fedmap.algorithm.fit.fitting", "import structlog", "structlog"),
        ("fedmap.algorithm.fit.fitting", "import sqlite3", "sqlite3"),
        ("fedmap.algorithm.fit.fitting", "import random", "random"),
        ("fedmap.algorithm.fit.fitting", "open('x')", "open"),
        ("fedmap.algorithm.fit.fitting", "torch.save(x, 'x')", ".save"),
        ("fedmap.algorithm.fit.fitting", "def f():\n    global x", "global"),
        ("fedmap.study.plan.reading", "from fedmap_lab.cohorts import cprd", "fedmap_lab.cohorts.cprd"),
        (
            "fedmap.study.models",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import fedmap_aggregator.store",
            "fedmap_aggregator.store",
        ),
        ("fedmap.study.models", "from fedmap_site.exit import gate", "fedmap_site.exit.gate"),
        ("fedmap_aggregator.wiring", "import fedmap_lab", "fedmap_lab"),
        ("fedmap_site.exit.gate", "from fedmap_aggregator.store import Store", "fedmap_aggregator.store"),
        (
            "fedmap_lab.simulation.simulator",
            "from fedmap_site.data.loader import train",
            "fedmap_site.data.loader",
        ),
        ("fedmap_lab.simulation.simulator", "import pandas", "pandas"),
        ("fedmap_lab.cohorts_of_others", "import pandas", "pandas"),
        ("fedmap.metrics.survival", "from pandas import DataFrame", "pandas.DataFrame"),
        ("fedmap_site.exit.gate", "import grpc", "grpc"),
        ("fedmap_aggregator.store", "from grpc import aio", "grpc.aio"),
        ("fedmap_aggregator.studies.service", "from sqlalchemy import select", "sqlalchemy.select"),
        ("fedmap_aggregator.studies.service", "import uvicorn", "uvicorn"),
        ("fedmap.process.telemetry", "from starlette.requests import Request", "starlette.requests.Request"),
        ("fedmap_site.personalise.report", "import jinja2", "jinja2"),
        ("fedmap_aggregator.checkup.doctor", "import sqlite3", "sqlite3"),
        ("fedmap_lab.simulation.simulator", "import tests.common", "tests.common"),
        (
            "fedmap_lab.simulation.simulator",
            "from fedmap_flower.centre import strategy",
            "fedmap_flower.centre.strategy",
        ),
        ("fedmap.study.models", "import fedmap_flower", "fedmap_flower"),
        ("fedmap_aggregator.wiring", "import flwr", "flwr"),
        (
            "fedmap_flower.centre.server",
            "from fedmap_aggregator.store import Store",
            "fedmap_aggregator.store.Store",
        ),
        ("fedmap_flower.node.node", "import fedmap_site.link.connection", "fedmap_site.link.connection"),
        ("fedmap_flower.node.node", "import fedmap_lab.federation.engines", "fedmap_lab.federation.engines"),
        ("fedmap_flower.node.node", "import grpc", "grpc"),
        ("fedmap.study.models", "import importlib\nimportlib.import_module('fedmap_lab')", "import_module"),
        ("fedmap.study.models", "__import__('fedmap_lab')", "__import__"),
    ],
)
def test_a_forbidden_import_is_found_and_named(name: str, source: str, named: str) -> None:
    found = violations(parse(name, source))
    assert found, "the violation was not seen"
    assert all(line.startswith(f"{name}:") and named in line for line in found)


def test_a_relative_import_of_a_package_is_resolved_from_the_package_itself() -> None:
    assert not violations(parse("fedmap.algorithm", "from .likelihood import Outcome", is_package=True))
    found = violations(parse("fedmap.algorithm", "from ..study.plan import StudyPlan", is_package=True))
    assert all("fedmap.study.plan.StudyPlan" in line for line in found)
    assert len(found) == 2  # of the algorithm's own rule, and of the order of rooms


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("fedmap.errors", "from __future__ import annotations"),
        ("fedmap.algorithm.fit.fitting", "import torch.nn.functional as F\nimport numpy as np"),
        ("fedmap.algorithm.fit.fitting", "from fedmap.errors import ModelError\nfrom fedmap import errors"),
        ("fedmap.algorithm.fit.fitting", "from .likelihood import Outcome\nfrom annotated_types import Ge"),
        ("fedmap.data.loading", "import pandas as pd\nimport os\nfrom fedmap.study.plan import StudyPlan"),
        ("fedmap_lab.cohorts.cprd", "import pandas as pd\nfrom fedmap.algorithm import fitting"),
        ("fedmap_lab.cohorts.public_data", "import pandas as pd"),
        ("fedmap_aggregator.store", "from fedmap.algorithm.prior.values import Prior\nimport sqlite3"),
        ("fedmap.web.pages", "import jinja2\nfrom starlette.routing import Route"),
        ("fedmap.laboratory", "import labelling"),
        ("fedmap_flower.node.client", "import flwr\nfrom fedmap_site.data.loader import perform"),
        ("fedmap_flower.centre.exchange", "from fedmap_aggregator.gate.updates import check_answer"),
    ],
)
def test_an_allowed_import_is_left_alone(name: str, source: str) -> None:
    assert violations(parse(name, source)) == []
