"""The centre of docker-compose.yml: `python -m deploy.federation.centre aggregator | operator`.

The aggregator gets its configuration and, once, its identity; then it is the service as everywhere. The
operator does what a person would do from there on: invites the sites by a letter in each tray, creates the
study, starts it when all have approved, and releases the model. Each step is harmless when it is done again.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from deploy.federation.commands import (
    asked,
    become,
    give,
    patiently,
    read_json,
    say,
    show,
    wait_for,
    write_whole,
)

PROGRAM = "fedmap-aggregator"
ADDRESS, DOWNLOADS, METRICS = "aggregator:8443", "0.0.0.0:8444", "0.0.0.0:9464"
HOME = Path("/var/lib/fedmap")
STATE = Path("/centre/state")  # the aggregator's folder, as the operator sees it
TRAYS = Path("/trays")
CONFIG = f"""\
[server]
address = "{ADDRESS}"
state = "state"

[downloads]
listen = "{DOWNLOADS}"

[metrics]
listen = "{METRICS}"
"""


def aggregator() -> None:
    """Set up where nothing is yet, then serve."""
    config = Path(os.environ["FEDMAP_AGGREGATOR_CONFIG"])
    write_whole(config, CONFIG)
    if not (HOME / "state" / "pki").exists():
        give(PROGRAM, "init")
        say("the aggregator has its own certificate authority now")
    become(PROGRAM, "serve")


def operator() -> None:
    """From invitations to a released model."""
    seats = {tray.name: read_json(wait_for(tray / "site.json")) for tray in sorted(TRAYS.iterdir())}
    wait_for(STATE / "pki" / "operator.toml")
    known = {site["name"]: site["state"] for site in asked(PROGRAM, "sites")}
    for place, seat in seats.items():
        if seat["tier"] < 3 and known.get(seat["site"]) != "active":
            _invite(TRAYS / place, seat)
    study = _run_study({place: seat for place, seat in seats.items() if seat["tier"] == 1})
    say("the study is complete: releasing its model, once to fine-tune and once to predict only")
    for place, seat in seats.items():
        if seat["tier"] > 1:
            _release(TRAYS / place, study, seat["tier"])
    give(PROGRAM, "study", "results", study, "--out", str(HOME / "results"))
    write_whole(HOME / "status.json", give(PROGRAM, "status", study, "--json"))


def _invite(tray: Path, seat: dict[str, Any]) -> None:
    say(f"inviting {seat['site']} as a T{seat['tier']} site")
    options = ["--tier", str(seat["tier"]), "--region", seat["region"]]
    invitation = asked(PROGRAM, "invite", seat["site"], *options)
    letter = {
        "address": ADDRESS,
        "token": invitation["token"],
        "ca_fingerprint": invitation["ca_fingerprint"],
        "joining": (STATE / "pki" / "joining.pem").read_text(),
    }
    write_whole(tray / "invitation.json", json.dumps(letter))


def _run_study(seats: dict[str, dict[str, Any]]) -> str:
    """Create, start and watch; whatever of it is done already is not done again."""
    place, seat = next(iter(seats.items()))
    study, plan = str(seat["study"]), TRAYS / place / "plan.toml"
    named = [part for each in seats.values() for part in ("--site", each["site"])]
    terms = ["--rounds", str(seat["rounds"]), "--seed", str(seat["seed"])]
    phases = {known["study"]: known["phase"] for known in asked(PROGRAM, "status")["studies"]}
    if study not in phases:
        give(PROGRAM, "study", "create", str(plan), *terms, *named)
    for place in seats:
        write_whole(TRAYS / place / "study.json", json.dumps({"study": study}))
    if phases.get(study, "approvals") == "approvals":
        say("the study is up for approval; it starts when every hospital has agreed")
        patiently(lambda: give(PROGRAM, "study", "start", study, "--wait"))
    show(PROGRAM, "status", study, "--watch")
    (status,) = asked(PROGRAM, "status", study)["studies"]
    if status["phase"] != "complete":
        sys.exit(f"the study ended in phase {status['phase']}: read the log of the aggregator")
    return study


def _release(tray: Path, study: str, tier: int) -> None:
    """A letter that says which bundle, and for a site without a certificate the link to it."""
    released = asked(PROGRAM, "bundle", "release", study, "--tier", str(tier))
    bundle = released["bundle"]
    letter = {part: bundle[part] for part in ("name", "version")}
    letter["fingerprint"] = released["key_fingerprint"]
    if tier == 3:
        letter["url"] = asked(PROGRAM, "bundle", "link", f"{bundle['name']}-{bundle['version']}")["url"]
        letter["ca"] = (STATE / "pki" / "ca.pem").read_text()
    write_whole(tray / "release.json", json.dumps(letter))


if __name__ == "__main__":
    {"aggregator": aggregator, "operator": operator}[sys.argv[1]]()
