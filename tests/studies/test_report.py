"""The summary of a comparison: its numbers, and that its sentences claim no more than they show."""

import io
import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from rich.console import Console

from grant_fast.cli.messages import show_results
from grant_fast.errors import InputError
from grant_fast.studies import curves
from grant_fast.studies.curves import draw_curves
from grant_fast.studies.markdown import markdown
from grant_fast.studies.report import (
    ArmSummary,
    Spread,
    chance,
    rows,
    summarize,
    terminal_table,
    unequal,
    verdict,
    write_report,
)
from grant_fast.training import config
from grant_fast.training.records import Run, is_finished, read_run, write_history, write_result
from tests.studies.runs import make_run, make_runs

ARMS = ["full", "full-equal-budget", "random", "grant-b"]
ALL_ARMS = [config.EQUAL_BUDGET, *config.ARMS, *config.ON_REQUEST]
HOW = ("grant-fast compare x.csv", config.RunConfig(source="x.csv"))
PUBLISHED = sorted((Path(__file__).parents[2] / "benchmarks" / "results").glob("compare-*.json"))


def sentences(metrics, higher_is_better=True):
    runs = make_runs(metrics, higher_is_better=higher_is_better)
    result = runs[0].result
    return verdict(summarize(runs), result.metric, higher_is_better)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.5], "0.500"),
        ([0.02, 0.03], "0.0250 ± 0.0071"),
        ([1200.0, 1300.0], "1,250 ± 71"),
        ([0.0, 0.0], "0.00 ± 0.00"),
        ([2e-9, 3e-9], "2.50e-09 ± 7.07e-10"),
        ([0.00025], "0.000250"),
        ([0.02240, 0.02243], "0.0224 ± 0.00002"),
        ([0.5, 0.500001], "0.500 ± 0.0000007"),
        ([0.5, 0.5000000001], "0.500 ± 7e-11"),
        ([1e6, 1e6 + 0.3], "1,000,000 ± 0.2"),
        ([2.5e36], "2.50e+36"),
        ([0.5, None], "–"),
        ([math.nan, math.nan], "–"),
    ],
)
def test_a_spread_reads_to_the_same_place_in_both_numbers(values, text):
    assert str(Spread.of(values)) == text


def test_a_summary_holds_mean_and_sample_deviation_and_the_time_saved():
    full, b = summarize(make_runs({"full": [0.6, 0.8], "grant-b": [0.5, 0.5]}))
    assert full.test_metric.mean == pytest.approx(0.7)
    assert full.test_metric.std == pytest.approx(math.sqrt(0.02))
    assert (full.saving, b.saving) == (None, 0.5)
    assert b.loss.mean == 0.5  # of the last epoch


def test_a_clear_winner_is_called_one():
    said = sentences(
        {
            "full": [0.70, 0.71, 0.70],
            "full-equal-budget": [0.70, 0.69, 0.70],
            "random": [0.70, 0.69, 0.70],
            "grant-b": [0.80, 0.81, 0.82],
        }
    )
    lead = "grant-b has the best mean test roc_auc, 0.810 ± 0.010"
    assert said[0] == f"{lead}, clearly better than each other arm (Welch's t-test, p < 0.05)."
    assert said[1] == (
        "grant-b: better than random, better than full-equal-budget, better than full, "
        "50% less training time than full."
    )


@pytest.mark.parametrize(
    ("higher", "constant", "who"),
    [
        (True, 0.5, "full and random"),  # half of the area, too, is what a guess has
        (False, 0.5, "grant-b and random"),
        (True, 0.1, None),
        (True, None, None),
    ],
)
def test_arms_that_are_no_better_than_a_guess_are_named(tmp_path, higher, constant, who):
    metrics = {"full": [0.4, 0.5], "grant-b": [0.5, 0.6], "random": [0.5, 0.5], "grant-s": [None]}
    runs = [
        replace(run, result=replace(run.result, constant_metric=constant))
        for run in make_runs(metrics, higher_is_better=higher)
    ]
    said = write_report(tmp_path, runs, summarize(runs), "title", *HOW)
    named = [sentence for sentence in said if sentence.startswith("No better")]
    guess = f"the same answer everywhere (test {'roc_auc' if higher else 'mae'} 0.5)"
    says = f"No better than {guess}: {who}. How such networks differ says nothing."
    assert named == ([says] if who else [])
    assert runs[0].result.beats_constant(None)  # of which nothing is known


