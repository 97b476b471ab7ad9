"""`fedmap-site doctor | check-config | check-data`: what is wrong, before it matters. They change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import DOCTOR_FOUND_A_FAULT, WholeTable, print_aside
from fedmap.process.findings import any_failed
from fedmap_site.cli.options import Here, now


def doctor_command(given: Here) -> None:
    """Look for what is wrong, and name it with the next step. Exit code 3 when something fails."""
    from fedmap_site.checkup.doctor import examine
    from fedmap_site.wiring import software_version

    found = examine(given.config, now(), software_version())
    lines = [(f"{f.verdict:<8} {f.name}: {f.message}", f.hint and f"         next: {f.hint}") for f in found]
    given.tell(
        [{"name": f.name, "status": f.verdict, "finding": f.message, "next_step": f.hint} for f in found],
        *(line for pair in lines for line in pair if line),
    )
    if any_failed(found):
        raise typer.Exit(DOCTOR_FOUND_A_FAULT)


def check_config_command(given: Here) -> None:
    """Check the configuration and the policy: every fault at once. Touches nothing."""
    from fedmap_site.policy import read_policy

    settings = given.settings()
    policy = read_policy(settings.policy.file)
    sections = {"config": settings.model_dump(mode="json"), "policy": policy.model_dump(mode="json")}
    given.tell(
        {"file": str(given.config), **sections},
        f"{given.config} and {settings.policy.file} are in order. In effect:",
        *(
            f"  {name}.{key} = {_shown(value)}"
            for name, section in settings
            if name != "policy"
            for key, value in section
        ),
        *(f"  policy: {key} = {_shown(value)}" for key, value in policy),
    )


def check_data_command(
    given: Here,
    plan: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="Study plan (TOML).")
    ],
    file: Annotated[
        Path | None, typer.Option(exists=True, help="Patients' file; default: as configured for the study.")
    ] = None,
) -> None:
    """Would this site's file do for a plan? Columns, ranges and counts; never a row."""
    from fedmap.errors import ConfigError
    from fedmap.study.plan.reading import load_plan
    from fedmap_site.policy import read_policy

    settings = given.settings()
    study_plan = load_plan(plan)
    path = file or settings.data.path_of(study_plan.study.name)
    if path is None:
        raise ConfigError(
            str(given.config),
            (f"no file is named for the study {study_plan.study.name}",),
            hint="Name it under [data] file or [data.files], or give --file.",
        )
    policy = read_policy(settings.policy.file)
    from fedmap_site.checkup.site import require_readable
    from fedmap_site.data.loader import check_data

    require_readable(path)
    report = check_data(study_plan, settings.site.name, path, policy)
    rows = [(line.name, line.value) for line in report.counts]
    rows += [(f"left out: {line.name}", line.value) for line in report.left_out]
    if not given.as_json:
        print_aside(*(f"note: {note}" for note in report.notes))
        print_aside(*(f"problem: {problem}" for problem in report.problems))
    fits = "can be used" if report.usable else "cannot be used as it is"
    given.tell(
        {
            "study": report.study,
            "file": str(path),
            "usable": report.usable,
            "problems": report.problems,
            "counts": {line.name: line.value for line in report.counts},
            "left_out": {line.name: line.value for line in report.left_out},
            "notes": report.notes,
        },
        WholeTable(("what", "count"), rows) if rows else None,
        f"{path} {fits} for {report.study}.",
    )
    if not report.usable:
        raise typer.Exit(1)


def _shown(value: object, if_empty: str = "(all)") -> str:
    from pydantic import BaseModel

    if value is None or value == "":
        return "(none)"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items()) or "(none)"
    if isinstance(value, BaseModel):
        return ", ".join(f"{key}: {_shown(inner, '(none)')}" for key, inner in value)
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or if_empty
    return str(value)
