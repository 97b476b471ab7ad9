"""The services as processes: one aggregator, four sites, all studies, and two releases of each.

Site d lets nothing leave unseen. In the study `absence` its answer to one round is rejected, so that the
round closes without it, whatever the speed of this machine.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.proof import findings
from tests.proof.findings import Findings
from tests.proof.plans import MISSED_ROUND, MISSING_SITE, SEED, Proved
from tests.proof.programs import FIRST, ProgramFailedError, Programs, free_port, run

_REJECTED_TASK = f"round-{MISSED_ROUND}"
_SITES = ("a", "b", "c", MISSING_SITE)
_LOOKS, _LOOK_SECONDS = 400, 0.4


@dataclass(frozen=True)
class Federation:
    """Folders and commands; `cohort` holds the file of each site."""

    folder: Path
    port: int
    cohorts: dict[str, Path]

    @property
    def centre(self) -> Path:
        return self.folder / "centre"

    def environment(self, site: str = "") -> dict[str, str]:
        known = {"FEDMAP_AGGREGATOR_CONFIG": str(self.centre / "aggregator.toml")}
        return known | ({"FEDMAP_SITE_CONFIG": str(self.folder / site / "site.toml")} if site else {})

    def aggregator(self, *arguments: str | Path) -> str:
        return run([FIRST / "fedmap-aggregator", *arguments], self.environment())

    def site(self, name: str, *arguments: str | Path) -> str:
        return run([FIRST / "fedmap-site", *arguments], self.environment(name))

    def initialise(self) -> None:
        self.centre.mkdir(parents=True)
        (self.centre / "aggregator.toml").write_text(
            f'[server]\naddress = "localhost:{self.port}"\nlisten = "127.0.0.1:{self.port}"\n'
            'state = "state"\n'
        )
        self.aggregator("init")

    def join(self, name: str) -> None:
        """Invited and enrolled."""
        folder = self.folder / name
        folder.mkdir()
        egress = "review" if name == MISSING_SITE else "automatic"
        (folder / "policy.toml").write_text(f'egress = "{egress}"\nmin_rows = 10\nmin_events = 0\n')
        (folder / "site.toml").write_text(
            f'[site]\nname = "{name}"\nstate = "state"\n[aggregator]\naddress = "localhost:{self.port}"\n'
            f'[data]\nfile = "{self.cohorts[name] / name}.csv"\n[policy]\nfile = "policy.toml"\n'
        )
        region = "north" if name < "b" else "south"
        told = json.loads(self.aggregator("invite", name, "--tier", "1", "--region", region, "--json"))
        secrets = ["--token", told["token"], "--ca-fingerprint", told["ca_fingerprint"]]
        self.site(name, "enrol", "--joining", self.centre / "state" / "pki" / "joining.pem", *secrets)

    def create(self, study: Proved) -> None:
        """Put up for approval, approved, and started."""
        wanted = [part for site in study.sites for part in ("--site", site)]
        options = ["--rounds", str(study.rounds), "--seed", str(SEED), "--json", *wanted]
        digest = json.loads(self.aggregator("study", "create", study.plan, *options))["terms_digest"]
        for site in study.sites:
            self.site(site, "approve", digest, "--approver", "proof")
        self.aggregator("study", "start", study.name)

    def phase(self, study: Proved) -> str:
        (told,) = json.loads(self.aggregator("status", study.name, "--json"))["studies"]
        return str(told["phase"])


def run_services(studies: Sequence[Proved], folder: Path) -> dict[str, Findings]:
    """By study."""
    cohorts = {site: study.cohort for study in studies for site in study.sites}
    federation = Federation(folder, free_port(), cohorts)
    sites = [site for site in _SITES if site in cohorts]
    with Programs(folder / "logs") as processes, ThreadPoolExecutor(2) as two:
        federation.initialise()
        processes.start("aggregator", [FIRST / "fedmap-aggregator", "serve"], federation.environment())
        processes.wait_until_listening("aggregator", federation.port)
        _all(two.map(federation.join, sites))
        for site in sites:
            processes.start(site, [FIRST / "fedmap-site", "run"], federation.environment(site))
        _all(two.map(federation.create, studies))
        for study in studies:
            if study.has_absence:
                _review(federation, processes, study)
            federation.aggregator("status", study.name, "--watch")
            if federation.phase(study) != "complete":
                raise ProgramFailedError(f"the study {study.name} is {federation.phase(study)}")
        found = two.map(lambda study: _findings(federation, study), studies)
        return dict(zip((study.name for study in studies), found, strict=True))


def _all(results: Iterable[None]) -> None:
    """Wait for all, and raise what one of them raised."""
    for _ in results:
        pass


def _review(federation: Federation, processes: Programs, study: Proved) -> None:
    """Release what waits at the missing site, but for one round, until the study is over."""
    rejected = False
    for _ in range(_LOOKS):
        items = json.loads(federation.site(MISSING_SITE, "outbox", "--json"))["items"]
        for item in (item for item in items if item["state"] == "waiting_review"):
            shown = json.loads(federation.site(MISSING_SITE, "outbox", "show", item["id"], "--json"))
            if shown["manifest"]["task"] == _REJECTED_TASK:
                federation.site(MISSING_SITE, "reject", item["id"], "--approver", "proof")
                rejected = True
            else:
                federation.site(MISSING_SITE, "release", item["id"], "--approver", "proof")
        if not items or items[-1]["state"] != "waiting_review":
            if rejected and federation.phase(study) in ("complete", "aborted"):
                return
            processes.let_run(MISSING_SITE, _LOOK_SECONDS)
    raise ProgramFailedError(f"the study {study.name} did not end")


def _findings(federation: Federation, study: Proved) -> Findings:
    state, name = federation.centre / "state", study.name
    results = federation.folder / f"results-{name}"
    federation.aggregator("study", "results", name, "--out", results)
    found = findings.of_scores(results) | findings.of_losses(results / "rounds.csv")
    found |= _rounds(state, name)
    models = {
        site: federation.folder / site / f"state/studies/{name}/models/round-{study.rounds:04d}.safetensors"
        for site in study.sites
    }
    found |= findings.of_personal(models)
    for tier in (2, 3):
        federation.aggregator("bundle", "release", name, "--tier", str(tier))
        federation.aggregator("bundle", "download", f"{name}-t{tier}-1", "--out", results.parent)
        bundle = results.parent / f"{name}-t{tier}-1.fedmap"
        found |= findings.of_bundle(f"release T{tier}", bundle)
    return found | findings.of_rule(*findings.rule_in(bundle))


def _rounds(state: Path, name: str) -> Findings:
    """Each prior as it was stored, with the weights that made it."""
    (database,) = state.glob("*.db")
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        query = "SELECT task, prior_digest, content_json FROM results WHERE study = ? ORDER BY seq"
        rows = connection.execute(query, (name,)).fetchall()
    finally:
        connection.close()
    found: Findings = {}
    for task, digest, content in rows:
        step = json.loads(content)
        if step["weights"]:
            weights = {"weights": step["weights"], "absent": step["absent"]}
            found[f"weights, {task}"] = findings.of_values(weights, step["weights"])
        if digest:
            prior = findings.read_tensors(state / "blobs" / "kept" / digest[:2] / digest)
            found |= findings.of_prior(prior, f", {task}")
            if task.startswith("round-"):
                found |= findings.of_prior(prior)
    return found
