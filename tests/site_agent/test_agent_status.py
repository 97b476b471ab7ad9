"""How the agent is, as `fedmap-site health` sees it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fedmap_site.loop.notices import Notice
from fedmap_site.loop.status import AgentStatus, trouble_of
from tests.aggregator.commands import agent

CONFIG = '[site]\nname = "a"\nstate = "state"\n[aggregator]\naddress = "localhost:1"\n'


def test_an_agent_is_healthy_only_while_the_aggregator_lets_it_in(tmp_path: Path) -> None:
    status = AgentStatus(tmp_path, lambda: 0)
    assert "does not run" in str(trouble_of(tmp_path))
    status.starting()
    assert "not reached the aggregator yet" in str(trouble_of(tmp_path))
    status.well()
    assert trouble_of(tmp_path) is None
    status.trouble(Notice("the certificate was revoked", "ask the operator"))
    assert trouble_of(tmp_path) == Notice("the certificate was revoked", "ask the operator")
    status.stopped()
    assert "does not run" in str(trouble_of(tmp_path))


def test_an_agent_that_was_killed_is_not_healthy_whatever_it_wrote_last(tmp_path: Path) -> None:
    AgentStatus(tmp_path, lambda: 0).well()
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    record = tmp_path / "agent.json"
    record.write_text(record.read_text().replace(f'"process": {os.getpid()}', f'"process": {gone.pid}'))
    assert str(gone.pid) in record.read_text()
    assert "does not run" in str(trouble_of(tmp_path))


def test_health_says_so_with_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(CONFIG)
    (tmp_path / "state").mkdir()
    done = agent(tmp_path, "health").refused(1)
    assert done.stdout.startswith("not healthy: the agent does not run\n  hint: ")
    AgentStatus(tmp_path / "state", lambda: 0).well()
    done = agent(tmp_path, "health")
    assert (done.returncode, done.stdout) == (0, "healthy\n")
