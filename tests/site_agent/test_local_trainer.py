"""The site's work on a task gives the simulator's numbers, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedmap.algorithm.fit.round import OwnModel
from fedmap.algorithm.fit.values import LocalFit, Model
from fedmap.algorithm.pooling.statistics import make_scaler, pool_statistics
from fedmap.algorithm.prior.aggregation import SiteParameters, next_prior
from fedmap.contract import wire
from fedmap.contract.v1 import federation_pb2 as pb
from fedmap.contract.v1 import values
from fedmap.data.loading import load_site
from fedmap.data.scaling import scale_dataset
from fedmap.data.table.site_dataset import SiteDataset
from fedmap.errors import IncompatibleError, ModelError
from fedmap.metrics import Metric, MetricResult, SkippedMetric
from fedmap.scoring.decision_rules import pool_rule
from fedmap.scoring.evaluation import Scoring, local_rule
from fedmap.study import answers
from fedmap.study.engine import LoopEngine
from fedmap.study.models import model_of
from fedmap.study.personalisation import fine_tune
from fedmap.study.tensors.parameter_files import PriorFile, decode_parameters, decode_statistics, decode_theta
from fedmap.study.terms import StudyTerms
from fedmap_lab.federation.sites import load_federation
from fedmap_lab.methods.fedmap import FedMap
from fedmap_lab.methods.method import common_start
from fedmap_lab.simulation.simulate import simulate
from fedmap_site.policy import SitePolicy
from fedmap_site.work.trainer import Work, perform
from tests.site_agent.stages import Bench, silent, task, terms_of, write_site

POLICY = SitePolicy(min_rows=10, min_events=2, min_cell=5)
SITES = {"east": 260, "north": 300, "west": 220}


def result_of(score: pb.Score) -> MetricResult:
    return answers.result_of(wire.value_of(values.Score, score))


@pytest.fixture
def cohort(tmp_path: Path) -> Path:
    folder = tmp_path / "cohort"
    folder.mkdir()
    lines = ["site,tier,region", *(f"{site},1," for site in SITES)]
    (folder / "sites.csv").write_text("\n".join(lines) + "\n")
    for number, (site, rows) in enumerate(SITES.items()):
        write_site(folder / f"{site}.csv", rows, number)
    return folder


def fine_tuned_scores(
    terms: StudyTerms, model: Model, final: PriorFile, site: SiteDataset
) -> list[MetricResult]:
    """What a T2 site with these rows would get from the same prior."""
    data = scale_dataset(terms.plan, site, final.scaler)
    fit = fine_tune(terms.plan, model, final.prior, data, terms.seed)
    assert isinstance(fit, LocalFit)
    own = SiteParameters(fit.theta, fit.buffers)
    rule = local_rule(terms.plan, model, own, data.train, data.validation)
    return list(Scoring(terms.plan, model, own, rule, data.test, data.train).measure())


@pytest.mark.parametrize(
    ("kind", "rule", "consensus_share"),
    [("binary", "prevalence", 0.0), ("binary", "youden", 0.75), ("cox", "", 0.0)],
)
def test_a_study_done_task_by_task_equals_the_simulation_bit_for_bit(
    cohort: Path, kind: str, rule: str, consensus_share: float
) -> None:
    torch.set_num_threads(1)
    terms = terms_of(kind, rule)
    training = replace(terms.plan.training, consensus_share=consensus_share)
    plan = terms.plan.model_copy(update={"training": training})
    terms = replace(terms, plan=plan, rounds=terms.rounds + 1)  # not the plan's number of rounds
    model, settings = model_of(plan), plan.settings
    data: dict[str, SiteDataset] = {site: load_site(plan, site, cohort / f"{site}.csv", 1) for site in SITES}
    federation = load_federation(plan, cohort)
    study = simulate(federation, FedMap(), LoopEngine(), terms.rounds, terms.seed)

    def ask(request: pb.Task, site: str, prior: PriorFile | None, own: OwnModel | None = None) -> Work:
        return perform(request, terms, data[site], prior, own, POLICY, silent)

    statistics = {}
    for site in SITES:
        work = ask(task(pb.TASK_KIND_STATISTICS), site, None)
        assert isinstance(work.content, pb.StatisticsAnswer)
        statistics[site] = decode_statistics(work.tensors, work.content.rows, 3)
    scaler = make_scaler(pool_statistics(statistics), data["east"].layout.scaled)
    assert torch.equal(scaler.mean, federation.scaler.mean)
    assert torch.equal(scaler.deviation, federation.scaler.deviation)

    prior = common_start(federation, plan.prior, terms.seed)
    own: dict[str, OwnModel] = {}
    for number in range(1, terms.rounds + 1):
        updates, log_omega = {}, {}
        for site in SITES:
            work = ask(task(pb.TASK_KIND_FIT, number), site, PriorFile(prior, scaler), own.get(site))
            assert isinstance(work.content, pb.FitAnswer)
            assert work.model is not None
            own[site] = work.model
            updates[site] = decode_parameters(model.network, work.tensors)
            log_omega[site] = work.content.log_omega
        step = next_prior(
            model.network.spec,
            settings.prior,
            settings.aggregation_in(number, terms.rounds),
            prior,
            log_omega,
            updates.__getitem__,
        )
        prior = step.prior
    assert study.trained.prior is not None
    assert torch.equal(prior.mu, study.trained.prior.mu)
    assert torch.equal(prior.psi, study.trained.prior.psi)
    assert torch.equal(prior.buffers.variance, study.trained.prior.buffers.variance)
    for site in SITES:
        assert torch.equal(own[site].parameters.theta, study.trained.personal[site].theta)

    final = PriorFile(prior, scaler)
    terms_by_site = {}
    for site in SITES:
        work = ask(task(pb.TASK_KIND_RULE), site, final)
        assert isinstance(work.content, pb.RuleAnswer)
        told = wire.value_of(values.RuleAnswer, work.content)
        terms_by_site[site], _ = answers.terms_of(plan, told, work.tensors or None)
    pooled = pool_rule(plan, terms_by_site)
    assert pooled.threshold == study.rule.threshold
    if study.rule.baseline is not None:
        assert pooled.baseline is not None
        assert torch.equal(pooled.baseline.cumulative, study.rule.baseline.cumulative)

    for site in SITES:
        request = task(
            pb.TASK_KIND_EVALUATE, rule=pb.GlobalRule.FromString(wire.write(answers.told_rule(pooled)))
        )
        work = ask(request, site, final, own[site])
        assert isinstance(work.content, pb.EvaluationAnswer)
        scores = [score for score in work.content.scores if score.model != "fine_tuned"]
        found = [(score.model, result_of(score)) for score in scores]
        assert found == [(s.model, s.result) for s in study.scores if s.site == site]
        tuned = [result_of(score) for score in work.content.scores if score.model == "fine_tuned"]
        assert tuned == fine_tuned_scores(terms, model, final, data[site])


def test_the_first_model_is_the_one_that_the_drawn_site_gives_in_the_simulation(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    work = perform(
        task(pb.TASK_KIND_INITIALISE), bench.terms, bench.dataset(), None, None, bench.policy, silent
    )
    network = model_of(bench.terms.plan).network
    assert torch.equal(decode_theta(network, work.tensors), bench.prior().prior.mu)


def fit(bench: Bench, number: int, own: OwnModel | None = None) -> Work:
    request = task(pb.TASK_KIND_FIT, number)
    return perform(request, bench.terms, bench.dataset(), bench.prior(), own, bench.policy, silent)


@pytest.mark.parametrize(("number", "scored"), [(1, True), (2, True), (3, False), (4, True)])
def test_validation_scores_come_every_few_rounds_and_at_both_ends(
    tmp_path: Path, number: int, scored: bool
) -> None:
    work = fit(Bench(tmp_path), number)
    assert isinstance(work.content, pb.FitAnswer)
    scores = work.content.validation_scores
    assert [score.model for score in scores] == (["personal", "global"] if scored else [])
    assert all(isinstance(result_of(score), Metric) for score in scores)


def test_a_consensus_round_scores_the_sites_model_and_not_what_it_sends(tmp_path: Path) -> None:
    plan = terms_of().plan
    plan = plan.model_copy(update={"training": replace(plan.training, consensus_share=0.75)})
    bench = Bench(tmp_path, StudyTerms.of_plan(plan, seed=5))
    start, scaler = bench.prior().prior, bench.prior().scaler
    work = fit(bench, 2, OwnModel(SiteParameters(start.mu, start.buffers), -3 * start.mu))
    assert isinstance(work.content, pb.FitAnswer)
    assert work.model is not None
    model, data = model_of(plan), scale_dataset(plan, bench.dataset(), scaler)

    def on_validation_rows(parameters: SiteParameters) -> list[MetricResult]:
        rule = local_rule(plan, model, parameters, data.train, data.validation)
        scoring = Scoring(plan, model, parameters, rule, data.validation, data.train)
        return list(scoring.measure([plan.task.metric]))

    personal = [result_of(one) for one in work.content.validation_scores if one.model == "personal"]
    assert personal == on_validation_rows(work.model.parameters)
    assert personal != on_validation_rows(work.model.update), "the test could not tell them apart"


def test_a_round_done_again_gives_the_same_bytes(tmp_path: Path) -> None:
    first = fit(Bench(tmp_path), 1)
    again = fit(Bench(tmp_path), 1)
    assert first.tensors == again.tensors
    assert first.content == again.content


def test_progress_is_told_epoch_by_epoch_and_changes_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    told: list[tuple[str, float]] = []
    work = perform(
        task(pb.TASK_KIND_FIT, 3),
        bench.terms,
        bench.dataset(),
        bench.prior(),
        None,
        bench.policy,
        lambda stage, share: told.append((stage, share)),
    )
    assert told[0] == ("training", 0.0)
    assert told[-1] == ("training", 1.0)
    assert len(told) == 4
    assert work.tensors == fit(bench, 3).tensors


def test_a_site_without_events_answers_without_weight_and_tensors_but_keeps_its_model(
    tmp_path: Path,
) -> None:
    write_site(tmp_path / "north.csv", 120, 2, share=0.0)
    policy = SitePolicy(min_rows=10, min_events=0, min_cell=5)
    terms = terms_of("cox")
    limits = terms.plan.limits.model_copy(update={"min_events": 0})
    terms = terms_of("cox").of_plan(terms.plan.model_copy(update={"limits": limits}), seed=5)
    bench = Bench(tmp_path, terms, policy)
    work = fit(bench, 3)
    assert isinstance(work.content, pb.FitAnswer)
    assert not work.content.HasField("log_omega")
    assert work.tensors == b""
    assert work.model is not None


def test_a_fit_that_diverges_is_a_failure_answer_whose_reason_stays_home(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    prior = bench.prior()
    broken = PriorFile(prior.prior, prior.scaler)
    broken.prior.mu.fill_(3e38)
    work = perform(
        task(pb.TASK_KIND_FIT, 1), bench.terms, bench.dataset(), broken, None, bench.policy, silent
    )
    assert isinstance(work.content, pb.FailureAnswer)
    assert work.content.code == "training"
    assert work.local_reason
    assert work.local_reason not in work.content.reason
    assert work.model is None


def test_a_site_without_a_model_of_its_own_is_scored_on_the_global_one_only(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    request = task(pb.TASK_KIND_EVALUATE, rule=pb.GlobalRule(threshold=0.5))
    work = perform(request, bench.terms, bench.dataset(), bench.prior(), None, bench.policy, silent)
    assert isinstance(work.content, pb.EvaluationAnswer)
    personal = [result_of(s) for s in work.content.scores if s.model == "personal"]
    assert personal
    assert all(isinstance(result, SkippedMetric) for result in personal)


def test_what_a_consensus_round_left_is_not_scored_as_a_model_of_the_sites_own(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    prior = bench.prior()
    mine = SiteParameters(prior.prior.mu, prior.prior.buffers)
    request = task(pb.TASK_KIND_EVALUATE, rule=pb.GlobalRule(threshold=0.5))
    for own, skipped in ((OwnModel(mine, torch.zeros_like(mine.theta)), True), (OwnModel(mine), False)):
        work = perform(request, bench.terms, bench.dataset(), prior, own, bench.policy, silent)
        assert isinstance(work.content, pb.EvaluationAnswer)
        personal = [result_of(s) for s in work.content.scores if s.model == "personal"]
        assert all(isinstance(result, SkippedMetric) for result in personal) is skipped


def test_a_task_without_its_prior_or_of_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(ModelError, match="without a prior"):
        perform(task(pb.TASK_KIND_FIT, 1), bench.terms, bench.dataset(), None, None, bench.policy, silent)
    unknown = pb.Task(study="toy", id="dance", kind=pb.TASK_KIND_UNSPECIFIED)
    with pytest.raises(IncompatibleError):
        perform(unknown, bench.terms, bench.dataset(), bench.prior(), None, bench.policy, silent)


def test_rare_values_are_not_in_the_statistics(tmp_path: Path) -> None:
    lines = ["patient,a,b,smoking,sick,years"]
    for row in range(200):
        a = 7.5 if row in (3, 50) else 0.0
        lines.append(f"p{row},{a},{row % 17},{'yes' if row == 9 else 'no'},{row % 2},1.0")
    (tmp_path / "north.csv").write_text("\n".join(lines) + "\n")
    bench = Bench(tmp_path)
    data = bench.dataset()
    work = perform(task(pb.TASK_KIND_STATISTICS), bench.terms, data, None, None, bench.policy, silent)
    assert isinstance(work.content, pb.StatisticsAnswer)
    statistics = decode_statistics(work.tensors, work.content.rows, 3)
    assert statistics.mean[[0, 2]].tolist() == [0.0, 0.0]
    assert statistics.m2[[0, 2]].tolist() == [0.0, 0.0]
    assert statistics.mean[1] != 0
    assert len(work.notes) == 2
