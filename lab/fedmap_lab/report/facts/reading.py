"""The folder of a comparison as facts: its tables, its description and its models, and nothing else.

A site counts once in the facts, with its mean over seeds. A folder that is none, or that lacks a file or a
column, is an error that names it; nothing is guessed. No statistics are made here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedmap.errors import FedmapError
from fedmap.files.durable import read_file
from fedmap.metrics import METRICS
from fedmap_lab.comparison.request import DESCRIPTION, IDENTITY
from fedmap_lab.simulation.kept_models import ABOUT, SiteModels, read_models
from fedmap_lab.tables import HINT, read_rows
from fedmap_lab.wording import counted


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Task(_Part):
    horizon: float | None = None
    time_unit: str | None = None


class _Limits(_Part):
    min_cell: int


class _Plan(_Part):
    task: _Task
    limits: _Limits


class Description(_Part):
    """What comparison.json says, as far as a report needs it."""

    study: str
    title: str
    metric: str
    task: str
    plan_digest: str
    data_digest: str
    rounds: int
    trials: int
    engine: str
    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    excluded_sites: tuple[str, ...]
    seconds: float
    versions: Mapping[str, str]
    command: str
    plan: _Plan


@dataclass(frozen=True)
class SiteFact:
    name: str
    tier: int
    region: str
    rows: int  # parts of a small number are left out of the sum
    whole: bool  # whether no part was left out of the sum
    outcome_share: float | None  # None: suppressed, or a task without one


@dataclass(frozen=True)
class RoundFact:
    """A round of one method and seed; None where there is no figure."""

    method: str
    seed: int
    round: int
    penalty: float | None
    convex_penalty: float | None
    personal: float | None  # the plan's metric on validation rows, median over T1
    shared: float | None


@dataclass(frozen=True)
class BinFact:
    """A bin of a calibration curve, of one method, seed and tier."""

    method: str
    seed: int
    tier: int
    rows: int
    predicted: float
    observed: float
    low: float
    high: float


@dataclass(frozen=True)
class Facts:
    """A comparison, as far as it was kept."""

    description: Description
    sites: tuple[SiteFact, ...]
    values: Mapping[tuple[int, str, str], Mapping[str, float]]
    """(tier, method, metric) → site → mean over seeds, of the model that counts at the tier."""
    by_seed: Mapping[tuple[int, str], tuple[float, ...]]
    """(tier, method) → median over sites of the plan's metric, a figure for each seed."""
    subgroups: Mapping[tuple[int, str, str], Mapping[tuple[str, str], float]]
    """(tier, method, column) → (site, category) → the plan's metric, mean over seeds."""
    rounds: tuple[RoundFact, ...]
    weights: Mapping[str, Mapping[str, float]]
    """Method → site → ω̄ of the last round, mean over seeds."""
    calibration: tuple[BinFact, ...]
    failures: tuple[tuple[str, str, str], ...]  # (method, kind, reason) of whole runs, each once
    failed_fits: tuple[tuple[str, str], ...]  # (method, site), each once
    models: SiteModels | None
    models_fault: str = ""  # why models that were kept cannot be used

    @property
    def metric(self) -> str:
        return self.description.metric

    def tier(self, tier: int) -> tuple[SiteFact, ...]:
        return tuple(site for site in self.sites if site.tier == tier)

    def scores(self, tier: int, metric: str | None = None) -> dict[str, Mapping[str, float]]:
        """Values by method at one tier, in the order of the comparison; methods without any are left out."""
        metric = metric or self.metric
        found = ((method, self.values.get((tier, method, metric))) for method in self.description.methods)
        return {method: values for method, values in found if values}


def read_facts(out: Path) -> Facts:
    """Everything that OUT says."""
    description = _description(out)
    sites = tuple(_sites(out))
    if not sites:
        raise FedmapError(f"{out / 'sites.csv'} lists no site", hint=HINT)
    columns = ("method", "kind", "site", "reason")
    failures = [tuple(row[name] for name in columns) for _, row in read_rows(out / "failures.csv", columns)]
    values, by_seed = _values(out, description.metric)
    models, fault = find_models(out, description.methods)
    return Facts(
        description=description,
        sites=sites,
        values=values,
        by_seed=by_seed,
        subgroups=_subgroups(out),
        rounds=read_rounds(out),
        weights=_weights(out),
        calibration=tuple(_calibration(out)),
        failures=tuple(dict.fromkeys((m, kind, why) for m, kind, _, why in failures if kind != "site")),
        failed_fits=tuple(dict.fromkeys((m, site) for m, kind, site, _ in failures if kind == "site")),
        models=models,
        models_fault=fault,
    )


def find_models(out: Path, methods: Sequence[str]) -> tuple[SiteModels | None, str]:
    """FedMAP's models, or those of the first method that has any; where they cannot be used, why."""
    for method in sorted(methods, key=lambda name: name != "fedmap"):
        if (out / "models" / method / ABOUT).is_file():
            try:
                return read_models(out / "models" / method), ""
            except FedmapError as error:  # all other figures need no models
                return None, error.message
    return None, ""


