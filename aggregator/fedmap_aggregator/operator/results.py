"""A study's results as files that a spreadsheet opens: scores by site, rounds, refusals, and a summary.

The same columns as the lab's `simulate` writes, so that one script reads both. Takes the status that the
aggregator gives to an operator: aggregates by site, no row of a patient, no parameters.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import numpy as np

from fedmap.contract.v1.values import RoundStatus, SiteScore, StudyStatus
from fedmap.errors import ConflictError
from fedmap.files.durable import make_folder, write_durably
from fedmap.process.command_line import JsonValue

_FILES = ("metrics.csv", "skipped.csv", "rounds.csv", "refusals.csv", "summary.json")
_ROUND_COLUMNS = (
    "round",
    "answered",
    "absent",
    "members",
    "loss",
    "validation_loss",
    "penalty",
    "largest_weight",
    "personal_metric",
    "global_metric",
    "closed_at",
)


def write_results(status: StudyStatus, tiers: Mapping[str, int], out: Path) -> None:
    """All files into the directory `out`; earlier results of the same study there are replaced."""
    _refuse_foreign(out, status.study)
    make_folder(out, mode=0o755)
    scored = [(tiers.get(s.site, 1), s) for s in status.scores]
    measured = [
        (tier, s.site, s.region, _metric_name(s), repr(s.value)) for tier, s in scored if s.value is not None
    ]
    skipped = [(tier, s.site, s.region, _metric_name(s), s.note) for tier, s in scored if s.value is None]
    _write_table(out / "metrics.csv", ("tier", "site", "region", "metric", "value"), measured)
    _write_table(out / "skipped.csv", ("tier", "site", "region", "metric", "reason"), skipped)
    _write_table(out / "rounds.csv", _ROUND_COLUMNS, map(_round_row, status.history))
    _write_table(
        out / "refusals.csv",
        ("at", "site", "task", "code", "reason"),
        ((_moment(r.at_unix_ms), r.site, r.task_id, r.code, r.reason) for r in status.refusals),
    )
    summary = json.dumps(summary_of(status, tiers), indent=2, ensure_ascii=False) + "\n"
    write_durably(out / "summary.json", summary.encode(), mode=0o644)


def summary_of(status: StudyStatus, tiers: Mapping[str, int]) -> dict[str, JsonValue]:
    """The study in one JSON object: what it was, who took part, medians and quartiles over sites."""
    members = status.members
    return {
        "study": status.study,
        "title": status.title,
        "terms_digest": status.terms_digest,
        "prior_digest": status.prior_digest,
        "method": "fedmap",
        "phase": status.phase,
        "rounds": len(status.history),
        "planned_rounds": status.rounds,
        "quorum": status.quorum,
        "sites": [m.site for m in members if m.membership == "approved"],
        "excluded_sites": [
            {"site": m.site, "membership": m.membership, "reason": m.reason}
            for m in members
            if m.membership != "approved"
        ],
        "metric": status.metric,
        "summary": _summary_rows(status.scores, tiers),
    }


def _summary_rows(scores: Sequence[SiteScore], tiers: Mapping[str, int]) -> list[JsonValue]:
    keys = dict.fromkeys((tiers.get(s.site, 1), s.model, s.metric) for s in scores)
    rows: list[JsonValue] = []
    for tier, model, metric in sorted(keys, key=lambda key: key[0]):
        here = [s for s in scores if (tiers.get(s.site, 1), s.model, s.metric) == (tier, model, metric)]
        values = [s.value for s in here if s.value is not None]
        low, middle, high = (float(q) for q in np.percentile(values, [25, 50, 75])) if values else (None,) * 3
        rows.append(
            {
                "tier": tier,
                "model": model,
                "metric": metric,
                "sites": len(values),
                "median": middle,
                "lower_quartile": low,
                "upper_quartile": high,
                "skipped": len(here) - len(values),
            }
        )
    return rows


def _metric_name(score: SiteScore) -> str:
    """As in the lab: the site's own model under the metric's name, another one as <metric>_<model>."""
    return score.metric if score.model == "personal" else f"{score.metric}_{score.model}"


def _round_row(closed: RoundStatus) -> tuple[object, ...]:
    told = {**vars(closed), "absent": " ".join(closed.absent), "closed_at": _moment(closed.closed_unix_ms)}
    return tuple(told[name] for name in _ROUND_COLUMNS)


def _moment(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, UTC).isoformat(timespec="seconds") if unix_ms else ""


def _refuse_foreign(out: Path, study: str) -> None:
    """Results never mix: a directory that holds anything else, or another study's results, is left alone."""
    if not out.exists():
        return
    names = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
    if not names:
        return
    if names <= set(_FILES) and _study_in(out / "summary.json") == study:
        return
    raise ConflictError(
        f"{out} holds something other than results of {study}",
        hint="give --out a new directory, or empty this one yourself",
    )


def _study_in(summary: Path) -> str | None:
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    study = found.get("study") if isinstance(found, dict) else None
    return study if isinstance(study, str) else None


def _write_table(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[_cell(value) for value in row] for row in rows])
    write_durably(path, text.getvalue().encode(), mode=0o644)


def _cell(value: object) -> object:
    """Texts come from sites: one that a spreadsheet would run as a formula is quoted."""
    return f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "@", "\t"} else value
