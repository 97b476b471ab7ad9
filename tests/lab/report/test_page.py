"""report.html as a browser would read it: whole, self-contained, and silent about small counts."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fedmap.algorithm.settings import PriorSettings
from fedmap.errors import FedmapError
from fedmap_lab.cli.main import app
from fedmap_lab.report.explaining import explain
from fedmap_lab.report.facts.reading import read_facts
from fedmap_lab.report.figures.sites import draw_weights
from fedmap_lab.report.writing import write_report
from tests.lab.report.made_out import MadeOut, MadeSite, write_made_models, write_out

NAMES = tuple(f"hospital-{number}" for number in range(8))
SITES = {
    name: MadeSite(1, "North & <East>" if number < 7 else "West", rows=100 + 7 * number)
    for number, name in enumerate(NAMES)
} | {"clinic": MadeSite(2, "West", 60, None), "remote": MadeSite(3, "West", 50)}
HIDDEN = 0.98765  # a value that only a group too small to be shown has
VALUES = {
    method: {name: (0.6 + 0.01 * number + shift,) for number, name in enumerate(NAMES[:7])}
    | {NAMES[7]: (HIDDEN - shift,)}
    | ({"clinic": (0.6,)} if method != "fedavg" else {})
    | ({"remote": (0.7,)} if method != "individual" else {})
    for method, shift in (("individual", 0.0), ("fedavg", 0.02), ("fedmap", 0.03))
}
FIGURES = (
    *("scores-by-tier", "gain-against-alone", "regions", "subgroups", "calibration", "site-sizes", "weights"),
    *("convergence", "prior-by-round", "prior-by-layer", "site-distances", "site-groups"),
)
RICH = MadeOut(
    SITES,
    VALUES,
    subgroups=[
        (method, 1, name, "sex", category, 0.7)
        for method in ("individual", "fedmap")
        for name in NAMES
        for category in "FM"
    ],
    calibration=[("fedmap", tier, 40, risk, risk) for tier in (1, 2, 3) for risk in (0.1, 0.4)],
    rounds=[(m, n, 2.0 / n, 1.0 / n, 0.7) for m in ("fedmap", "fedmap-frozen") for n in (1, 2)],
    weights=dict.fromkeys(NAMES, 1 / 8),
)


class Reader(HTMLParser):
    """Identifiers, images, links and text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.images: list[str] = []
        self.captions = 0
        self.outside: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.ids |= {found["id"] or ""} if "id" in found else set()
        self.captions += tag == "figcaption"
        if tag == "img":
            self.images.append(found.get("src") or "")
        for name in ("src", "href", "action", "data"):
            value = found.get(name)
            if value and not value.startswith("data:image/png;base64,"):
                self.outside.append(value)

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text())
    reader.close()
    return reader


@pytest.fixture(scope="module")
def rich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = write_out(tmp_path_factory.mktemp("rich") / "out", RICH)
    offsets = {name: 0.1 * (number % 2) for number, name in enumerate(NAMES)}
    write_made_models(out / "models" / "fedmap", RICH, PriorSettings(hidden=(8, 4)), offsets)
    write_report(out)
    return out


def test_every_figure_is_in_the_page_with_a_caption_and_beside_it_as_png_and_pdf(rich: Path) -> None:
    page = read(rich / "report.html")
    assert set(FIGURES) <= page.ids
    assert len(page.images) == page.captions == len(FIGURES)
    assert all(base64.b64decode(src.partition(",")[2]).startswith(b"\x89PNG") for src in page.images)
    for name in FIGURES:
        assert (rich / "figures" / f"{name}.png").stat().st_size > 5_000
        assert (rich / "figures" / f"{name}.pdf").read_bytes().startswith(b"%PDF")


def test_the_page_needs_nothing_from_outside_and_runs_no_script(rich: Path) -> None:
    page = read(rich / "report.html")
    text = (rich / "report.html").read_text()
    assert page.outside == []
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text
    assert "@media print" in text


def test_names_from_the_data_are_shown_as_text_and_never_as_markup(rich: Path) -> None:
    assert "<East>" not in (rich / "report.html").read_text()
    assert "North & <East>" in " ".join(read(rich / "report.html").text)
    assert "--out <out>" in " ".join(read(rich / "report.html").text)


def test_figures_of_a_region_with_one_site_stay_hidden(rich: Path) -> None:
    text = " ".join(read(rich / "report.html").text)
    assert "fewer than 3" in text
    for shown in (f"{HIDDEN:.3f}", f"{HIDDEN - 0.03:.3f}"):
        assert shown not in text, "the only site of its region"


