"""`fedmap-lab explain`: what the prior of one run learned, in words, pictures and a table.

Works on the folder of a comparison and on that of a simulation: both keep the prior and the T1 models.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from fedmap.errors import FedmapError
from fedmap.files.durable import make_folder, write_durably
from fedmap_lab.comparison.request import DESCRIPTION
from fedmap_lab.report.facts.reading import RoundFact, read_rounds, require_finished
from fedmap_lab.report.figures.pictures import in_style, save_pictures
from fedmap_lab.report.figures.prior import draw_prior, draw_prior_by_round
from fedmap_lab.report.prior.facts import PriorFacts, prior_facts
from fedmap_lab.report.prior.words import explain_layers, explain_sites
from fedmap_lab.simulation.kept_models import ABOUT, read_models
from fedmap_lab.tables import read_rows, write_table

_HINT = "give --study the folder that `fedmap-lab compare` or `fedmap-lab simulate` wrote"


@dataclass(frozen=True)
class Explanation:
    facts: PriorFacts
    layers: tuple[str, ...]
    sites: tuple[str, ...]


def explain(study: Path, method: str | None, out: Path) -> Explanation:
    """Writes explanation.txt, layers.csv, site_models.csv and the figures into OUT."""
    models, rounds = _find(study, method)
    facts = prior_facts(read_models(models))
    found = Explanation(facts, tuple(explain_layers(facts)), tuple(explain_sites(facts)))
    make_folder(out, mode=0o755)
    with in_style():
        save_pictures((draw_prior_by_round(rounds), *draw_prior(facts)), out)
    write_durably(out / "explanation.txt", "\n".join((*found.layers, *found.sites, "")).encode(), mode=0o644)
    columns = ("label", "parameters", "spread", "size", "convex", "quadratic", "curvature")
    write_table(
        out / "layers.csv",
        ("layer", *columns),
        ((layer.name, *(asdict(layer)[name] for name in columns)) for layer in facts.layers),
    )
    shown = facts.groups is not None and facts.groups.found
    groups = facts.groups.of if shown and facts.groups is not None else (None,) * len(facts.sites)
    write_table(
        out / "site_models.csv",
        ("site", "region", "distance_from_mu", "group"),
        zip(facts.sites, facts.regions, facts.from_mu, groups, strict=True),
    )
    return found


def _find(study: Path, method: str | None) -> tuple[Path, tuple[RoundFact, ...]]:
    """Where the models are, and the rounds beside them."""
    require_finished(study)
    if (study / DESCRIPTION).is_file():
        kept = sorted(path.parent.name for path in (study / "models").glob(f"*/{ABOUT}"))
        if not kept:
            raise FedmapError(
                f"{study}: no method of this comparison has a prior or personal models that were kept",
                hint="compare with fedmap among --methods, and seed 0 among the seeds",
            )
        chosen = method or ("fedmap" if "fedmap" in kept else kept[0])
        if chosen not in kept:
            raise FedmapError(
                f"{study} has no models of {chosen}", hint=f"give --method one of {', '.join(kept)}"
            )
        return study / "models" / chosen, tuple(r for r in read_rounds(study) if r.method == chosen)
    if (study / ABOUT).is_file():
        return study, _simulated_rounds(study)
    if (study / "summary.json").is_file():
        raise FedmapError(
            f"{study}: the method of this simulation gives no personal models beside a global one",
            hint="simulate with --method fedmap; results of an older version have to be made again",
        )
    raise FedmapError(f"{study} holds neither a comparison nor a simulation", hint=_HINT)


def _simulated_rounds(study: Path) -> tuple[RoundFact, ...]:
    """A simulation is one method and one seed."""
    name = read_models(study).method
    found = []
    for line, row in read_rows(study / "rounds.csv", ("round", "penalty", "convex_penalty")):
        penalty, convex = line.number(row["penalty"]), line.number(row["convex_penalty"])
        found.append(RoundFact(name, 0, line.whole(row["round"]), penalty, convex, None, None))
    return tuple(found)