@pytest.mark.parametrize(
    ("t", "degrees"), [(12.7062, 1), (4.30265, 2), (2.77645, 4), (2.22814, 10), (1.96115, 1998)]
)
def test_chance_is_what_tables_of_students_t_say(t, degrees):
    seeds = degrees // 2 + 1
    if degrees == 1:  # one spread is nothing beside the other
        one, other, error = Spread(0, 1e-9, 9), Spread(0, 1, 2), math.sqrt(1 / 2)
    else:
        one, other, error = Spread(0, 1, seeds), Spread(0, 1, seeds), math.sqrt(2 / seeds)
    assert chance(one, replace(other, mean=t * error)) == pytest.approx(0.05, abs=2e-5)


def test_chance_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    draw = random.Random(0)
    for _ in range(50):
        one, other = (
            Spread(draw.gauss(0, 2), draw.random(), draw.randint(2, 20)) for _ in range(2)
        )
        one = replace(one, mean=one.mean * draw.choice([1, 1, 100]))
        flat = (one.mean, one.std, one.seeds, other.mean, other.std, other.seeds)
        expected = stats.ttest_ind_from_stats(*flat, equal_var=False).pvalue
        assert chance(one, other) == pytest.approx(expected, rel=1e-4)


def test_without_any_spread_every_gap_is_clear():
    assert chance(Spread(1, 0, 3), Spread(1, 0, 3)) == 1
    assert chance(Spread(1, 0, 3), Spread(2, 0, 3)) == 0
    assert 0 <= chance(Spread(0, 1e-9, 3), Spread(1, 1e-9, 3)) < 1e-12


def test_what_chance_may_give_is_no_clear_difference():
    # 0.20 above full, three standard errors of √(0.1²/3 + 0.06²/3) = 0.067: p is 0.054
    said = sentences(
        {"full": [0.6, 0.7, 0.8], "random": [0.6, 0.7, 0.8], "grant-b": [0.84, 0.90, 0.96]}
    )
    assert said[0].startswith("grant-b has the best")
    assert "no clear difference from full and random" in said[0]
    assert said[1].startswith(
        "grant-b: no clear difference from random, no clear difference from full"
    )


def test_losing_is_said_as_plainly_where_lower_is_better():
    metrics = {"random": [1.0, 1.1, 1.0], "grant-b": [2.0, 2.1, 2.0]}
    said = sentences(metrics, higher_is_better=False)
    assert said[0].startswith("random has the best mean test mae")
    assert said[1] == "grant-b: worse than random."


def test_controls_that_saw_other_numbers_of_graphs_are_named():
    seen = {"full": 300, "full-equal-budget": 81, "random": 81, "grant-b": 52, "grant-s": 80}
    runs = [make_run(arm, 0, 0.5) for arm in seen]
    runs = [replace(r, result=replace(r.result, graphs_seen=seen[r.result.arm])) for r in runs]
    (said,) = unequal(summarize(runs))
    assert said.startswith(
        "grant-b saw 52 graphs, random 81, full-equal-budget 81: the numbers differ"
    )
    assert not unequal(summarize(make_runs({arm: [0.5] for arm in ARMS})))
    drawn, b = (make_run(arm, 0, 0.5) for arm in ("random", "grant-b"))  # which saw 200 each
    for more, are_named in ((20, False), (22, True)):  # a tenth of the arm's count, or above it
        control = replace(drawn, result=replace(drawn.result, graphs_seen=200 + more))
        assert bool(unequal(summarize([control, b]))) == are_named
    other = replace(runs[0], result=replace(runs[0].result, arm="infobatch", graphs_seen=200))
    said = unequal(summarize([*runs, other]))
    assert said[1] == "infobatch saw 200 graphs: its rule ends by training on all of them."


def test_few_seeds_and_no_metric_claim_nothing():
    assert (
        "with one seed, that may be mere chance" in sentences({"full": [0.7], "grant-b": [0.9]})[0]
    )
    (said,) = sentences({"full": [0.70, 0.71], "grant-b": [0.90, 0.91]})
    assert "with two seeds, that may be mere chance" in said
    assert sentences({"full": [None], "grant-b": [None]}) == [
        "roc_auc could not be measured on the test split."
    ]