def test_what_cannot_be_drawn_is_said_in_words(tmp_path: Path) -> None:
    made = MadeOut({"only": MadeSite(1, "", 80, None)}, {"fedavg": {"only": (0.7,)}})
    out = write_out(tmp_path / "out", made)
    (out / "figures").mkdir()
    (out / "figures" / "weights.png").write_bytes(b"of an earlier report")
    page = read(write_report(out))
    assert len(page.images) == 2, "the scores and the sizes"
    assert set(FIGURES) <= page.ids
    text = " ".join(page.text)
    for reason in (
        "FedMAP is not part of this comparison",
        "FedMAP and Alone not in this comparison",
        "no weights ω",
        "No models were kept",
        "No tier has calibration bins in this folder",
    ):
        assert reason in text, reason
    assert not (out / "figures" / "weights.png").exists()


@pytest.mark.parametrize("metric", ["auroc", "brier"])
def test_convergence_is_a_level_line_whichever_way_is_better(tmp_path: Path, metric: str) -> None:
    made = MadeOut(SITES, VALUES, metric, rounds=[("fedmap", n, 1.0, 0.0, 0.7) for n in (1, 2)])
    text = " ".join(read(write_report(write_out(tmp_path / "out", made))).text)
    assert "not yet level at its right end" in text
    assert "rising" not in text.split("Convergence over the rounds")[1].split("What the prior")[0]


def test_parts_too_small_to_be_told_are_drawn_as_nothing(tmp_path: Path) -> None:
    out = write_out(tmp_path / "out", MadeOut(SITES, VALUES, weights=dict.fromkeys(NAMES, 1 / 8)))
    lines = [f"{name},{site.tier},,,,," for name, site in SITES.items()]
    (out / "sites.csv").write_text(
        "site,tier,region,train,validation,test,outcome_share\n" + "\n".join(lines)
    )
    text = " ".join(read(write_report(out)).text)
    assert (out / "figures" / "site-sizes.png").is_file()
    assert "keep them where the data are" in text
    assert "the size of 8 sites is not known" in text.split("Weight ω of each site")[1]


@pytest.mark.parametrize("test_rows", ["10", ""])
def test_shares_of_patients_stand_beside_the_weights_only_where_all_of_them_are_known(
    tmp_path: Path, test_rows: str
) -> None:
    out = write_out(tmp_path / "out", MadeOut(SITES, VALUES, weights=dict.fromkeys(NAMES, 1 / 8)))
    lines = [f"{name},{site.tier},,80,10,10," for name, site in SITES.items()]
    lines[0] = f"{NAMES[0]},1,,80,10,{test_rows},"
    (out / "sites.csv").write_text(
        "site,tier,region,train,validation,test,outcome_share\n" + "\n".join(lines)
    )
    drawn = draw_weights(read_facts(out))
    assert drawn.figure is not None
    diamonds = [np.shape(found.get_offsets())[0] for found in drawn.figure.axes[0].collections]
    assert (len(NAMES) in diamonds) is bool(test_rows)
    assert ("counts for more than its share" in drawn.words) is bool(test_rows)
    assert ("the size of 1 site is not known" in drawn.words) is not bool(test_rows)


def test_a_tier_without_a_calibration_panel_is_named_with_the_reason(tmp_path: Path) -> None:
    made = replace(RICH, calibration=[("fedmap", 1, 40, risk, risk) for risk in (0.1, 0.4)])
    text = " ".join(read(write_report(write_out(tmp_path / "some", made))).text)
    for tier in (2, 3):
        assert f"No panel for T{tier}: at each of its sites the test patients" in text
    assert "No panel for T1" not in text
    unmeasured = replace(made, values={"fedmap": dict.fromkeys(NAMES, (0.7,))})
    text = " ".join(read(write_report(write_out(tmp_path / "unmeasured", unmeasured))).text)
    assert "No panel for T3: no model could be measured there." in text


def test_the_page_is_wide_enough_for_the_columns_of_several_seeds(rich: Path) -> None:
    (width,) = re.findall(r"main \{ max-width: (\d+)px", (rich / "report.html").read_text())
    assert int(width) >= 1250, "1,036 px of cells that do not break, longer labels, and the margins"


def test_a_page_says_where_medians_gains_ranges_and_spreads_can_mislead(tmp_path: Path, rich: Path) -> None:
    text = " ".join(read(rich / "report.html").text)
    said = text.count("can differ in sign from the difference of the two medians")
    assert said == 3, "at the tiles, the groups and the tables"
    assert text.count("No test is made of spreads") == 1
    assert "the median of the means can lie outside it" not in text, "one seed has no range"
    seeds = replace(RICH, values={m: {n: v * 2 for n, v in of.items()} for m, of in VALUES.items()})
    text = " ".join(read(write_report(write_out(tmp_path / "out", seeds))).text)
    assert "the median of the means can lie outside it" in text


