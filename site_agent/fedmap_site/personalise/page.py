"""The report of a fine-tuned model as one HTML file: no script, nothing from anywhere else, good on paper.

The verdict first, then the figures behind it, the calibration pictures, the data, and how it was made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from fedmap.bundles.card.picture import calibration_svg
from fedmap.metrics import metric_label
from fedmap.scoring.figures import CalibrationBin
from fedmap_site.personalise.comparison import Compared, Figure, number, signed, target_of
from fedmap_site.personalise.fine_tuning import Personalised
from fedmap_site.personalise.report import counts, notes, shown
from fedmap_site.predict.shift_report import advice

_STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --soft: #595959; --line: #d5d5d5; --paper: #fff; --tint: #f4f6f8;
  --good: #1b6e3c; --bad: #a32020; --even: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --soft: #b0b0b0; --line: #444; --paper: #181a1c;
  --tint: #23272b; --good: #6fcf97; --bad: #ff8a80; --even: #f2c14e; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --tint: #fff;
  --good: #1b6e3c; --bad: #a32020; --even: #8a5a00; } section { break-inside: avoid; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, Helvetica, Arial, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; } h2 { font-size: 1.15rem; margin: 2.25rem 0 .5rem; }
p { margin: .5rem 0; } .soft { color: var(--soft); } .small { font-size: .875rem; }
.verdict { border-left: .4rem solid var(--even); background: var(--tint); padding: .8rem 1rem; margin: 1.25rem 0; }
.verdict strong { display: block; font-size: 1.15rem; }
.helped { border-color: var(--good); } .worse { border-color: var(--bad); }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .35rem .75rem .35rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number { font-variant-numeric: tabular-nums; } .whole { white-space: nowrap; } tr.main td { font-weight: 600; } tr.main .soft { font-weight: 400; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(17rem, 1fr)); gap: 1rem; }
figure { margin: 0; background: #fff; border: 1px solid var(--line); } figure svg { display: block; width: 100%; height: auto; }
code { font-family: ui-monospace, Consolas, monospace; font-size: .9em; overflow-wrap: anywhere; }
"""  # noqa: E501


def report_page(done: Personalised, folder: str, made_unix_ms: int, software_version: str) -> bytes:
    """The page; `folder` is where the model will be, for the command to use it."""
    made = datetime.fromtimestamp(made_unix_ms / 1000, UTC).strftime("%d %B %Y, %H:%M UTC")
    title = f"Fine-tuning report: {done.shared.title}"
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">From the bundle <code>{escape(done.shared.name)}</code>. Made on {made}.</p>',
        *_verdict(done, folder),
        *_figures(done),
        *_curves(done),
        *_shift(done),
        *_data(done),
        *_making(done, software_version),
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
    )
    return "\n".join([head, *body, "</body></html>", ""]).encode()


def _verdict(done: Personalised, folder: str) -> Iterable[str]:
    outcome = done.comparison.outcome
    use = f"--model {folder}" if outcome == "helped" else f"--bundle {done.shared.name}"
    command = f"fedmap-site predict {use} --data FILE --out FILE"
    reason = done.comparison.reason
    yield f'<div class="verdict {outcome}"><strong>{done.comparison.lead}</strong>'
    yield f"<p>{escape(reason[:1].upper() + reason[1:])}. {done.comparison.advice}</p>"
    yield f"<p>Next: <code>{escape(command)}</code></p></div>"
    if done.shared.intended_use:
        yield f'<p class="small soft">Intended use: {escape(done.shared.intended_use)}</p>'


def _figures(done: Personalised) -> Iterable[str]:
    rows = shown(len(done.data.test), done.shared.plan)
    yield "<section><h2>Before and after, on held-out rows</h2>"
    yield f"<p>Neither model was trained on these {rows} rows. “Before” is the shared model, “after” the "
    yield "personal one.</p>"
    yield '<div class="scroll"><table><thead><tr><th>Measure</th><th>Before</th><th>After</th>'
    yield "<th>Difference</th></tr></thead><tbody>"
    main = done.shared.plan.task.metric
    for one in sorted(done.comparison.metrics, key=lambda compared: compared.metric != main):
        yield _figure_row(one, one.metric == main)
    yield "</tbody></table></div>"
    yield (
        '<p class="small soft">In brackets: 95 % intervals. The first line is the measure that the study is '
        "judged by.</p></section>"
    )


