"""What the opening paragraph says when FedMAP wins, loses, or nothing can be said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedmap_lab.report.facts.reading import read_facts
from fedmap_lab.report.facts.statistics import compute
from fedmap_lab.report.page.verdict import Verdict, judge
from tests.lab.report.made_out import MadeOut, MadeSite, write_out

NAMES = tuple(f"s{number:02}" for number in range(14))
ALONE = {name: 0.60 + 0.01 * number for number, name in enumerate(NAMES)}


def shifted(shift: float, wobble: float = 0.0) -> dict[str, tuple[float, ...]]:
    """Better than alone by `shift`, more and less at every second site."""
    return {
        name: (value + shift + wobble * (-1) ** place,) for place, (name, value) in enumerate(ALONE.items())
    }


def verdict(folder: Path, **values: dict[str, tuple[float, ...]]) -> Verdict:
    named = {name.replace("_", "-"): of_site for name, of_site in values.items()}
    made = MadeOut({name: MadeSite() for name in NAMES}, {"individual": shifted(0.0), **named})
    return judge_made(folder, made)


def judge_made(folder: Path, made: MadeOut) -> Verdict:
    facts = read_facts(write_out(folder / "out", made))
    return judge(facts, compute(facts))


def test_a_win_is_a_win_only_with_what_the_test_says(tmp_path: Path) -> None:
    said = verdict(tmp_path, fedavg=shifted(0.01, 0.002), fedmap=shifted(0.05, 0.003)).tiers[0][1]
    assert "FedMAP came first (median 0.715), ahead of FedAvg" in said
    assert "FedMAP is better beyond chance" in said
    assert "sites gained 0.0" in said
    assert "14 of 14 did better; paired, FedMAP is better beyond chance" in said


def test_a_loss_is_said_as_plainly(tmp_path: Path) -> None:
    said = verdict(tmp_path, fedavg=shifted(0.05, 0.003), fedmap=shifted(-0.01, 0.002)).tiers[0][1]
    assert "FedMAP did not come first: FedAvg" in said
    assert "FedAvg is better beyond chance" in said
    assert "sites lost 0.0" in said
    assert "0 of 14 did better; paired, training alone is better beyond chance" in said


@pytest.mark.parametrize(
    ("gains", "change"),
    [
        ([0.001 + 1e-5 * n for n in range(22)] + [-0.05 - 1e-4 * n for n in range(18)], "gained 0.001"),
        ([-0.01 - 1e-4 * n for n in range(16)] + [0.0] * 24, "neither gained nor lost"),
        (
            [1e-5 + 1e-6 * n for n in range(22)] + [-0.05 - 1e-4 * n for n in range(18)],
            "gained less than 0.001",
        ),
    ],
)
def test_who_is_better_than_training_alone_is_said_by_the_test_and_not_by_the_median_gain(
    tmp_path: Path, gains: list[float], change: str
) -> None:
    said = judge_gains(tmp_path, "individual", gains)
    assert f"Against training alone, sites {change} at the median" in said
    assert "; paired, training alone is better beyond chance (p" in said


def test_pairs_that_lean_away_from_the_gain_over_training_alone_are_named_as_chance(tmp_path: Path) -> None:
    gains = [0.001 + 1e-5 * n for n in range(22)] + [-0.05 - 1e-4 * n for n in range(14)]
    said = judge_gains(tmp_path, "individual", gains)
    assert "22 of 36 did better, while the pairs lean to training alone, which may be chance (p" in said


def test_ties_are_named_where_they_leave_too_little_for_a_test(tmp_path: Path) -> None:
    said = judge_gains(tmp_path, "fedavg", [0.01, 0.02, 0.03] + [0.0] * 17)
    assert "only 3 of 20 sites not tied" in said
    assert "no test can tell this from chance" in said


def test_pairs_that_lean_away_from_the_medians_are_named_as_chance(tmp_path: Path) -> None:
    gains = [0.001 + 1e-5 * n for n in range(22)] + [-0.05 - 1e-4 * n for n in range(14)]
    said = judge_gains(tmp_path, "fedavg", gains)
    assert "FedMAP came first" in said
    assert "while the pairs lean to FedAvg; the difference may be chance (p" in said


def test_pairs_that_lean_away_from_the_medians_are_named_where_no_test_can_succeed(tmp_path: Path) -> None:
    few = NAMES[:7]
    gains = (0.001, 0.0011, 0.0012, 0.0013, -0.05, -0.051, -0.052)
    values = {m: dict.fromkeys(few, (0.6,)) for m in ("individual", "fedprox", "ditto")}
    values |= {"fedavg": dict.fromkeys(few, (0.7,))}
    values |= {"fedmap": {name: (0.7 + gain,) for name, gain in zip(few, gains, strict=True)}}
    said = judge_made(tmp_path, MadeOut({name: MadeSite() for name in few}, values)).tiers[0][1]
    assert "ahead of FedAvg (0.700), while the pairs lean to FedAvg; with 7 sites" in said


def judge_gains(folder: Path, reference: str, gains: list[float]) -> str:
    """FedMAP against one other method, which has 0.7 everywhere."""
    names = [f"s{number:02}" for number in range(len(gains))]
    values = {
        reference: dict.fromkeys(names, (0.7,)),
        "fedmap": {name: (0.7 + gain,) for name, gain in zip(names, gains, strict=True)},
    }
    return judge_made(folder, MadeOut({name: MadeSite() for name in names}, values)).tiers[0][1]


def test_a_difference_that_may_be_chance_is_not_called_equality(tmp_path: Path) -> None:
    said = verdict(tmp_path, fedavg=shifted(0.02, 0.05), fedmap=shifted(0.021, -0.04)).tiers[0][1]
    assert "the two cannot be told apart with these sites" in said
    assert "level" not in said
    assert "the pairs lean" not in said, "they point where the medians do"


def test_where_most_sites_tie_the_test_and_not_the_median_gain_says_who_is_better(tmp_path: Path) -> None:
    names = [f"s{number:02}" for number in range(20)]
    fedmap = dict.fromkeys(names, 0.7)
    fedavg = {name: 0.7 + (0.01 + 0.001 * place if place < 9 else 0.0) for place, name in enumerate(names)}
    values = {m: {n: (v,) for n, v in of.items()} for m, of in (("fedavg", fedavg), ("fedmap", fedmap))}
    said = judge_made(tmp_path, MadeOut({name: MadeSite() for name in names}, values)).tiers[0][1]
    assert "FedAvg is better beyond chance" in said
    assert "FedMAP is better" not in said


def test_a_variant_with_a_better_median_is_not_hidden(tmp_path: Path) -> None:
    said = verdict(tmp_path, fedmap=shifted(0.01), fedmap_quadratic=shifted(0.05)).tiers[0][1]
    assert "FedMAP (quadratic) has the better median with 0.715, and the pairs favour it as well" in said


def test_a_variant_with_a_better_median_whose_pairs_favour_fedmap_is_said_so(tmp_path: Path) -> None:
    variant = shifted(-0.008)
    variant |= {name: (ALONE[name] + 0.0045,) for name in NAMES[6:8]}  # the two in the middle
    said = verdict(tmp_path, fedmap=shifted(0.0), fedmap_quadratic=variant).tiers[0][1]
    assert "FedMAP (quadratic) has the better median" in said
    assert "paired over sites, FedMAP is favoured (p < 0.001, not corrected)" in said


def test_a_variant_with_a_better_median_and_pairs_that_may_be_chance_favours_nobody(tmp_path: Path) -> None:
    variant = shifted(-0.004) | {
        name: (ALONE[name] + 0.0045,) for name in NAMES[6:8]
    }  # the two in the middle
    said = verdict(tmp_path, fedmap=shifted(0.0), fedmap_quadratic=variant).tiers[0][1]
    assert "FedMAP (quadratic) has the better median" in said
    assert "paired over sites, no difference is shown (p = " in said
    assert "is favoured" not in said


@pytest.mark.parametrize(("sites", "possible"), [(6, False), (8, True)])
def test_a_test_that_the_correction_makes_hopeless_is_called_so(
    tmp_path: Path, sites: int, possible: bool
) -> None:
    few = NAMES[:sites]
    shifts = {"individual": 0.0, "fedavg": 0.01, "fedprox": 0.02, "ditto": 0.03, "fedmap": 0.05}
    values = {m: {n: (ALONE[n] + s + 0.001 * i,) for i, n in enumerate(few)} for m, s in shifts.items()}
    found = judge_made(tmp_path, MadeOut({name: MadeSite() for name in few}, values))
    said = found.tiers[0][1]
    assert "cannot be told apart" not in said
    assert ("no test can tell this from chance" in said) is not possible
    assert ("better beyond chance" in said) is possible
    hopeless = any("no test between methods can succeed" in caveat for caveat in found.caveats)
    assert hopeless is not possible


def test_variants_and_the_oracle_do_not_use_up_the_tests_of_methods_that_can_win(tmp_path: Path) -> None:
    few = NAMES[:7]
    shifts = {
        "individual": 0.0,
        "fedmap": 0.05,
        "pooled": 0.04,
        "fedmap-quadratic": 0.03,
        "fedmap-paper": 0.02,
    }
    values = {m: {n: (ALONE[n] + s + 0.001 * i,) for i, n in enumerate(few)} for m, s in shifts.items()}
    said = judge_made(tmp_path, MadeOut({name: MadeSite() for name in few}, values)).tiers[0][1]
    assert "FedMAP is better beyond chance (p = 0.016)" in said


def test_the_oracle_never_wins(tmp_path: Path) -> None:
    said = verdict(tmp_path, pooled=shifted(0.2), fedmap=shifted(0.05)).tiers[0][1]
    assert "FedMAP came first" in said
    assert "which is not allowed, reaches 0.865" in said


def test_a_method_with_figures_at_a_few_good_sites_cannot_win_and_is_named(tmp_path: Path) -> None:
    made = MadeOut(
        {name: MadeSite() for name in NAMES},
        {"individual": shifted(0.0), "ditto": {NAMES[-1]: (0.99,)}, "fedmap": shifted(0.05)},
    )
    facts = read_facts(write_out(tmp_path / "out", made))
    statistics = compute(facts)
    best = statistics.tiers[0].best("auroc")
    assert best is not None
    assert best.method == "fedmap"
    said = judge(facts, statistics).tiers[0][1]
    assert "FedMAP came first" in said
    assert "Not ranked, because figures at some sites are missing: Ditto (1 of 14 sites)." in said


def test_where_fedmap_lacks_sites_all_medians_are_over_those_it_has(tmp_path: Path) -> None:
    few: dict[str, tuple[float, ...]] = {name: (ALONE[name] - 0.01,) for name in NAMES[7:]}
    said = verdict(tmp_path, fedmap=few).tiers[0][1]
    assert "FedMAP did not come first: Alone (0.700) is ahead of its 0.690" in said, "0.665 over all sites"
    assert "over the 7 of 14 sites at which FedMAP has a figure" in said


@pytest.mark.parametrize("count", [1, 5])
def test_few_sites_allow_no_test(tmp_path: Path, count: int) -> None:
    few = NAMES[:count]
    values = {
        "individual": dict.fromkeys(few, (0.6,)),
        "fedmap": dict.fromkeys(few, (0.7,)),
    }
    found = judge_made(tmp_path, MadeOut({name: MadeSite() for name in few}, values))
    assert "no test can tell this from chance" in found.tiers[0][1]
    assert any("no test between methods is possible" in caveat for caveat in found.caveats)


def test_a_comparison_without_fedmap_or_with_a_diverged_one_says_so(tmp_path: Path) -> None:
    found = verdict(tmp_path / "without", fedavg=shifted(0.01))
    assert "FedMAP is not part of this comparison" in found.tiers[0][1]
    made = MadeOut(
        {name: MadeSite() for name in NAMES},
        {"individual": shifted(0.0)},
        failures=[("fedmap", "diverged", "round 2: all fits failed")],
    )
    found = judge_made(tmp_path / "diverged", made)
    assert "FedMAP has no figure here (round 2: all fits failed)" in found.tiers[0][1]
    assert any(caveat.startswith("Diverged") for caveat in found.caveats)


def test_a_lower_brier_score_wins(tmp_path: Path) -> None:
    made = MadeOut(
        {name: MadeSite() for name in NAMES},
        {"individual": shifted(-0.4), "fedavg": shifted(-0.41), "fedmap": shifted(-0.45)},
    )
    said = judge_made(tmp_path, replace(made, metric="brier")).tiers[0][1]
    assert "FedMAP came first (median 0.215)" in said
    assert "sites gained 0.050" in said


def test_failed_fits_of_single_sites_are_counted_and_named(tmp_path: Path) -> None:
    made = MadeOut(
        {name: MadeSite() for name in NAMES},
        {"individual": shifted(0.0), "ditto": shifted(0.01), "fedmap": shifted(0.02)},
        failed_fits=[("fedmap", "s03"), ("fedmap", "s03"), ("ditto", "s05")],
    )
    said = " ".join(judge_made(tmp_path, made).caveats)
    assert "2 pairs of method and site: FedMAP at s03 and Ditto at s05" in said
    assert "Ditto trains two models in it" in said, "the budget is not the same in every sense"
    assert "pFedMe" not in said, "it is not part of the comparison"


def test_one_site_of_a_tier_is_spoken_of_in_the_singular(tmp_path: Path) -> None:
    made = MadeOut(
        {"a": MadeSite(), "b": MadeSite(), "clinic": MadeSite(2)}, {"fedmap": {"a": (0.7,), "b": (0.7,)}}
    )
    opening = judge_made(tmp_path, made).opening
    assert "3 sites: 2 that train together (T1) and 1 that fine-tunes the shared model once (T2)" in opening