def test_a_quadratic_prior_has_no_convex_part_to_draw(tmp_path: Path) -> None:
    study = write_out(tmp_path / "out", MadeOut(SITES, VALUES, rounds=[("fedmap", 1, 1.0, 0.0, 0.7)]))
    prior = PriorSettings(convex=False)
    write_made_models(study / "models" / "fedmap", RICH, prior, {"hospital-0": 0.1, "hospital-1": 0.0})
    found = explain(study, None, tmp_path / "explained")
    assert "quadratic only" in " ".join(found.layers)
    assert not (tmp_path / "explained" / "prior-by-round.png").exists()
    assert (tmp_path / "explained" / "prior-by-layer.png").is_file()


def test_explain_into_the_folder_of_the_comparison_leaves_its_tables_alone(tmp_path: Path) -> None:
    study = write_out(tmp_path / "out", RICH)
    offsets = {name: 0.1 * (number % 2) for number, name in enumerate(NAMES)}
    write_made_models(study / "models" / "fedmap", RICH, PriorSettings(convex=False), offsets)
    before = {path: path.read_bytes() for path in study.iterdir() if path.is_file()}
    explain(study, None, study)
    assert {path: path.read_bytes() for path in before} == before
    assert (study / "site_models.csv").read_text().startswith("site,region,distance_from_mu")


@pytest.mark.parametrize("damaged", ["models.json", "personal/hospital-3.safetensors", None])
def test_models_that_are_damaged_cost_the_report_only_what_needs_them(
    tmp_path: Path, damaged: str | None
) -> None:
    made = MadeOut(SITES, VALUES)
    out = write_out(tmp_path / "out", made)
    folder = out / "models" / "fedmap"
    write_made_models(folder, RICH, PriorSettings(convex=False), dict.fromkeys(NAMES, 0.1))
    if damaged is None:
        (folder / "personal" / "hospital-3.safetensors").unlink()
    else:
        (folder / damaged).write_bytes((folder / damaged).read_bytes()[:50])
    done = CliRunner().invoke(app, ["report", str(out)])
    assert done.exit_code == 0
    text = " ".join(read(out / "report.html").text)
    said = read_facts(out).models_fault
    assert "are left out" in " ".join(done.stderr.split())
    assert "models" in said
    assert "No models were kept" not in text
    assert said in text
    assert (out / "figures" / "scores-by-tier.png").is_file()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("comparison.json", None, "is no comparison"),
        ("comparison.json", "{}", "cannot be used"),
        ("comparison.json", "no json", "cannot be used"),
        ("metrics.csv", "method,seed\n", "lacks the column"),
        ("sites.csv", "site,tier,region,train,validation,test,outcome_share\na,1,,x,1,1,\n", "line 2"),
        ("sites.csv", "site,tier,region,train,validation,test,outcome_share\n", "lists no site"),
        ("sites.csv", "site,tier,region,train,validation,test,outcome_share\na,4,,1,1,1,\n", "1, 2 or 3"),
        ("sites.csv", "site,tier,region,train,validation,test,outcome_share\na,1,,-9,1,1,\n", "below zero"),
        ("metrics.csv", "method,seed,tier,site,model,metric,value\nfedmap,0,7,a,,,1\n", "1, 2 or 3"),
        ("rounds.csv", "method,seed,round,penalty,convex_penalty,personal,shared\nfedmap,0\n", "cut off"),
        ("omega.csv", "\xff\xfe", "UTF-8"),
        ("calibration.csv", None, "no such file"),
    ],
)
def test_a_foreign_or_damaged_folder_is_refused_with_a_hint(
    tmp_path: Path, name: str, content: str | None, said: str
) -> None:
    out = write_out(tmp_path / "out", MadeOut({"a": MadeSite()}, {"fedmap": {"a": (0.7,)}}))
    if content is None:
        (out / name).unlink()
    else:
        (out / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(FedmapError, match=said) as caught:
        write_report(out)
    assert caught.value.hint
    assert not (out / "report.html").exists()


def test_explain_refuses_a_folder_without_models_and_names_what_there_is(tmp_path: Path, rich: Path) -> None:
    with pytest.raises(FedmapError, match="neither a comparison nor a simulation"):
        explain(tmp_path, None, tmp_path / "explained")
    with pytest.raises(FedmapError, match="no models of ditto") as caught:
        explain(rich, "ditto", tmp_path / "explained")
    assert "fedmap" in (caught.value.hint or "")
    bare = write_out(tmp_path / "bare", MadeOut({"a": MadeSite()}, {"fedavg": {"a": (0.7,)}}))
    with pytest.raises(FedmapError, match="no method of this comparison"):
        explain(bare, None, tmp_path / "explained")
    assert not (tmp_path / "explained").exists()