@pytest.mark.parametrize(
    "metrics", [{"full": [0.5, 0.6]}, {a: [0.5] for a in ALL_ARMS}, {"full": [None]}]
)
def test_reports_and_pictures_are_written_whatever_is_missing(tmp_path, metrics):
    runs = make_runs(metrics)
    write_report(tmp_path, runs, summarize(runs), "title", *HOW)
    draw_curves(tmp_path / "curves.png", runs, "title")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "results.json").read_text()
    found = json.loads(text)
    assert len(found["runs"]) == len(runs) and "NaN" not in text
    assert found["command"] == "grant-fast compare x.csv" and found["config"]["source"] == "x.csv"
    assert found["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    page = (tmp_path / "results.md").read_text()
    assert page.startswith("# title\n\n    grant-fast compare x.csv\n\n| arm |")
    assert terminal_table(summarize(runs), "mae", False, "title").row_count == len(metrics)


@pytest.mark.parametrize(("higher", "best"), [(True, "random"), (False, "grant-b")])
def test_the_best_arm_of_a_table_is_bold(higher, best):
    metrics = {"full": [None], "random": [0.9], "grant-b": [0.5], "grant-s": [0.7]}
    table = terminal_table(summarize(make_runs(metrics)), "roc_auc", higher, "title")
    assert [arm for arm, row in zip(metrics, table.rows, strict=True) if row.style] == [best]


def test_an_arm_that_takes_longer_than_full_is_said_to(tmp_path):
    runs = [make_run("full", seed, 0.5 + seed / 10, 10.0) for seed in range(3)]
    for seconds, says in ((15.0, "50% more training time"), (10.0, "0% less"), (4.0, "60% less")):
        slow = [make_run("grant-b", seed, 0.5 + seed / 10, seconds) for seed in range(3)]
        assert says in " ".join(verdict(summarize([*runs, *slow]), "roc_auc", True))
    few = [make_run("random", seed, 0.5, 5.0) for seed in range(3)]
    few = [replace(run, result=replace(run.result, graphs_seen=100)) for run in few]
    said = write_report(tmp_path, [*slow, *few], summarize([*slow, *few]), "title", *HOW)
    assert any("grant-b saw 200 graphs, random 100: the numbers differ" in line for line in said)


@pytest.mark.parametrize("arms", [("full", "random"), ("random", "grant-b")])
def test_without_plain_training_no_time_is_known_to_be_saved(tmp_path, arms):
    runs = make_runs({arm: [0.5, 0.6] for arm in arms})
    said = write_report(tmp_path, runs, summarize(runs), "title", *HOW)
    assert any("add the arm full" in line for line in said) == ("full" not in arms)


def test_a_table_in_a_narrow_terminal_breaks_lines_and_drops_no_digit():
    summaries = summarize(make_runs({"full-equal-budget": [0.0821, 0.0911], "random": [0.1, 0.2]}))
    for width in (60, 80, 100):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(terminal_table(summaries, "mae", False, "title"))
        text = console.export_text()
        assert "…" not in text
        words = text.split()
        for arm in summaries:
            assert {arm.arm, *str(arm.test_metric).split(), *str(arm.loss).split()} <= set(words)


def test_a_table_wider_than_the_terminal_keeps_its_figures(tmp_path, monkeypatch, capsys):
    runs = make_runs({"full-equal-budget": [0.0821, 0.0911], "random": [0.1, 0.2]})
    table = terminal_table(summarize(runs), "mae", False, "a title")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    show_results(tmp_path, table, ["A sentence."])
    shown = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert "…" not in shown and "full-equal-budget" in shown
    for arm in summarize(runs):
        assert set(str(arm.test_metric).split()) <= set(shown.split())


def test_a_title_is_text_whatever_it_holds(tmp_path):
    runs, title = make_runs({"full": [0.5, 0.6]}), "a $\\frac [bold]b[/bold] $c デ.csv"
    draw_curves(tmp_path / "curves.png", runs, title)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(terminal_table(summarize(runs), "mae", False, title))
    assert title in console.export_text()


def test_what_overflowed_is_not_reported(tmp_path):
    tame, wild = make_runs({"full": [0.8], "random": [math.inf]})
    wild = Run(wild.result, tuple(replace(r, valid_loss=math.inf) for r in wild.history))
    summaries = summarize([tame, wild])
    assert write_report(tmp_path, [tame, wild], summaries, "title", *HOW)
    draw_curves(tmp_path / "curves.png", [tame, wild], "title")
    found = json.loads((tmp_path / "results.json").read_text())["arms"][1]
    assert found["test_metric"]["mean"] is None and found["loss"]["mean"] is None


def test_a_seed_that_spends_its_budget_an_epoch_sooner_stays_where_it_is():
    """So that an arm's dot is the mean of what its seeds ended with, as in the table."""
    axis, long, short = Mock(), *(run.history for run in make_runs({"grant-b": [0.5, 0.6]}))
    curves._draw_arm(axis, "grant-b", [long, short[:1]], "graphs_seen", "valid_loss")
    dot = axis.plot.call_args.args
    assert dot[0] == [(long[-1].graphs_seen + short[0].graphs_seen) / 2]
    assert dot[1] == [(long[-1].valid_loss + short[0].valid_loss) / 2]


def test_a_band_is_as_wide_as_the_seeds_differ():
    """By the sample's standard deviation, as in tables."""
    axis, one = Mock(), make_run("full", 0, 0.5).history
    other = [replace(record, valid_loss=record.valid_loss + 1) for record in one]
    curves._draw_arm(axis, "full", [one, other], "graphs_seen", "valid_loss")
    _, low, high, *_ = axis.fill_between.call_args.args
    assert (high - low) / 2 == pytest.approx(math.sqrt(0.5))


def test_a_folder_without_a_whole_run_is_named(tmp_path):
    with pytest.raises(InputError, match="not a finished run"):
        read_run(tmp_path)
    for text in ('{"arm": "full"}', "[]", "[1, 2]", "3", "null", '"arm"'):
        (tmp_path / "result.json").write_text(text)
        with pytest.raises(InputError, match="not a finished run"):
            read_run(tmp_path)
    run = make_run("full", 0, 0.5)
    write_result(tmp_path, run.result, {}, {})
    (tmp_path / "metrics.csv").write_text("epoch,share\n1,0.5\n")
    with pytest.raises(InputError, match="not a finished run"):
        read_run(tmp_path)
    assert not is_finished(tmp_path)
    write_history(tmp_path, run.history)
    assert repr(read_run(tmp_path)) == repr(run) and is_finished(tmp_path)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_a_page_kept_here_shows_the_numbers_kept_beside_it(path):
    kept = json.loads(path.read_text(encoding="utf-8"))
    summaries = [
        ArmSummary(**{k: Spread(**v) if isinstance(v, dict) else v for k, v in arm.items()})
        for arm in kept["arms"]
    ]
    page = path.with_suffix(".md").read_text(encoding="utf-8")
    assert markdown(*rows(summaries, kept["metric"])) in page
    assert all(sentence in page for sentence in kept["verdict"])
    said = verdict(summaries, kept["metric"], kept["higher_is_better"]) + unequal(summaries)
    assert kept["verdict"] == said


def test_an_arm_that_diverges_leaves_the_others_readable(tmp_path, figures):
    tame, wild = make_runs({"full": [0.8], "grant-s": [0.5]})
    history = tuple(replace(r, valid_loss=20 * r.valid_loss) for r in wild.history)
    draw_curves(tmp_path / "curves.png", [tame, Run(wild.result, history)], "title")
    draw_curves(tmp_path / "curves.png", [tame, wild], "title")
    scales = [[axis.get_yscale() for axis in figure.axes[::2]] for figure in figures]
    assert scales == [["log", "linear"], ["linear", "linear"]]
    low, high = figures[0].axes[0].get_ylim()
    losses = [record.valid_loss for record in (*tame.history, *history)]
    assert low < min(losses) < max(losses) < 1.2 * high
    assert all("e" not in label.get_text() for label in figures[0].axes[0].get_yticklabels())


def test_a_constant_guess_is_named_where_it_can_be_seen(tmp_path, figures):
    (run,) = make_runs({"full": [0.8]})
    for loss in (run.history[0].valid_loss, 1e6):
        guessed = Run(replace(run.result, constant_loss=loss), run.history)
        draw_curves(tmp_path / "curves.png", [guessed], "title")
    named = [[t.get_text() for t in figure.legends[0].get_texts()] for figure in figures]
    assert named == [["full", "constant guess"], ["full"]]


def test_short_times_are_seconds_and_many_graphs_thousands(tmp_path, figures):
    runs = make_runs({"full": [0.8]})
    history = [replace(r, train_seconds=r.epoch / 20, graphs_seen=10**5) for r in runs[0].history]
    draw_curves(tmp_path / "curves.png", [Run(runs[0].result, tuple(history))], "title")
    seconds, graphs = (
        [tick.get_text() for tick in axis.get_xticklabels()] for axis in figures[0].axes[2:]
    )
    assert not any("m" in text for text in seconds) and max(map(float, seconds)) >= 0.1
    assert any("k" in text for text in graphs)


def test_what_the_last_weights_gave_is_in_columns_of_its_own():
    runs = [
        replace(
            each,
            result=replace(each.result, test_metric_last=0.25),
            history=(each.history[0], replace(each.history[1], valid_loss=9.0)),
        )
        for each in make_runs({"full": [0.5, 0.6]})
    ]
    (arm,) = summarize(runs)
    assert (arm.test_metric_last.mean, arm.loss.mean) == (0.25, 9.0)


def test_an_arm_that_was_not_measured_is_compared_with_none():
    values = [0.5, 0.6, 0.7]
    said = sentences({"full": values, "random": values, "grant-b": [None] * 3})
    assert not any(sentence.startswith("grant-b:") for sentence in said)


@pytest.mark.parametrize("higher", [True, False])
def test_numbers_say_which_way_is_better(tmp_path, higher):
    runs = make_runs({"full": [0.5, 0.6]}, higher_is_better=higher)
    write_report(tmp_path, runs, summarize(runs), "a title", *HOW)
    assert json.loads((tmp_path / "results.json").read_text())["higher_is_better"] == higher
