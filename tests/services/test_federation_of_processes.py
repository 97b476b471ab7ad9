"""One aggregator and its agents as real processes over mutual TLS, compared with the simulator."""

from __future__ import annotations

from pathlib import Path

from fedmap.metrics import Metric
from fedmap_lab.local.federation import LocalFederation
from tests.lab.conftest import BINARY_PLAN, SURVIVAL_PLAN
from tests.services.forked_federation import ForkedFederation
from tests.services.outcome import assert_same_as_simulated
from tests.services.studies import SmallStudy, run_through, small_study


def assert_processes_give_what_the_simulator_gives(federation: LocalFederation, study: SmallStudy) -> None:
    """Models bit for bit, scores to the last digit, and every process ends as asked."""
    simulated = study.simulated()
    with federation:
        status = run_through(federation, study)
        assert status.phase == "complete", status
        assert_same_as_simulated(federation, study, status, simulated)
        assert [entry.round for entry in status.history] == list(range(1, study.rounds + 1))
        scores = {(s.site, s.model, s.metric): s.value for s in status.scores if s.value is not None}
        expected = {
            (s.site, s.model, s.result.name): s.result.value
            for s in simulated.scores
            if isinstance(s.result, Metric)
        }
        assert scores
        assert all(scores[key] == expected[key] for key in scores if key[1] != "fine_tuned")
        assert {model for _, model, _ in scores} == {"personal", "global", "fine_tuned"}
        names = [*(site.name for site in study.sites), "aggregator"]
        assert {name: federation.stop(name) for name in names} == dict.fromkeys(names, 0)


def test_a_federation_of_processes_gives_the_simulators_models_bit_for_bit(tmp_path: Path) -> None:
    federation = ForkedFederation(tmp_path / "federation")
    assert_processes_give_what_the_simulator_gives(federation, small_study(tmp_path, BINARY_PLAN))
    assert list((tmp_path / "federation" / "aggregator" / "state").glob("*.db"))


def test_a_survival_study_kept_in_postgresql_gives_the_simulators_models_bit_for_bit(
    tmp_path: Path, postgres_url: str
) -> None:
    secret = tmp_path / "database.url"
    secret.write_text(postgres_url + "\n")
    database = f'[database]\nurl_file = "{secret}"\n'
    federation = ForkedFederation(tmp_path / "federation", aggregator_toml=database)
    plan = SURVIVAL_PLAN.replace("epochs = 3", "epochs = 3\nconsensus_share = 0.67")  # rounds of each kind
    study = small_study(tmp_path, plan, {"a": 160, "b": 120}, rounds=3)
    assert_processes_give_what_the_simulator_gives(federation, study)
    assert not list((tmp_path / "federation" / "aggregator" / "state").glob("*.db"))
