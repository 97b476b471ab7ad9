"""How a study looks on a terminal: phase, rounds, who has answered, who is late or silent, metrics.

Takes the aggregator's status messages and gives Rich renderables; knows nothing of the network or the
clock. Texts that came from sites are shown as text: no markup, no control characters.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedmap.contract.v1.values import MemberStatus, StudyStatus
from fedmap.metrics import METRICS
from fedmap.process.command_line import PlainTable

PHASES = ("approvals", "statistics", "initialisation", "rounds", "rule", "evaluation", "complete")
FINAL = frozenset({"complete", "aborted"})
_ROUNDS_SHOWN = 8
_REFUSALS_SHOWN = 5
_STYLES = {
    "answered": "green",
    "nothing to weigh": "green",
    "late": "yellow",
    "silent": "red",
    "failed": "red",
    "rejected": "red",
    "left": "dim",
    "excluded": "red",
}
# What an operator should see first where there is no room for all; any other standing is 1.
_URGENCY = {"failed": 0, "rejected": 0, "silent": 0, "late": 0, "answered": 2, "left": 3, "excluded": 3}


def plain(text: str, limit: int = 300) -> str:
    """A text from elsewhere, on one line and without anything a terminal would obey."""
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def overview(studies: Sequence[StudyStatus]) -> RenderableType:
    """One line for each study."""
    if not studies:
        return Text("No studies yet. `fedmap-aggregator study create PLAN` makes one.")
    rows = [(plain(one.study), phase_text(one), _round(one), _answered(one), _now(one)) for one in studies]
    return PlainTable(("study", "phase", "round", "answered", "now"), rows)


def study_view(status: StudyStatus, now_ms: int, most_sites: int | None = None) -> RenderableType:
    """Everything about one study; with `most_sites` only so many of them, those in trouble first."""
    parts: list[RenderableType] = [
        Text.assemble((plain(status.study), "bold"), "  ", plain(status.title)),
        _phases(status),
        _bar(status),
        Text(_facts(status, now_ms)),
    ]
    if _now(status):
        parts.append(Text(_now(status), style="yellow"))
    parts += [Text(), *_members(status, most_sites)]
    if status.history:
        title = f"Closed rounds; {_label(status.metric)} is the median over sites, on validation rows"
        parts += [Text(f"\n{title}", style="dim"), _history(status)]
    if status.scores:
        title = f"Final evaluation: {_label(status.metric)} on test rows"
        parts += [Text(f"\n{title}", style="dim"), _scores(status)]
    if status.refusals:
        parts += [Text(), _refusals(status, now_ms)]
    return Group(*parts)


def status_line(status: StudyStatus) -> str:
    """The state in one line, for a log or a pipe; it changes exactly when something happened."""
    line = (
        f"{plain(status.study)}: {phase_text(status)}, round {_round(status)}, {_answered(status)} answered"
    )
    troubled = [
        f"{plain(m.site)} {standing(m)}"
        for m in status.members
        if standing(m) in {"late", "silent", "failed", "rejected"}
    ]
    return line + (f" ({', '.join(troubled)})" if troubled else "")


def standing(member: MemberStatus) -> str:
    """What a site is doing about the open task, in one or two words."""
    if member.membership != "approved":
        return plain(member.membership)
    if member.answer == "accepted":
        return "answered"
    if member.answer == "abstained":
        return "nothing to weigh"
    if member.answer in {"failed", "rejected"}:
        return member.answer
    if member.answer != "waiting":
        return "ready"
    if member.silent:
        return "silent"
    if member.late:
        return "late"
    return "waiting" if member.stage in {"", "idle"} else "working"


def phase_text(status: StudyStatus) -> str:
    """The phase, with what holds it up."""
    if status.paused:
        return f"{status.phase} (paused)"
    if status.purged_unix_ms:
        return f"{status.phase} (purged)"
    return f"{status.phase} (computing)" if status.computing else status.phase


def span(milliseconds: int) -> str:
    """A length of time for people."""
    seconds = max(0, milliseconds) // 1000
    if seconds < 120:
        return f"{seconds} s"
    if seconds < 7200:
        return f"{seconds // 60} min"
    return f"{seconds // 3600} h" if seconds < 172_800 else f"{seconds // 86_400} days"


def _phases(status: StudyStatus) -> Text:
    if status.phase == "aborted":
        return Text("aborted", style="bold red")
    text = Text()
    reached = PHASES.index(status.phase) if status.phase in PHASES else -1
    for position, phase in enumerate(PHASES):
        style = "bold" if position == reached else "green" if position < reached else "dim"
        text.append(" → " if position else "", style="dim").append(phase, style=style)
    return text.append(" (paused)", style="bold yellow") if status.paused else text


def _bar(status: StudyStatus) -> RenderableType:
    done, of = len(status.history), max(1, status.rounds)
    row = Table.grid(padding=(0, 1))
    row.add_row(ProgressBar(total=of, completed=min(done, of), width=40), f"{done} of {status.rounds} rounds")
    return row


def _facts(status: StudyStatus, now_ms: int) -> str:
    facts = [f"quorum {status.quorum}", f"terms {status.terms_digest[:12]}"]
    if status.task_id:
        facts.insert(0, f"task {status.task_id}: {_answered(status)} answered")
        if status.opened_unix_ms:
            facts.append(f"open for {span(now_ms - status.opened_unix_ms)}")
        if status.deadline_unix_ms:
            left = status.deadline_unix_ms - now_ms
            facts.append(f"deadline in {span(left)}" if left > 0 else f"deadline passed {span(-left)} ago")
    if status.computing:
        facts.append("the centre is computing")
    return " · ".join(facts)


def _members(status: StudyStatus, most: int | None) -> list[RenderableType]:
    table = PlainTable(("site", "region", "standing", "work", "note"))
    shown = list(status.members)
    if most is not None and len(shown) > most:
        shown = sorted(shown, key=lambda m: _URGENCY.get(standing(m), 1))[:most]
    for member in shown:
        word = standing(member)
        if member.membership == "approved" and status.phase in FINAL:
            word = "took part"
        table.add(
            plain(member.site),
            plain(member.region),
            Text(word, style=_STYLES.get(word, "")),
            _work(member, word),
            plain(member.reason),
        )
    hidden = len(status.members) - len(shown)
    return [table, Text(f"and {hidden} more", style="dim")] if hidden else [table]


def _work(member: MemberStatus, word: str) -> str:
    if word in {"working", "late"}:
        return f"{plain(member.stage)} {member.progress:.0%}"
    return f"norm {member.norm:.4g}" if member.norm is not None else ""


def _history(status: StudyStatus) -> PlainTable:
    losses = ("loss", "validation loss", "penalty", "largest weight")
    table = PlainTable(("round", "answered", *losses, "own model", "global model"))
    for closed in status.history[-_ROUNDS_SHOWN:]:
        table.add(
            str(closed.round),
            f"{closed.answered} of {closed.members}"
            + (f"; {plain(', '.join(closed.absent), 60)} by an earlier update" if closed.absent else ""),
            _number(closed.loss),
            _number(closed.validation_loss),
            _number(closed.penalty),
            _number(closed.largest_weight),
            _number(closed.personal_metric),
            _number(closed.global_metric),
        )
    return table


def _scores(status: StudyStatus) -> PlainTable:
    """The plan's metric at each site; all the others are in `study results`."""
    table = PlainTable(("site", "region", "own model", "global model", "note"))
    chosen = [score for score in status.scores if score.metric == status.metric]
    values = {(s.site, s.model): s.value for s in chosen if s.value is not None}
    notes = {s.site: s.note for s in chosen if s.note}
    for site, region in dict.fromkeys((s.site, s.region) for s in chosen):
        own, shared = values.get((site, "personal")), values.get((site, "global"))
        table.add(plain(site), plain(region), _number(own), _number(shared), plain(notes.get(site, ""), 80))
    table.add_section()
    medians = [
        [value for (_, kind), value in values.items() if kind == model] for model in ("personal", "global")
    ]
    cells = [_number(statistics.median(of)) if of else "-" for of in medians]
    table.add("median", "", *cells, "", style="bold")
    return table


def _refusals(status: StudyStatus, now_ms: int) -> PlainTable:
    newest = sorted(status.refusals, key=lambda r: -r.at_unix_ms)[:_REFUSALS_SHOWN]
    rows = [
        (*map(plain, (one.site, one.task_id, one.code, one.reason)), span(now_ms - one.at_unix_ms))
        for one in newest
    ]
    return PlainTable(("refused or failed", "task", "code", "reason", "ago"), rows)


def _answered(status: StudyStatus) -> str:
    members = [m for m in status.members if m.membership == "approved"]
    if status.phase == "approvals":
        return f"{len(members)} of {len(status.members)}"
    if not status.task_id:
        return "-"
    asked = [m for m in members if m.answer]
    return f"{sum(m.answer != 'waiting' for m in asked)} of {len(asked)}"


def _round(status: StudyStatus) -> str:
    return f"{status.round} of {status.rounds}"


def _now(status: StudyStatus) -> str:
    return plain(status.waiting_for) if status.phase not in FINAL else ""


def _label(metric: str) -> str:
    return METRICS[metric].label if metric in METRICS else plain(metric) or "metric"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
