"""`fedmap-lab demo`: all three tiers on this machine, from invitation to predictions.

One aggregator and a site agent for every T1 centre of a synthetic cohort, each a process of its own with its
own folder, key and certificate, talking over mutual TLS on loopback. When they have trained, the operator
releases the model; a T2 centre fetches the bundle and fine-tunes, a T3 centre gets a link and predicts. What
they do is what hospitals do; only the patients are invented. Results and pictures stay; keys, state and
processes go.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from fedmap.data.cohort_directory import read_cohort_directory
from fedmap.study.plan.reading import load_plan
from fedmap_lab.cohorts.making import make_cohort
from fedmap_lab.local.federation import LocalFederation, LocalSite
from fedmap_lab.local.study import Say, Watch, run_study
from fedmap_lab.local.tiers import (
    PersonalReport,
    Predicted,
    TierResults,
    downloads_toml,
    personalise,
    predict,
    release,
)

SCALE, COHORT_SEED, STUDY_SEED = 1.0, 7, 7


@dataclass(frozen=True)
class Demo(TierResults):
    """What is left when the processes are gone."""

    processes: int
    out: Path


def run_demo(plan: Path, out: Path, rounds: int, say: Say, watch: Watch) -> Demo:
    """The whole way."""
    study_plan, cohort, folder = load_plan(plan), out / "cohort", out / "federation"
    say("inventing patients at synthetic blood-donor centres")
    make_cohort("interval", cohort, SCALE, COHORT_SEED)
    for name in ("federation", "results", "personal", "predictions", "logs"):
        shutil.rmtree(out / name, ignore_errors=True)
    sites = [LocalSite(e.site, e.region, e.path, e.tier) for e in read_cohort_directory(cohort)]
    training = [site for site in sites if site.tier == 1]
    with LocalFederation(folder, aggregator_toml=downloads_toml()) as federation:
        study = run_study(federation, plan, training, rounds, STUDY_SEED, say, watch)
        results = out / "results"
        federation.aggregator("study", "results", study.study, "--out", str(results.resolve()))
        for site in training:
            federation.stop(site.name)
        say("the operator releases the model: one signed file to fine-tune, one to predict only")
        bundles = {tier: release(federation, study.study, tier) for tier in (2, 3)}
        fine_tuned: dict[str, PersonalReport] = {}
        predicted: dict[str, Predicted] = {}
        for site in sites:
            if site.tier == 2:
                say(f"{site.name} enrols, fetches {bundles[2].reference} and fine-tunes it on its own rows")
                own = out / "personal" / site.name
                fine_tuned[site.name] = personalise(federation, site, bundles[2], own)
            elif site.tier == 3:
                say(f"{site.name} gets a link and a fingerprint, checks {bundles[3].reference}, predicts")
                file = out / "predictions" / f"{site.name}.csv"
                predicted[site.name] = predict(federation, study_plan, site, bundles[3], file)
        federation.stop_all()
        shutil.move(federation.log_of("aggregator").parent, out / "logs")
    shutil.rmtree(folder)
    return Demo(study, fine_tuned, predicted, 1 + len(training), out)
