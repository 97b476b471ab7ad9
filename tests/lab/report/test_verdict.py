"""What the opening paragraph says when FedMAP wins, loses, or nothing can be said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedmap_lab.report.facts.reading import read_facts
from fedmap_lab.report.facts.statistics import compute
from fedmap_lab.report.page.verdict import Verdict, judge
from tests.lab.report.made_out import MadeOut, MadeSite, write_out

Values = Mapping[str, Mapping[str, Sequence[float]]]
NAMES = tuple(f"s{number:02}" for number in range(14))
ALONE = {name: 0.60 + 0.01 * number for number, name in enumerate(NAMES)}


def shifted(shift: float, wobble: float = 0.0, sites: int = 14) -> dict[str, tuple[float, ...]]:
    """Better than alone by `shift`, more and less at every second site."""
    return {name: (ALONE[name] + shift + wobble * (-1) ** k,) for k, name in enumerate(NAMES[:sites])}


def growing(shifts: Mapping[str, float], sites: int) -> Values:
    return {
        m: {n: (ALONE[n] + s + 0.001 * i,) for i, n in enumerate(NAMES[:sites])} for m, s in shifts.items()
    }


def gains(reference: str, steps: Sequence[float], *level: str) -> Values:
    """FedMAP against one other method, which has 0.7 everywhere; others stand at 0.6."""
    names = [f"s{number:02}" for number in range(len(steps))]
    values = {method: dict.fromkeys(names, (0.6,)) for method in level}
    values |= {reference: dict.fromkeys(names, (0.7,))}
    return values | {"fedmap": {name: (0.7 + step,) for name, step in zip(names, steps, strict=True)}}


def rising(count: int, start: float, step: float) -> list[float]:
    return [start + step * number for number in range(count)]


def verdict(folder: Path, values: Values, **more: object) -> Verdict:
    sites = {name: MadeSite() for of_site in values.values() for name in of_site}
    facts = read_facts(write_out(folder / "out", MadeOut(sites, values, **more)))  # type: ignore[arg-type]
    return judge(facts, compute(facts))


ZERO = {"individual": shifted(0.0)}
MIDDLE = {name: (ALONE[name] + 0.0045,) for name in NAMES[6:8]}
LEANING = [*rising(22, 0.001, 1e-5), *rising(14, -0.05, -1e-4)]
FAVOURED = "FedMAP (quadratic) has the better median"
SAID: dict[str, tuple[Values, tuple[str, ...], tuple[str, ...]]] = {
    "a win is a win only with what the test says": (
        ZERO | {"fedavg": shifted(0.01, 0.002), "fedmap": shifted(0.05, 0.003)},
        (
            *("FedMAP came first (median 0.715), ahead of FedAvg", "FedMAP is better beyond chance"),
            *("sites gained 0.0", "14 of 14 did better; paired, FedMAP is better beyond chance"),
        ),
        (),
    ),
    "a loss is said as plainly": (
        ZERO | {"fedavg": shifted(0.05, 0.003), "fedmap": shifted(-0.01, 0.002)},
        (
            *("FedMAP did not come first: FedAvg", "FedAvg is better beyond chance", "sites lost 0.0"),
            "0 of 14 did better; paired, training alone is better beyond chance",
        ),
        (),
    ),
    "pairs that lean away from the gain over training alone are chance": (
        gains("individual", LEANING),
        ("22 of 36 did better, while the pairs lean to training alone, which may be chance (p",),
        (),
    ),
    "ties leave too little for a test": (
        gains("fedavg", [0.01, 0.02, 0.03] + [0.0] * 17),
        ("only 3 of 20 sites not tied", "no test can tell this from chance"),
        (),
    ),
    "pairs that lean away from the medians are chance": (
        gains("fedavg", LEANING),
        ("FedMAP came first", "while the pairs lean to FedAvg; the difference may be chance (p"),
        (),
    ),
    "pairs that lean away from the medians where no test can succeed": (
        gains(
            "fedavg",
            (0.001, 0.0011, 0.0012, 0.0013, -0.05, -0.051, -0.052),
            *("individual", "fedprox", "ditto"),
        ),
        ("ahead of FedAvg (0.700), while the pairs lean to FedAvg; with 7 sites",),
        (),
    ),
    "a difference that may be chance is no equality": (
        ZERO | {"fedavg": shifted(0.02, 0.05), "fedmap": shifted(0.021, -0.04)},
        ("the two cannot be told apart with these sites",),
        ("level", "the pairs lean"),
    ),
    "where most sites tie the test says who is better": (
        gains("fedavg", [*rising(9, -0.01, -0.001), *[0.0] * 11]),
        ("FedAvg is better beyond chance",),
        ("FedMAP is better",),
    ),
    "a variant with a better median is not hidden": (
        ZERO | {"fedmap": shifted(0.01), "fedmap-quadratic": shifted(0.05)},
        (f"{FAVOURED} with 0.715, and the pairs favour it as well",),
        (),
    ),
    "a variant with a better median whose pairs favour fedmap": (
        ZERO | {"fedmap": shifted(0.0), "fedmap-quadratic": shifted(-0.008) | MIDDLE},
        (FAVOURED, "paired over sites, FedMAP is favoured (p < 0.001, not corrected)"),
        (),
    ),
    "a variant with a better median and pairs that may be chance": (
        ZERO | {"fedmap": shifted(0.0), "fedmap-quadratic": shifted(-0.004) | MIDDLE},
        (FAVOURED, "paired over sites, no difference is shown (p = "),
        ("is favoured",),
    ),
    "variants and the oracle use up no tests": (
        growing(
            {"individual": 0, "fedmap": 0.05, "pooled": 0.04, "fedmap-quadratic": 0.03, "fedmap-paper": 0.02},
            7,
        ),
        ("FedMAP is better beyond chance (p = 0.016)",),
        (),
    ),
    "the oracle never wins": (
        ZERO | {"pooled": shifted(0.2), "fedmap": shifted(0.05)},
        ("FedMAP came first", "which is not allowed, reaches 0.865"),
        (),
    ),
    "a method with figures at a few good sites cannot win": (
        ZERO | {"ditto": {NAMES[-1]: (0.99,)}, "fedmap": shifted(0.05)},
        (
            "FedMAP came first",
            "Not ranked, because figures at some sites are missing: Ditto (1 of 14 sites).",
        ),
        (),
    ),
    "where fedmap lacks sites all medians are over those it has": (
        ZERO | {"fedmap": {name: (ALONE[name] - 0.01,) for name in NAMES[7:]}},
        (
            "FedMAP did not come first: Alone (0.700) is ahead of its 0.690",  # 0.665 over all sites
            "over the 7 of 14 sites at which FedMAP has a figure",
        ),
        (),
    ),
    "a comparison without fedmap": (
        ZERO | {"fedavg": shifted(0.01)},
        ("FedMAP is not part of this comparison",),
        (),
    ),
}


@pytest.mark.parametrize(("values", "said", "unsaid"), SAID.values(), ids=list(SAID))
def test_the_sentence_of_a_tier_says_what_the_test_and_the_medians_allow(
    tmp_path: Path, values: Values, said: tuple[str, ...], unsaid: tuple[str, ...]
) -> None:
    sentence = verdict(tmp_path, values).tiers[0][1]
    assert not [words for words in said if words not in sentence], sentence
    assert not [words for words in unsaid if words in sentence], sentence


@pytest.mark.parametrize(
    ("steps", "change"),
    [
        ([*rising(22, 0.001, 1e-5), *rising(18, -0.05, -1e-4)], "gained 0.001"),
        ([*rising(16, -0.01, -1e-4), *[0.0] * 24], "neither gained nor lost"),
        ([*rising(22, 1e-5, 1e-6), *rising(18, -0.05, -1e-4)], "gained less than 0.001"),
    ],
)
def test_who_is_better_than_training_alone_is_said_by_the_test_and_not_by_the_median_gain(
    tmp_path: Path, steps: list[float], change: str
) -> None:
    said = verdict(tmp_path, gains("individual", steps)).tiers[0][1]
    assert f"Against training alone, sites {change} at the median" in said
    assert "; paired, training alone is better beyond chance (p" in said


@pytest.mark.parametrize(("sites", "possible"), [(6, False), (8, True)])
def test_a_test_that_the_correction_makes_hopeless_is_called_so(
    tmp_path: Path, sites: int, possible: bool
) -> None:
    shifts = {"individual": 0.0, "fedavg": 0.01, "fedprox": 0.02, "ditto": 0.03, "fedmap": 0.05}
    found = verdict(tmp_path, growing(shifts, sites))
    said = found.tiers[0][1]
    assert "cannot be told apart" not in said
    assert ("no test can tell this from chance" in said) is not possible
    assert ("better beyond chance" in said) is possible
    hopeless = any("no test between methods can succeed" in caveat for caveat in found.caveats)
    assert hopeless is not possible


@pytest.mark.parametrize("count", [1, 5])
def test_few_sites_allow_no_test(tmp_path: Path, count: int) -> None:
    found = verdict(tmp_path, {"individual": shifted(0, 0, count), "fedmap": shifted(0.1, 0, count)})
    assert "no test can tell this from chance" in found.tiers[0][1]
    assert any("no test between methods is possible" in caveat for caveat in found.caveats)


def test_a_diverged_fedmap_is_said_with_the_reason(tmp_path: Path) -> None:
    found = verdict(tmp_path, ZERO, failures=[("fedmap", "diverged", "round 2: all fits failed")])
    assert "FedMAP has no figure here (round 2: all fits failed)" in found.tiers[0][1]
    assert any(caveat.startswith("Diverged") for caveat in found.caveats)


def test_a_lower_brier_score_wins(tmp_path: Path) -> None:
    values = {"individual": shifted(-0.4), "fedavg": shifted(-0.41), "fedmap": shifted(-0.45)}
    said = verdict(tmp_path, values, metric="brier").tiers[0][1]
    assert "FedMAP came first (median 0.215)" in said
    assert "sites gained 0.050" in said


def test_failed_fits_of_single_sites_are_counted_and_named(tmp_path: Path) -> None:
    values = ZERO | {"ditto": shifted(0.01), "fedmap": shifted(0.02)}
    failed = [("fedmap", "s03"), ("fedmap", "s03"), ("ditto", "s05")]
    said = " ".join(verdict(tmp_path, values, failed_fits=failed).caveats)
    assert "2 pairs of method and site: FedMAP at s03 and Ditto at s05" in said
    assert "Ditto trains two models in it" in said, "the budget is not the same in every sense"
    assert "pFedMe" not in said, "it is not part of the comparison"


def test_one_site_of_a_tier_is_spoken_of_in_the_singular(tmp_path: Path) -> None:
    made = MadeOut(
        {"a": MadeSite(), "b": MadeSite(), "clinic": MadeSite(2)}, {"fedmap": {"a": (0.7,), "b": (0.7,)}}
    )
    facts = read_facts(write_out(tmp_path / "out", made))
    opening = judge(facts, compute(facts)).opening
    assert "3 sites: 2 that train together (T1) and 1 that fine-tunes the shared model once (T2)" in opening
