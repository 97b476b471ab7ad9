"""The sites of docker-compose.yml: `python -m deploy.federation.sites hospital | clinic | practice`.

A hospital (T1) enrols with the invitation in its tray, approves the study and is its agent from then on. The
clinic (T2) enrols, fetches the released model and fine-tunes it. The practice (T3) has no certificate: it
downloads by a one-time link, checks the fingerprint and predicts. A site that is killed goes on where it was.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from deploy.federation.commands import asked, become, give, patiently, read_json, say, wait_for, write_whole

PROGRAM = "fedmap-site"
HOME = Path("/var/lib/fedmap")
TRAY = Path("/data")
BUNDLES = HOME / "bundles"
METRICS = "0.0.0.0:9464"


def hospital() -> None:
    """Join, agree, and be the agent."""
    seat = _enrolled()
    name = read_json(wait_for(TRAY / "study.json"))["study"]
    (offered,) = (study for study in asked(PROGRAM, "studies") if study["study"] == name)
    if offered["membership"] == "invited":
        patiently(lambda: give(PROGRAM, "approve", offered["terms_digest"], "--approver", "local test"))
        say(f"{seat['site']} has approved {name}")
    become(PROGRAM, "run")


def clinic() -> None:
    """Join, fetch the model, make one of its own."""
    seat, own = _enrolled(), HOME / "personal"
    release = read_json(wait_for(TRAY / "release.json"))
    if not own.exists():
        version = f"{release['name']}-{release['version']}"
        patiently(lambda: give(PROGRAM, "bundle", "fetch", version, "--install"))
        draft = HOME / "personal.part"
        shutil.rmtree(draft, ignore_errors=True)  # of a container that was killed
        files = ["--data", str(TRAY / seat["data"]), "--out", str(draft)]
        say(give(PROGRAM, "personalise", "--bundle", release["name"], "--site", seat["site"], *files))
        draft.rename(own)


def practice() -> None:
    """Download by link, check the fingerprint, predict."""
    seat, done = read_json(wait_for(TRAY / "site.json")), HOME / "predict.json"
    wait_for(TRAY / "release.json")
    if not done.exists():
        os.environ["FEDMAP_BUNDLES"] = str(BUNDLES)  # all that it has: no certificate, no configuration
        os.environ.pop("FEDMAP_SITE_CONFIG", None)
        name = patiently(_downloaded)
        files = ["--data", str(TRAY / seat["data"]), "--out", str(HOME / "predictions.csv")]
        printed = give(
            PROGRAM, "predict", "--bundle", name, *files, "--skip-bad-rows", "--despite-shift", "--json"
        )
        write_whole(done, printed)


def _enrolled() -> dict[str, Any]:
    """Who this site is, once it has its certificate. Its key is made here and stays here."""
    seat: dict[str, Any] = read_json(wait_for(TRAY / "site.json"))

    def enrol() -> str:
        if (HOME / "state" / "identity").exists():
            return f"{seat['site']} has its certificate"
        letter = read_json(wait_for(TRAY / "invitation.json"))
        _configure(seat, letter["address"])
        (HOME / "joining.pem").write_text(letter["joining"])
        os.environ["FEDMAP_SITE_TOKEN"] = letter["token"]
        fingerprint = ["--ca-fingerprint", letter["ca_fingerprint"]]
        return give(PROGRAM, "enrol", "--joining", str(HOME / "joining.pem"), *fingerprint)

    say(patiently(enrol))
    return seat


def _configure(seat: dict[str, Any], address: str) -> None:
    write_whole(HOME / "policy.toml", 'egress = "automatic"\nmin_rows = 10\nmin_events = 0\n')
    write_whole(
        Path(os.environ["FEDMAP_SITE_CONFIG"]),
        f'[site]\nname = "{seat["site"]}"\nstate = "state"\n\n[aggregator]\naddress = "{address}"\n\n'
        f'[data]\nfile = "{TRAY / seat["data"]}"\n\n[policy]\nfile = "policy.toml"\n\n'
        f'[metrics]\nlisten = "{METRICS}"\n',
    )


def _downloaded() -> str:
    """The bundle's name, once it is installed. A link that was used up is replaced by the next letter."""
    release = read_json(TRAY / "release.json")
    installed = [bundle["name"] for bundle in asked(PROGRAM, "bundle", "list")["bundles"]]
    if release["name"] not in installed:
        (HOME / "ca.pem").write_text(release["ca"])
        trusted = ["--ca", str(HOME / "ca.pem"), "--fingerprint", release["fingerprint"]]
        say(give(PROGRAM, "bundle", "fetch", "--link", release["url"], "--install", *trusted))
    return str(release["name"])


if __name__ == "__main__":
    {"hospital": hospital, "clinic": clinic, "practice": practice}[sys.argv[1]]()
