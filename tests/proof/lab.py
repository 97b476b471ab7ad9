"""The lab's drivers: a whole study in one process, by its loop engine or its vectorised one."""

from __future__ import annotations

from pathlib import Path

from tests.proof import findings, programs
from tests.proof.findings import Findings, Tensors
from tests.proof.in_hand import run_in_hand
from tests.proof.plans import SEED, Proved

ENGINES = ("loop", "vectorised")


def run_lab(engine: str, study: Proved, folder: Path) -> Findings:
    """No command makes a site miss a round: that study is run in hand."""
    out = folder / f"{study.name}-{engine}"
    if study.has_absence:
        run_in_hand(f"lab-{engine}", study, out)
    else:
        command = [programs.FIRST / "fedmap-lab", "simulate", "--engine", engine, "--seed", str(SEED)]
        where = ["--plan", study.plan, "--data", study.cohort, "--out", out]
        programs.run([*command, "--rounds", str(study.rounds), *where])
    return _findings(out)


def _findings(out: Path) -> Findings:
    prior: Tensors = {}
    for name, tensor in findings.read_tensors(out / "mu.safetensors").items():
        prior[name if name.startswith("buffers.") else f"mu.{name}"] = tensor
    if (out / "psi.safetensors").exists():
        named = findings.read_tensors(out / "psi.safetensors")
        prior |= {f"psi.{name}": tensor for name, tensor in named.items()}
    if (out / "scaler.safetensors").exists():
        prior |= findings.read_tensors(out / "scaler.safetensors")
    personal = {path.stem: path for path in sorted((out / "personal").iterdir())}
    return (
        findings.of_prior(prior)
        | findings.of_personal(personal)
        | _rule(out)
        | findings.of_scores(out)
        | findings.of_losses(out / "rounds.csv")
    )


def _rule(out: Path) -> Findings:
    rows = findings.read_table(out / "thresholds.csv")
    threshold = [float(row["threshold"]) for row in rows if row["model"] == "global"]
    grid, cumulative = [], []
    if (out / "baseline.safetensors").exists():
        baseline = findings.read_tensors(out / "baseline.safetensors")
        grid, cumulative = baseline["grid"].tolist(), baseline["cumulative"].tolist()
    sites = {row["site"]: float(row["threshold"]) for row in rows if row["model"] == "personal"}
    own = {"rules of sites": findings.of_values({**sites}, sites)}
    return own | findings.of_rule(threshold[0] if threshold else None, grid, cumulative)
