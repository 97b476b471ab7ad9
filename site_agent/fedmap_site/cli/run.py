"""`fedmap-site run | status | health | round run`: the agent, how it is, and rounds that travel as files."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedmap_site.cli.output import (
    DEFAULT_CONFIG,
    Config,
    Json,
    JsonValue,
    load_config,
    moment,
    now,
    print_json,
    print_text,
    say,
)
from fedmap_site.loop.notices import Notice

if TYPE_CHECKING:
    from fedmap_site.wiring import Site

round_app = typer.Typer(help="Rounds as signed files, through an airlock.", no_args_is_help=True)
INTERRUPTED = 130


def run_command(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Run the agent until SIGTERM or Ctrl-C. Logs are JSON lines on standard error."""
    settings = load_config(config)
    from fedmap.process.log import configure
    from fedmap_site.link.routes import route_of, shown_proxy
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
    if as_json:
        _line({"event": "starting", **facts})
    else:
        print_text("Starting the site agent", *(f"  {name:<11} {value}" for name, value in facts.items()))

    def tell(notice: Notice) -> None:
        if as_json:
            _line({"event": "notice", "message": notice.message, "hint": notice.hint})
        else:
            print_text(f"{moment(now())}  {notice}")

    from fedmap_site.checkup.doctor import before_running

    for finding in before_running(settings, now()):
        tell(Notice(f"{finding.name}: {finding.message}", finding.hint))
    from fedmap_site.wiring import run_agent

    run_agent(settings, tell, stop)
    if stop.signal is signal.SIGINT:
        raise typer.Exit(INTERRUPTED)


def status_command(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Show how this site stands, from its own records. Asks nobody else."""
    from fedmap_site.wiring import Site

    site = Site(load_config(config))
    facts = _status(site)
    if as_json:
        print_json(facts)
        return
    agent, certificate = facts["agent"], facts["certificate_ends"]
    print_text(f"site         {site.name}")
    print_text(f"aggregator   {site.config.aggregator.address}")
    print_text(
        f"certificate  {'valid until ' + str(certificate) if certificate else 'none yet: enrol first'}"
    )
    print_text(f"agent        {agent}")
    if facts["message"]:
        print_text(f"             {facts['message']}", f"             next: {facts['hint']}")
    studies = facts["studies"]
    print_text(
        f"studies      {', '.join(map(str, studies)) if isinstance(studies, list) and studies else 'none'}"
    )
    outbox = facts["outbox"]
    counts = [f"{count} {state}" for state, count in outbox.items()] if isinstance(outbox, dict) else []
    print_text(f"outbox       {', '.join(counts) or 'empty'}")


def health_command(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Does the agent run, and does the aggregator let it in? Exit code 1 if not. For health checks."""
    from fedmap_site.loop.status import trouble_of

    trouble = trouble_of(load_config(config).site.state)
    if as_json:
        message, hint = ("", "") if trouble is None else (trouble.message, trouble.hint)
        print_json({"healthy": trouble is None, "message": message, "hint": hint})
    else:
        print_text("healthy" if trouble is None else f"not healthy: {trouble}")
    if trouble is not None:
        raise typer.Exit(1)


@round_app.callback()
def round_callback() -> None:
    """Rounds as signed files, through an airlock."""


@round_app.command("run")
def round_run_command(
    file: Annotated[
        Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="The file from the centre.")
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="Where the answer goes.")],
    config: Config = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Do the task of a file. In review mode, run it again after `fedmap-site release`."""
    settings = load_config(config)
    from fedmap_site.wiring import Site, compute_on_one_thread

    compute_on_one_thread()
    from fedmap_site.loop.drop_rounds import run_round

    site = Site(settings)
    with site.state.lock:
        item, failure = run_round(site.by_files(), site.workplace(site.policy()), file, out, now())
    written = item.status.state in ("released", "sent")
    if failure is not None:
        say.print(str(failure), markup=False, highlight=False, soft_wrap=True)
    if as_json:
        state, reply = item.status.state, str(out) if written else None
        print_json({"item": item.id, "content": item.content, "state": state, "file": reply})
        return
    if written:
        print_text(f"Wrote {out} ({item.content}). Take it to the centre: fedmap-aggregator round import")
    else:
        print_text(
            f"{item.id} is {item.status.state.replace('_', ' ')}; nothing was written.",
            f"Look at it (fedmap-site outbox show {item.id}), release it, and run this command again.",
        )


def _status(site: Site) -> dict[str, JsonValue]:
    from fedmap.errors import StorageError
    from fedmap.trust.certificates import certificate_facts
    from fedmap_site.identity.files import is_enrolled, read_identity
    from fedmap_site.loop.status import read_status

    record = read_status(site.config.site.state)
    try:
        with site.state.lock:
            agent = "not running"
    except StorageError:
        since = f" since {moment(datetime.fromtimestamp(record.at_unix_ms / 1000, UTC))}" if record else ""
        agent = f"running, {record.condition if record else 'starting'}{since}"
    ends = None
    if is_enrolled(site.config.site.state):
        ends = moment(certificate_facts(read_identity(site.config.site.state).certificate).not_after)
    trouble = record if record is not None and record.condition == "waiting" else None
    return {
        "site": site.name,
        "aggregator": site.config.aggregator.address,
        "certificate_ends": ends,
        "agent": agent,
        "message": trouble.message if trouble else "",
        "hint": trouble.hint if trouble else "",
        "studies": list(site.state.studies()),
        "outbox": dict(Counter(item.status.state for item in site.outbox.items())),
    }


def _line(value: dict[str, str]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()
