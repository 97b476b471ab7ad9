"""docs/operator.md, command by command, against a real aggregator over mutual TLS; sites answer by script.

The commands go through the same command line as the program, in this process: loading Python for each of them
would take longer than all the rest. Where the page ends a study or shuts a site out and goes on with it, the
story below takes another study or invites the site again, as the page says one would.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fedmap_aggregator.cli.main
from fedmap.process.command_line import answer
from fedmap.study.terms import StudyTerms
from fedmap_aggregator.cli.options import Here
from fedmap_aggregator.identity.initialise import load_authority
from fedmap_aggregator.wiring import Aggregator
from tests.aggregator import small_study as made
from tests.aggregator.centre import scripted
from tests.aggregator.commands import free_port
from tests.aggregator.running import Client, Clock, Running
from tests.services.guide_pages import blocks_of, form, words_of

PAGE, PROGRAM = "operator.md", "fedmap-aggregator "
STUDY, ANOTHER, ROUNDS, SEED = "interval-iron", "another", 2, 7
SITES = ("st-elsewhere", "county")
NOTHING: Mapping[str, str] = {}
PLAN = made.BINARY.replace('"small-binary"', f'"{STUDY}"')
ELSEWHERE = {
    "pip install": "tests/deploy/plain_installation.py, as written (`make install-test`)",
    "fedmap-aggregator serve": "runs until it is stopped: this test serves in its own process",
    "fedmap-aggregator round": "tests/services/test_rounds_by_file.py, as written, and the table above it",
    "fedmap-aggregator restore": "tests/services/test_operator_upkeep.py runs it",
    "fedmap-aggregator purge": "tests/services/test_operator_upkeep.py runs it",
    "fedmap-aggregator deletion": "tests/services/test_operator_upkeep.py runs it",
    "fedmap-site purge": "tests/services/test_operator_upkeep.py runs it",
    "fedmap-site deletion": "tests/services/test_operator_upkeep.py runs it",
    "cd deploy": "tests/deploy/test_monitoring.py, as written",
    "promtool": "tests/deploy/test_monitoring.py, as written",
    "prometheus": "tests/deploy/test_monitoring.py, as written",
    "kubectl create": "tests/deploy/test_kubernetes_guide.py: what it would make",
    "kubectl apply": "tests/deploy/test_kubernetes_guide.py: what it would send",
    "kubectl rollout": "needs a cluster; tests/deploy/test_kubernetes_guide.py: that there is such a set",
    "kubectl exec": "needs a cluster; tests/deploy/test_kubernetes_guide.py: that there is such a set",
}
SILENT = ("pip install", "fedmap-aggregator serve")
# Blocks whose printed lines are compared with the page, by their first command that is run here.
COMPARED = ("init", "doctor", "check-config", "operator", "invite", "study create", "bundle", "audit")


class Centre:
    """The operator's terminal."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.printed: dict[str, str] = {}  # by command

    def run(self, command: str, answers: str = "", instead: Mapping[str, str] = NOTHING) -> None:
        """A command of the page, with what the story changes in it."""
        changed = command
        for old, new in {"fedmap.example.org:8443": f"localhost:{self._port}", **instead}.items():
            changed = changed.replace(old, new)
        done = CliRunner().invoke(fedmap_aggregator.cli.main.app, words_of(changed)[1:], input=answers)
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
        self.printed[command] = str(done.output)


@contextmanager
def serving() -> Iterator[Running]:
    """What `fedmap-aggregator serve` does with the configuration in this folder."""
    config = Here(config=Path("aggregator.toml")).settings()
    authority = load_authority(config)
    assert authority is not None
    with Aggregator(config) as served:
        running = Running(config, served, authority, Clock())
        try:
            yield running
        finally:
            running.close()


def approve(digest: str, sites: list[Client]) -> None:
    for site in sites:
        site.approve(STUDY, digest)


def work_to_the_end(served: Running, sites: list[Client]) -> None:
    """Every site answers whatever it is asked, until the study is complete."""
    small = made.small(PLAN)
    study = made.Small(StudyTerms(small.terms.plan, ROUNDS, SEED))
    for _ in range(100):
        for site in sites:
            task = site.next_task(wait_seconds=1)
            if task is not None:
                site.submit(*scripted(study, task, site.name))
        if served.status(STUDY).phase == "complete":
            return
    raise AssertionError(served.status(STUDY))


def is_elsewhere(command: str) -> bool:
    return any(command.startswith(start) for start in ELSEWHERE)


def here(*starts: str) -> list[str]:
    """The page's commands that are run here and begin like one of these, in order."""
    found = [command for block in blocks_of(PAGE) for command in block.commands if not is_elsewhere(command)]
    return [c for c in dict.fromkeys(found) if c.removeprefix(PROGRAM).startswith(starts or ("",))]


def test_the_operators_commands_run_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(answer, "width", 300)  # long paths fold where tests run side by side
    for name in ("FEDMAP_AGGREGATOR_CONFIG", "FEDMAP_OPERATOR_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    Path("plan.toml").write_text(PLAN)
    centre = Centre(free_port())
    for command in here("init", "doctor"):
        centre.run(command)
    with Path("aggregator.toml").open("a") as config:
        config.write(f'\n[downloads]\nlisten = "127.0.0.1:{free_port()}"\n')
    with serving() as served:
        for command in here("check-config", "operator add", "operator list", "operator revoke", "invite"):
            centre.run(command)
        for command in here("sites", "revoke"):
            centre.run(command, answers="y\n")
        sites = [served.site(name) for name in SITES]  # one of them by a new invitation
        (create,) = here("study create")
        centre.run(create, instead={"--rounds 20": f"--rounds {ROUNDS}"})
        approve(re.findall(r"[0-9a-f]{64}", centre.printed[create])[0], sites)
        served.study(*sites, name=ANOTHER, start=False)
        for command in [*here("study start", "study pause", "study resume"), f"{PROGRAM}status"]:
            centre.run(command)
        for command in here("study abort"):
            centre.run(command, answers="y\n", instead={STUDY: ANOTHER})
        work_to_the_end(served, sites)
        for command in here():
            if command not in centre.printed:
                centre.run(command)
    assert set(centre.printed) >= set(here())
    for block in blocks_of(PAGE):
        run = [command for command in block.commands if not command.startswith(SILENT)]
        if (
            block.prints
            and not any(map(is_elsewhere, run))
            and run[0].removeprefix(PROGRAM).startswith(COMPARED)
        ):
            appears(block.prints, "".join(centre.printed[command] for command in run))


def appears(wanted: tuple[str, ...], printed: str) -> None:
    """Every line of the page has its like among those printed, in order; the page may leave lines out."""
    got = iter([form(line) for line in printed.splitlines()])
    for line in map(form, wanted):
        if line and line != "…":
            assert line in got, f"the page says\n  {line}\nprinted was\n{printed}"


def test_every_command_of_the_page_is_run_here_or_says_where() -> None:
    commands = [command for block in blocks_of(PAGE) for command in block.commands]
    assert all(command.startswith(PROGRAM) or is_elsewhere(command) for command in commands), commands
    assert all(any(command.startswith(start) for command in commands) for start in ELSEWHERE)
