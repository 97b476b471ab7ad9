"""`fedmap-site studies | approve | leave | dry-run`: what is offered, and what this site agrees to.

The digest that a person approves is computed here from the terms themselves. The site's own record comes
first; then the aggregator is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap.process.command_line import WholeTable, print_aside, print_text, say
from fedmap_site.cli.options import Approver, Here

if TYPE_CHECKING:
    from fedmap.study.terms import StudyTerms
    from fedmap_site.loop.dry_run import Rehearsed
    from fedmap_site.wiring import Site


def studies_command(given: Here) -> None:
    """List the studies that this site is invited to, with the terms and the digest that it would approve."""
    from fedmap.study.terms import parse_terms

    with given.site().connect() as connection:
        offered = [(study, parse_terms(study.terms_json, study.study)) for study in connection.studies()]
    columns = ("study", "phase", "round", "this site", "digest of the terms")
    rows = [(one.study, one.phase, str(one.round), one.membership, terms.digest) for one, terms in offered]
    given.tell(
        [
            {"phase": one.phase, "membership": one.membership, "round": one.round, **key_facts(terms)}
            for one, terms in offered
        ],
        WholeTable(columns, rows) if rows else "No studies are offered to this site.",
        *(
            line
            for one, terms in offered
            if one.membership == "invited"
            for line in ("", f"Before you approve {one.study}:", *_fact_lines(terms))
        ),
    )


def approve_command(
    given: Here,
    approver: Approver,
    digest: Annotated[
        str, typer.Argument(help="Digest of the terms, as `fedmap-site studies` shows it.")
    ] = "",
    file: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="No network: the offer as a file.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(dir_okay=False, help="With --file: where the reply goes.")
    ] = None,
) -> None:
    """Take part in a study under exactly the terms of this digest."""
    from fedmap_site.exit.outbox import check_approver
    from fedmap_site.policy import check_terms
    from fedmap_site.wiring import clock_ms

    if (file is None) != (out is None):
        raise typer.BadParameter("--file and --out go together")
    if file is None and not digest:
        raise typer.BadParameter("give the DIGEST of the terms, or --file")
    by = check_approver(approver)
    site = given.site()
    policy = site.policy()
    terms = _terms_of_file(site, file, digest) if file is not None else _terms_of_offer(site, digest)
    if not given.as_json:
        print_text(*_fact_lines(terms))
    check_terms(policy, terms)
    site.state.approve(terms, by, clock_ms(), policy.digest)
    site.audit.append("study.approved", terms.study, {"terms": terms.digest, "policy": policy.digest}, by)
    if out is not None:
        from fedmap_site.loop.drop_rounds import write_approval
        from fedmap_site.wiring import now

        write_approval(site.by_files(), terms, out, now())
    else:
        with site.connect() as connection:
            connection.approve(terms.study, terms.digest)
    told = f"Take {out} to the centre." if out is not None else "The aggregator knows."
    given.tell(
        {"approved": True, "approver": by, **key_facts(terms)},
        f"{site.name} takes part in {terms.study}, approved by {by}. {told}",
    )


def leave_command(
    given: Here,
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    approver: Annotated[str, typer.Option(help="Who decides, for the record.")] = "command line",
    delete: Annotated[
        bool, typer.Option("--delete", help="Also delete this site's models and priors of the study.")
    ] = False,
) -> None:
    """Leave a study, at any time; the others go on. What was sent before cannot be called back."""
    from fedmap_site.exit.outbox import check_approver

    by = check_approver(approver)
    site = given.site()
    site.state.leave(study)
    site.audit.append("study.left", study, actor=by)
    held = [item for item in site.outbox.items("waiting_review", "released") if item.study == study]
    for item in held:
        site.outbox.withdraw(item.id, "the site has left the study", by)
    deleted = 0
    if delete:
        deleted = site.state.delete_models(study)
        site.audit.append("study.deleted", study, {"files": str(deleted)}, by)
    with site.connect() as connection:
        connection.leave(study)
    given.tell(
        {"study": study, "left": True, "withdrawn": len(held), "deleted_files": deleted},
        f"{site.name} has left {study}; {len(held)} unsent answer(s) were withdrawn.",
        f"{deleted} file(s) with models and priors of {study} were deleted." if delete else None,
    )


def key_facts(terms: StudyTerms) -> dict[str, str | int]:
    """What a person should know before agreeing."""
    plan, limits = terms.plan, terms.plan.limits
    return {
        "study": terms.study,
        "title": plan.study.title,
        "intended_use": plan.study.intended_use or "(not stated)",
        "task": f"{plan.task.kind}, judged by {plan.task.metric}",
        "model": plan.model.name,
        "features": len(plan.features),
        "rounds": terms.rounds,
        "quorum": plan.rounds.quorum,
        "deadline": f"{plan.rounds.deadline_minutes:g} minutes a round",
        "floors": f"{limits.min_rows} rows, {limits.min_events} events, {limits.min_cell} per cell",
        "seed": terms.seed,
        "terms_digest": terms.digest,
    }


def _fact_lines(terms: StudyTerms) -> list[str]:
    return [f"  {name:<13} {value}" for name, value in key_facts(terms).items()]


def _terms_of_offer(site: Site, digest: str) -> StudyTerms:
    """The offered terms with this digest, which is computed here and not believed."""
    from fedmap.errors import NotFoundError
    from fedmap.study.terms import parse_terms

    with site.connect() as connection:
        offered = connection.studies()
    for study in offered:
        terms = parse_terms(study.terms_json, study.study)
        if terms.digest == digest.strip().lower() and terms.study == study.study:
            return terms
    raise NotFoundError(
        "no study with this digest is offered to this site",
        hint="Compare with `fedmap-site studies`; the whole digest is needed. The terms may have changed.",
    )


def _terms_of_file(site: Site, file: Path, digest: str) -> StudyTerms:
    from fedmap.errors import ConflictError
    from fedmap_site.loop.drop_rounds import offered_terms
    from fedmap_site.wiring import now

    terms = offered_terms(site.by_files(), file, now())
    if digest and terms.digest != digest.strip().lower():
        raise ConflictError(
            f"the offer in {file} has the digest {terms.digest}",
            hint="Approve only the digest that was agreed; ask the operator for the right file.",
        )
    return terms


_MIB = 1 << 20


def dry_run_command(
    given: Here,
    study: Annotated[str, typer.Argument(help="Name of a study that this site has approved.")],
) -> None:
    """Do every kind of task of a study once, show what would leave, and send nothing."""
    settings = given.settings()
    from fedmap_site.wiring import Site, clock_ms, compute_on_one_thread

    compute_on_one_thread()
    from fedmap_site.loop.dry_run import rehearse

    site = Site(settings)

    def on_task(name: str) -> None:
        if say.is_terminal:
            print_aside(f"… {name}")

    done = rehearse(site.name, site.state, study, settings.data, site.policy(), clock_ms, on_task)
    site.audit.append("study.rehearsed", study, {"answers": str(len(done.answers))})
    given.tell(
        {
            "study": study,
            "sent": False,
            "folder": str(done.folder),
            "load_seconds": done.load_seconds,
            "round_seconds": done.fit.seconds,
            "rounds": done.rounds,
            "peak_bytes": done.peak_bytes,
            "answers": [
                {
                    "task": one.item.task_id,
                    "content": one.item.content,
                    "bytes": _size(one),
                    "seconds": one.seconds,
                    "manifest": str(one.manifest_path),
                }
                for one in done.answers
            ],
        },
        f"Dry run of {study} at {site.name}: one answer of each kind. Nothing was sent.",
        WholeTable(
            ("answer", "holds", "bytes", "seconds", "checks"),
            [
                (one.item.task_id, one.item.content, f"{_size(one):,}", f"{one.seconds:.1f}", _checks(one))
                for one in done.answers
            ],
        ),
        f"Reading the data took {done.load_seconds:.1f} s, a round {done.fit.seconds:.1f} s; "
        f"the study has {done.rounds} rounds.",
        f"Memory: {done.peak_bytes / _MIB:,.0f} MiB at most.",
        f"Read what would leave, and the files themselves: {done.fit.manifest_path}",
    )


def _size(one: Rehearsed) -> int:
    return one.item.manifest.answer_bytes + one.item.manifest.tensors_bytes


def _checks(one: Rehearsed) -> str:
    """How many checks of the exit gate ended how."""
    outcomes = [check.outcome for check in one.item.manifest.checks]
    return ", ".join(f"{outcomes.count(kind)} {kind}" for kind in dict.fromkeys(outcomes)) or "none needed"
