"""What a driver gave, as digests with a few figures beside them.

Names are shared: what two drivers call the same must be the same, where they claim to be equal.
"""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import safe_open

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
Findings = dict[str, "Finding"]
Tensors = dict[str, np.ndarray]

_DIGITS = 4
_VOLATILE = {"released_unix_ms", "expires_unix_ms", "software_version"}
_LOSSES = ("loss", "penalty", "validation_loss", "largest_weight")
_WRITTEN_ANEW = {"card.md", "calibration.svg"}
"""Files of a bundle that hold its date."""


@dataclass(frozen=True)
class Finding:
    """One thing that was found: equal digests are equal bits."""

    digest: str
    figures: Mapping[str, float]


def of_tensors(named: Mapping[str, np.ndarray]) -> Finding:
    """Names, types, shapes and bits; the figure is the norm of all but counters."""
    digest = hashlib.sha256()
    for name in sorted(named):
        tensor = np.ascontiguousarray(named[name])
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(tensor.tobytes())
    numbers = [tensor for tensor in named.values() if tensor.dtype.kind == "f"]
    squares = sum(float(np.sum(np.square(tensor, dtype=np.float64))) for tensor in numbers)
    return Finding(digest.hexdigest()[:20], {"norm": _rounded(squares**0.5)})


def of_values(value: Json, figures: Mapping[str, float] | None = None) -> Finding:
    """Plain values in their canonical form, floats to the last digit."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    kept = {name: _rounded(figure) for name, figure in sorted((figures or {}).items())}
    return Finding(hashlib.sha256(text.encode()).hexdigest()[:20], kept)


def read_tensors(path: Path) -> Tensors:
    with safe_open(path, framework="np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def of_prior(tensors: Tensors, after: str = "") -> Findings:
    """μ, its buffers and ψ of one prior file, whose names say which is which."""
    parts: dict[str, Tensors] = {"mu": {}, "buffers": {}, "psi": {}, "scaler": {}}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    scaler = parts.pop("scaler")
    found = {f"{part}{after}": of_tensors(named) for part, named in parts.items()}
    return found | {"scaler": of_tensors(scaler)} if scaler and not after else found


def of_personal(files: Mapping[str, Path]) -> Findings:
    """The sites' own models."""
    return {f"own model of {site}": of_tensors(read_tensors(path)) for site, path in files.items()}


def of_rule(threshold: float | None, grid: Iterable[float], cumulative: Iterable[float]) -> Findings:
    """What turns outputs of the global model into decisions."""
    hazard = list(cumulative)
    figures = {} if threshold is None else {"threshold": threshold}
    if hazard:
        figures["last hazard"] = hazard[-1]
    rule: Json = {"threshold": threshold, "grid": [*grid], "cumulative": [*hazard]}
    return {"rule": of_values(rule, figures)}


def of_scores(folder: Path) -> Findings:
    """metrics.csv and skipped.csv: of training sites apart from the others, and what was fine-tuned apart."""
    kinds: dict[str, dict[str, Json]] = {}
    sums: dict[str, dict[str, list[float]]] = {}
    for name, column in (("metrics.csv", "value"), ("skipped.csv", "reason")):
        for row in read_table(folder / name):
            metric = row["metric"]
            kind = "scores" if row["tier"] == "1" else "scores of other tiers"
            if metric.endswith("_fine_tuned"):
                kind = "scores fine-tuned"
            key = f"{row['site']} {row['region']} {metric}"
            kinds.setdefault(kind, {})[key] = float(row[column]) if column == "value" else row[column]
            if column == "value":
                sums.setdefault(kind, {}).setdefault(metric, []).append(float(row[column]))
    means = {
        kind: {metric: sum(values) / len(values) for metric, values in of_kind.items()}
        for kind, of_kind in sums.items()
    }
    return {kind: of_values(values, means.get(kind)) for kind, values in kinds.items()}


def of_losses(table: Path) -> Findings:
    """rounds.csv, the columns that every driver has."""
    rows = read_table(table)
    values: Json = [{name: float(row[name]) for name in _LOSSES} for row in rows]
    return {"losses": of_values(values, {name: float(rows[-1][name]) for name in _LOSSES})}


def of_bundle(name: str, path: Path) -> Findings:
    """A bundle's manifest, each of its parts, without what changes from release to release."""
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        files = sorted(archive.namelist())
    for entry in manifest["files"]:
        if entry["name"] in _WRITTEN_ANEW:
            for key in ("size", "sha256", "crc32"):
                del entry[key]
    parts = {key: value for key, value in manifest.items() if key not in _VOLATILE}
    found = {f"{name} {key}": of_values(value) for key, value in sorted(parts.items())}
    return found | {f"{name} archive": of_values([*files])}


def rule_in(bundle: Path) -> tuple[float | None, list[float], list[float]]:
    """The threshold of a bundle, and the times and values of its baseline hazard."""
    with zipfile.ZipFile(bundle) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    threshold, baseline = manifest["threshold"], manifest["baseline"] or {"grid": [], "cumulative": []}
    return threshold and threshold["value"], baseline["grid"], baseline["cumulative"]


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
