"""`fedmap-site run | status | health | round run`: the agent, how it is, and rounds that travel as files."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from fedmap.process.command_line import command, command_group, moment, print_aside
from fedmap.process.ending import INTERRUPTED
from fedmap_site.cli.options import Here, now
from fedmap_site.loop.notices import Notice

round_app = command_group("Rounds as signed files, through an airlock.")


def run_command(given: Here) -> None:
    """Run the agent until SIGTERM or Ctrl-C. Logs are JSON lines on standard error."""
    settings = given.settings()
    from fedmap.process.log import configure
    from fedmap_site.link.https import route_of, shown_proxy
    from fedmap_site.loop.stopping import Stop
    from fedmap_site.policy import read_policy

    stop = Stop()
    stop.install()
    configure(settings.log.level, service="site")
    policy = read_policy(settings.policy.file)
    bundle = settings.aggregator.ca_bundle
    facts = {
        "site": settings.site.name,
        "aggregator": settings.aggregator.address,
        "proxy": shown_proxy(route_of(settings.aggregator)),
        "ca_bundle": str(bundle) if bundle is not None else "none (the authority of the enrolment)",
        "policy": f"{settings.policy.file} (egress: {policy.egress})",
        "state": str(settings.site.state),
    }
    lines = [f"  {name:<11} {value}" for name, value in facts.items()]
    given.tell({"event": "starting", **facts}, "Starting the site agent", *lines, indent=None)

    def tell(notice: Notice) -> None:
        form = {"event": "notice", "message": notice.message, "hint": notice.hint}
        given.tell(form, f"{moment(now())}  {notice}", indent=None)

    from fedmap_site.checkup.doctor import before_running

    for finding in before_running(settings, now()):
        tell(Notice(f"{finding.name}: {finding.message}", finding.hint))
    from fedmap_site.wiring import run_agent

    run_agent(settings, tell, stop)
    if stop.signal is signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


def status_command(given: Here) -> None:
    """Show how this site stands, from its own records. Asks nobody else."""
    from fedmap.errors import StorageError
    from fedmap.trust.certificates import certificate_facts
    from fedmap_site.identity.files import is_enrolled, read_identity
    from fedmap_site.loop.status import read_status

    site = given.site()
    address, state = site.config.aggregator.address, site.config.site.state
    record = read_status(state)
    try:
        with site.state.lock:
            agent = "not running"
    except StorageError:
        since = f" since {moment(record.at_unix_ms)}" if record else ""
        agent = f"running, {record.condition if record else 'starting'}{since}"
    ends = None
    if is_enrolled(state):
        ends = moment(certificate_facts(read_identity(state).certificate).not_after)
    waiting = record is not None and record.condition == "waiting"
    message, hint = (record.message, record.hint) if record is not None and waiting else ("", "")
    studies = site.state.studies()
    outbox = Counter(item.status.state for item in site.outbox.items())
    given.tell(
        {
            "site": site.name,
            "aggregator": address,
            "certificate_ends": ends,
            "agent": agent,
            "message": message,
            "hint": hint,
            "studies": list(studies),
            "outbox": {str(state): count for state, count in outbox.items()},
        },
        f"site         {site.name}",
        f"aggregator   {address}",
        f"certificate  {f'valid until {ends}' if ends else 'none yet: enrol first'}",
        f"agent        {agent}",
        *((f"             {message}", f"             next: {hint}") if message else ()),
        f"studies      {', '.join(studies) or 'none'}",
        f"outbox       {', '.join(f'{count} {state}' for state, count in outbox.items()) or 'empty'}",
    )


def health_command(given: Here) -> None:
    """Does the agent run, and does the aggregator let it in? Exit code 1 if not. For health checks."""
    from fedmap_site.loop.status import trouble_of

    trouble = trouble_of(given.settings().site.state)
    message, hint = ("", "") if trouble is None else (trouble.message, trouble.hint)
    given.tell(
        {"healthy": trouble is None, "message": message, "hint": hint},
        "healthy" if trouble is None else f"not healthy: {trouble}",
    )
    if trouble is not None:
        raise typer.Exit(1)


@command(round_app, "run")
def round_run_command(
    given: Here,
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The file from the centre.")
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Where the answer goes.")],
) -> None:
    """Do the task of a file. In review mode, run it again after `fedmap-site release`."""
    settings = given.settings()
    from fedmap_site.wiring import Site, compute_on_one_thread

    compute_on_one_thread()
    from fedmap_site.loop.drop_rounds import run_round

    site = Site(settings)
    with site.state.lock:
        item, failure = run_round(site.by_files(), site.workplace(site.policy()), file, out, now())
    written = item.status.state in ("released", "sent")
    if failure is not None:
        print_aside(str(failure))
    done = [f"Wrote {out} ({item.content}). Take it to the centre: fedmap-aggregator round import"]
    held = (
        f"{item.id} is {item.status.state.replace('_', ' ')}; nothing was written.",
        f"Look at it (fedmap-site outbox show {item.id}), release it, and run this command again.",
    )
    state, reply = item.status.state, str(out) if written else None
    given.tell(
        {"item": item.id, "content": item.content, "state": state, "file": reply},
        *(done if written else held),
    )