def require_finished(out: Path) -> None:
    """A comparison that was interrupted has records and no tables yet."""
    if (out / IDENTITY).is_file() and not (out / DESCRIPTION).is_file():
        done = counted(sum(1 for _ in (out / "records").glob("*.json")), "job")
        raise FedmapError(
            f"{out}: this comparison is not finished ({done} done)",
            hint="give the same `fedmap-lab compare` command again: it goes on where it was, and ends with "
            "the report",
        )


def _description(out: Path) -> Description:
    require_finished(out)
    if not (out / DESCRIPTION).is_file():
        raise FedmapError(f"{out} is no comparison ({DESCRIPTION} is missing)", hint=HINT)
    try:
        found = Description.model_validate_json(read_file(out / DESCRIPTION))
    except ValidationError as error:
        fields = ", ".join(sorted({".".join(map(str, fault["loc"])) or "JSON" for fault in error.errors()}))
        raise FedmapError(f"{out / DESCRIPTION} cannot be used: {fields}", hint=HINT) from error
    if found.metric not in METRICS:
        raise FedmapError(f"{out / DESCRIPTION} names an unknown metric", hint=HINT)
    return found


Key = TypeVar("Key")
Inner = TypeVar("Inner")


def means(found: Iterable[tuple[Key, Inner, float]]) -> dict[Key, dict[Inner, float]]:
    """The mean of the figures that have the same two keys, in the order in which keys come first."""
    gathered: dict[Key, dict[Inner, list[float]]] = {}
    for key, inner, value in found:
        gathered.setdefault(key, {}).setdefault(inner, []).append(value)
    return {k: {at: float(np.mean(v)) for at, v in inner.items()} for k, inner in gathered.items()}


def _values(
    out: Path, metric: str
) -> tuple[dict[tuple[int, str, str], dict[str, float]], dict[tuple[int, str], tuple[float, ...]]]:
    columns = ("method", "seed", "tier", "site", "model", "metric", "value")
    found: list[tuple[tuple[int, str, str], str, float]] = []
    medians: dict[tuple[int, str], dict[int, list[float]]] = {}
    for line, row in read_rows(out / "metrics.csv", columns):
        tier = line.tier(row["tier"])
        if row["model"] == ("global" if tier == 3 else "personal"):
            value = line.number(row["value"])
            found.append(((tier, row["method"], row["metric"]), row["site"], value))
            if row["metric"] == metric:
                of_method = medians.setdefault((tier, row["method"]), {})
                of_method.setdefault(line.whole(row["seed"]), []).append(value)
    by_seed = {
        key: tuple(float(np.median(v)) for _, v in sorted(seeds.items())) for key, seeds in medians.items()
    }
    return means(found), by_seed


def _sites(out: Path) -> Iterator[SiteFact]:
    columns = ("site", "tier", "region", "train", "validation", "test", "outcome_share")
    for line, row in read_rows(out / "sites.csv", columns):
        parts = [row[part] for part in ("train", "validation", "test")]
        rows = sum(line.count(part) for part in parts if part)
        share = line.number(row["outcome_share"]) if row["outcome_share"] else None
        yield SiteFact(row["site"], line.tier(row["tier"]), row["region"], rows, all(parts), share)


def _subgroups(out: Path) -> dict[tuple[int, str, str], dict[tuple[str, str], float]]:
    columns = ("method", "tier", "site", "column", "category", "value")
    return means(
        (
            (line.tier(row["tier"]), row["method"], row["column"]),
            (row["site"], row["category"]),
            line.number(row["value"]),
        )
        for line, row in read_rows(out / "subgroups.csv", columns)
    )


def read_rounds(out: Path) -> tuple[RoundFact, ...]:
    """rounds.csv alone."""
    figures = ("penalty", "convex_penalty", "personal", "shared")
    return tuple(
        RoundFact(
            row["method"],
            line.whole(row["seed"]),
            line.whole(row["round"]),
            *(line.number(row[name]) if row[name] else None for name in figures),
        )
        for line, row in read_rows(out / "rounds.csv", ("method", "seed", "round", *figures))
    )


def _weights(out: Path) -> dict[str, dict[str, float]]:
    """Of the last round of each method."""
    rows = [
        (row["method"], line.whole(row["round"]), row["site"], line.number(row["weight"]))
        for line, row in read_rows(out / "omega.csv", ("method", "round", "site", "weight"))
    ]
    last: dict[str, int] = {}
    for method, number, _, _ in rows:
        last[method] = max(number, last.get(method, 0))
    return means((method, site, weight) for method, number, site, weight in rows if number == last[method])


def _calibration(out: Path) -> Iterator[BinFact]:
    figures = ("predicted", "observed", "low", "high")
    for line, row in read_rows(out / "calibration.csv", ("method", "seed", "tier", "rows", *figures)):
        at = (line.whole(row["seed"]), line.tier(row["tier"]), line.count(row["rows"]))
        yield BinFact(row["method"], *at, *(line.number(row[name]) for name in figures))
