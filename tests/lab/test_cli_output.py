"""The progress bar that every command of the lab shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedmap_lab.cli import output as cli_output


@pytest.mark.parametrize("seconds", [10, 40, 600])
def test_time_left_is_known_after_the_first_step_however_long_one_takes(
    monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    monkeypatch.setattr(cli_output, "say", Console(file=io.StringIO(), force_terminal=True))
    now = 0.0
    progress = cli_output.bar()
    progress.live.auto_refresh = False
    progress.get_time = lambda: now
    task = progress.add_task("comparing", total=None)
    for done in range(4):
        now = float(done * seconds)
        cli_output.show_done(progress, task, done, 20)
        left = progress.tasks[0].time_remaining
        assert left == (None if done == 0 else (20 - done) * seconds)


def test_what_was_done_before_does_not_make_the_rest_look_quick() -> None:
    now = 0.0
    progress = cli_output.bar()
    progress.get_time = lambda: now
    task = progress.add_task("comparing", total=None)
    cli_output.show_done(progress, task, 15, 20)
    now = 40.0
    cli_output.show_done(progress, task, 16, 20)
    assert progress.tasks[0].time_remaining == 160
