"""Flower: the server app, the strategy and the client apps, their messages handed over in one process.

That Flower's own processes give the same is shown by tests/integrations. The finished run is imported by an
aggregator, as one would release it.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.proof import findings
from tests.proof.findings import Findings
from tests.proof.in_hand import run_in_hand
from tests.proof.plans import Proved
from tests.proof.programs import FIRST, free_port, run


def prepare_centre(folder: Path) -> dict[str, str]:
    """An aggregator that need not run; its environment."""
    config = folder / "aggregator.toml"
    init = [FIRST / "fedmap-aggregator", "init", "--address", f"localhost:{free_port()}"]
    run([*init, "--config", config, "--state", folder / "state"])
    return {"FEDMAP_AGGREGATOR_CONFIG": str(config)}


def run_flower(study: Proved, folder: Path, centre: dict[str, str]) -> Findings:
    out = folder / study.name
    run_in_hand("flower", study, out)
    run([FIRST / "fedmap-aggregator", "bundle", "import-flower", out / "run", "--to", out], centre)
    (bundle,) = out.glob("*.fedmap")
    told = json.loads((out / "run" / "run.json").read_text())
    rule = told["rule"]
    models = {
        site: next((out / f"state-{site}").glob(f"**/models/round-{study.rounds:04d}.safetensors"))
        for site in study.sites
    }
    return (
        _rounds(study, out, told["rounds"])
        | findings.of_prior(findings.read_tensors(out / "run" / "prior.safetensors"))
        | findings.of_personal(models)
        | findings.of_rule(rule["threshold"], rule["baseline_grid"], rule["baseline_cumulative"])
        | findings.of_scores(out / "run" / "tables")
        | findings.of_losses(out / "run" / "tables" / "rounds.csv")
        | findings.of_bundle("import T2", bundle)
        | {"refusals": findings.of_values(told["refusals"])}
    )


def _rounds(study: Proved, out: Path, told: list[dict[str, findings.Json]]) -> Findings:
    """The prior that each round began with is that of the round before."""
    found: Findings = {}
    for number in range(1, study.rounds + 1):
        before = f"round-{number - 1}" if number > 1 else "initialise"
        prior = findings.read_tensors(out / "priors" / f"round-{number}.safetensors")
        found |= findings.of_prior(prior, f", {before}")
    last = findings.read_tensors(out / "run" / "prior.safetensors")
    found |= findings.of_prior(last, f", round-{study.rounds}")
    for one in told:
        weights: dict[str, findings.Json] = {"weights": one["weights"], "absent": one["absent"]}
        found[f"weights, round-{one['round']}"] = findings.of_values(weights)
    return found