def _figure_row(one: Compared, main: bool) -> str:
    name = f'{escape(metric_label(one.metric))}<br><span class="small soft">{target_of(one.metric)}</span>'
    difference = _unbroken(signed(one.difference).replace("95 % interval ", "")) if one.difference else ""
    note = f'<br><span class="small soft">{escape(one.note)}</span>' if one.note else ""
    cells = (
        f"<td>{name}{note}</td>",
        *(_cell(_figure(f)) for f in (one.before, one.after)),
        _cell(difference),
    )
    kind = ' class="main"' if main else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"


def _figure(figure: Figure | None) -> str:
    if figure is None:
        return "not measured"
    if figure.low is None or figure.high is None:
        return number(figure.value)
    return _unbroken(f"{number(figure.value)} ({number(figure.low)} to {number(figure.high)})")


def _unbroken(text: str) -> str:
    """A narrow screen may put the interval below its value, and breaks neither."""
    value, bracket, interval = text.partition(" (")
    return f'{escape(value)} <span class="whole">({escape(interval)}</span>' if bracket else escape(value)


def _cell(text: str) -> str:
    return f'<td class="number">{text}</td>'


def _curves(done: Personalised) -> Iterable[str]:
    yield "<section><h2>Calibration</h2>"
    if done.shared.plan.task.kind == "multiclass":
        yield "<p>No picture: it is drawn for tasks with two outcomes and for survival.</p></section>"
        return
    yield (
        "<p>Of people with a predicted risk of 20 %, about 20 % should have the outcome: points on the "
        "diagonal. Points above it: risks are predicted too low. Few rows were joined into one point.</p>"
    )
    yield '<div class="curves">'
    yield _curve(done.comparison.before_curve, "Before: the shared model")
    yield _curve(done.comparison.after_curve, "After: the personal model")
    yield "</div></section>"


def _curve(bins: Sequence[CalibrationBin], title: str) -> str:
    return f"<figure>{calibration_svg(bins, title)}</figure>"


def _shift(done: Personalised) -> Iterable[str]:
    yield "<section><h2>This site against the federation</h2>"
    if done.shift is None:
        yield "<p>Not compared: the bundle carries no statistics for it.</p></section>"
        return
    yield "".join(f"<p>{escape(sentence)}</p>" for sentence in done.shift.sentences)
    if done.shift.verdict == "fine_tune":
        yield "<p>Whether fine-tuning was the answer to that is said at the top.</p></section>"
    else:
        yield f"<p>{escape(advice(done.shift, done.shared))}</p></section>"


def _data(done: Personalised) -> Iterable[str]:
    plan = done.shared.plan
    yield "<section><h2>Data</h2><table><tbody>"
    left_out = [(f"left out: {e.reason}", shown(e.rows, plan)) for e in done.data.exclusions]
    for name, value in (*counts(plan, done.data), *left_out):
        yield f"<tr><td>{escape(name)}</td>{_cell(escape(value))}</tr>"
    yield "</tbody></table><ul>"
    yield "".join(f"<li>{escape(note)}</li>" for note in notes(done))
    yield "</ul></section>"


def _making(done: Personalised, software_version: str) -> Iterable[str]:
    fit = done.fit
    yield "<section><h2>How it was made</h2>"
    yield (
        f"<p>Started at the shared model and fine-tuned for {fit.epochs} epochs under the study's prior; the "
        f"best on validation rows was epoch {fit.best_epoch}. Nothing was sent anywhere. Seed {done.seed}, "
        f"software version {escape(software_version)}.</p>"
    )
    digest = escape(done.shared.bundle_sha256)
    yield f'<p class="small soft">SHA-256 of the bundle: <code>{digest}</code></p></section>'
