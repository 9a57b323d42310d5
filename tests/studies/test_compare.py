"""Comparisons: equal budgets, fair order, and finished work kept."""

import sys
from dataclasses import replace

import pytest

from grant_fast.errors import InputError
from grant_fast.files import alone_in
from grant_fast.studies.compare import (
    CONTROLS,
    REPORT_FILES,
    begun,
    begun_config,
    compare,
    planned_visits,
    run_folder,
    with_controls,
)
from grant_fast.training.config import RunConfig
from grant_fast.training.folder import has_weights, read_config
from grant_fast.training.observers import Observer
from tests.rings import make_dataset
from tests.training.runs import InterruptAt


class Log(Observer):
    def __init__(self):
        self.order = []

    def started(self, config, run_dir, epoch):
        self.order.append((config.label, config.seed))

    def kept(self):
        self.order.append("kept")


@pytest.mark.parametrize("schedule", ["step", "linear", "cosine", "constant"])
@pytest.mark.parametrize("interval", ["curriculum", 3])
def test_the_planned_visits_are_those_that_random_makes(tmp_path, config, schedule, interval):
    chosen = config(epochs=23, ratio_schedule=schedule, interval=interval, start_ratio=0.3)
    runs = compare(make_dataset(), chosen, tmp_path, arms=["grant-b"], seeds=1)
    visits = planned_visits(chosen, 24)
    assert {run.result.graphs_seen for run in runs} == {visits}
    settings = {"arms": "random", "controls": (), "equal_budget": False}
    (run,) = compare(make_dataset(), chosen, tmp_path / "free", **settings, seeds=1)
    assert run.result.graphs_seen == visits


def test_infobatch_ends_with_epochs_of_all_graphs_whatever_the_budget(tmp_path, config):
    chosen = config(epochs=16)
    (run,) = [
        run
        for run in compare(make_dataset(), chosen, tmp_path, arms=["infobatch"], seeds=1)
        if run.result.arm == "infobatch"
    ]
    assert run.result.graphs_seen > planned_visits(chosen, 24)
    assert len(run.history) == 16
    assert run.history[-1].graphs_seen - run.history[-3].graphs_seen == 2 * 24


def test_every_seed_begins_with_another_arm_and_results_keep_the_order(tmp_path, config):
    log = Log()
    runs = compare(make_dataset(), config(epochs=2), tmp_path, arms=["full"], seeds=3, observer=log)
    full, budget, random = "full", "full-equal-budget", "random"
    assert log.order == [
        *((arm, 0) for arm in (full, budget, random)),
        *((arm, 1) for arm in (budget, random, full)),
        *((arm, 2) for arm in (random, full, budget)),
    ]
    expected = [(arm, seed) for arm in (full, budget, random) for seed in range(3)]
    assert [(run.result.arm, run.result.seed) for run in runs] == expected


def test_resuming_repeats_only_what_is_not_finished(tmp_path, config):
    job = (make_dataset(), config(epochs=2), tmp_path)
    before = compare(*job, arms=["full"], seeds=2)
    (run_folder(tmp_path, "random", 1) / "result.json").unlink()
    (run_folder(tmp_path, "full", 0) / "result.json").write_text('{"arm": "fu')
    (run_folder(tmp_path, "full", 1) / "metrics.csv").write_bytes(b"\xff")
    log = Log()
    after = compare(*job, arms=["full"], seeds=2, resume=True, observer=log)
    again = [("full", 0), "kept", "kept", "kept", ("random", 1), ("full", 1)]
    assert log.order == again
    assert [run.result.test_metric for run in after] == [run.result.test_metric for run in before]


def test_a_run_that_was_begun_goes_on_where_it_was(tmp_path, config):
    class Begun(Observer):
        def started(self, config, run_dir, epoch):
            begun.append(epoch)

    begun: list[int] = []
    job = (make_dataset(), config(epochs=4), tmp_path)
    settings = {"arms": "full", "controls": (), "seeds": 1}
    with pytest.raises(KeyboardInterrupt):
        compare(*job, **settings, observer=InterruptAt(2))
    compare(*job, **settings, resume=True, observer=Begun())
    assert begun == [2]


def test_a_run_that_begins_again_has_no_result_meanwhile(tmp_path, config):
    job = (make_dataset(), config(epochs=2), tmp_path)
    before = compare(*job, arms="full", seeds=1)
    (run_folder(tmp_path, "full", 0) / "last.pt").unlink()
    with pytest.raises(InputError, match=r"full/seed-0 holds the result of a run without its last"):
        compare(*job, arms="full", seeds=1, resume=True)
    (run_folder(tmp_path, "full", 0) / "result.json").write_text("{}")
    with pytest.raises(KeyboardInterrupt):
        compare(*job, arms="full", seeds=1, resume=True, observer=InterruptAt(1))
    after = compare(*job, arms="full", seeds=1, resume=True)
    assert [len(run.history) for run in after] == [len(run.history) for run in before]


def test_a_finished_run_gets_back_its_best_weights(tmp_path, config):
    job = {"arms": ["full"], "controls": (), "seeds": 1}
    compare(make_dataset(), config(epochs=2), tmp_path, **job)
    best = run_folder(tmp_path, "full", 0) / "best.pt"
    best.write_bytes(best.read_bytes()[:500])
    assert not has_weights(best.parent)
    compare(make_dataset(), config(epochs=2), tmp_path, **job, resume=True)
    assert has_weights(best.parent)


def test_finished_runs_on_other_data_are_refused(tmp_path, config):
    compare(make_dataset(), config(epochs=2), tmp_path, arms=["full"], seeds=1)
    dataset = make_dataset()
    dataset.graphs.y[-1] += 1
    with pytest.raises(InputError, match="the run was made on other data"):
        compare(dataset, config(epochs=2), tmp_path, arms=["full"], seeds=1, resume=True)
    by_r2 = replace(make_dataset(), metric="r2")
    with pytest.raises(InputError, match="the run was judged by mae, but would continue with r2"):
        compare(by_r2, config(epochs=2), tmp_path, arms=["full"], seeds=1, resume=True)


def test_starting_anew_forgets_every_old_result_at_once(tmp_path, config):
    compare(make_dataset(), config(epochs=2), tmp_path, arms=["full", "grant-s"], seeds=2)
    (tmp_path / "grant-s" / "notes.txt").write_text("mine")
    for name in REPORT_FILES:
        (tmp_path / name).write_text("old")
    job = {"arms": ["full"], "seeds": 1, "overwrite": True, "observer": InterruptAt(1)}
    with pytest.raises(KeyboardInterrupt):
        compare(make_dataset(), config(), tmp_path, **job)
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    begun = {f"full/seed-0/{name}" for name in ("config.json", "last.pt", "best.pt", "metrics.csv")}
    planned = {f"{arm}/seed-0/config.json" for arm in CONTROLS}
    assert left == {"grant-s/notes.txt"} | begun | planned


def test_what_cannot_be_trained_is_refused_before_an_earlier_comparison_goes(tmp_path, config):
    dataset, new = make_dataset(), tmp_path / "new"
    compare(dataset, config(epochs=1), tmp_path / "old", arms=["full"], seeds=1)
    before = sorted((tmp_path / "old").rglob("*"))
    job = {"arms": ["full"], "seeds": 1, "overwrite": True}
    for folder in (tmp_path / "old", new):
        with pytest.raises(InputError, match="does not fit a regression task"):
            compare(dataset, config(metric="roc_auc"), folder, **job)
        with pytest.raises(InputError, match="training diverged"):
            compare(dataset, config(lr=1e30), folder, **job)
    assert sorted((tmp_path / "old").rglob("*")) == before and not new.exists()


def test_a_split_that_is_none_is_refused_before_it_is_put_in_order(tmp_path, config):
    data = make_dataset()
    bad = replace(data, split={**data.split, "test": data.split["train"][:2]})
    with pytest.raises(InputError, match="is in two parts of the split"):
        compare(bad, config(), tmp_path / "out", arms=["full"], controls=[], seeds=1)
    assert not (tmp_path / "out").exists()


def test_a_folder_where_a_file_belongs_is_named(tmp_path, config):
    (tmp_path / "full" / "seed-0" / "result.json").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cannot remove .*result\.json: .*; give another folder"):
        compare(make_dataset(), config(), tmp_path, seeds=1, overwrite=True)


def test_what_another_process_finished_meanwhile_is_not_replaced_unasked(
    tmp_path, config, monkeypatch
):
    job = (make_dataset(), config(epochs=1), tmp_path)

    def warm_up(*_):
        monkeypatch.undo()
        compare(*job, arms=["full"], controls=(), seeds=1)
        done.append((tmp_path / "full" / "seed-0" / "result.json").stat().st_mtime_ns)

    done = []
    monkeypatch.setattr("grant_fast.studies.compare._warm_up", warm_up)
    with pytest.raises(InputError, match=r"is not empty: .*overwrite=True"):
        compare(*job, arms=["full"], controls=(), seeds=1)
    assert done == [(tmp_path / "full" / "seed-0" / "result.json").stat().st_mtime_ns]


def test_unknown_arms_and_no_seeds_are_refused(tmp_path, config):
    with pytest.raises(InputError, match="arm=best cannot be used: give one of full"):
        compare(make_dataset(), config(), tmp_path, arms=["best"])
    with pytest.raises(InputError, match="patience=3 cannot be used: give arm=full, as other arms"):
        compare(make_dataset(), config(arm="full", patience=3), tmp_path)
    alone = {"arms": ["full"], "controls": (), "seeds": 1}
    (run,) = compare(make_dataset(), config(arm="full", patience=1, lr=0.5), tmp_path, **alone)
    assert run.result.epochs == run.result.best_epoch + 1 < 6
    with pytest.raises(InputError, match="there are no arms to compare"):
        compare(make_dataset(), config(), tmp_path, arms=[], controls=())
    for seeds in (0, 99_999_999_999):
        with pytest.raises(InputError, match=f"seeds={seeds} cannot be used"):
            compare(make_dataset(), config(), tmp_path, seeds=seeds)
    assert with_controls(["grant-s"]) == ("full-equal-budget", "random", "grant-s")


def test_an_equal_budget_is_no_control_of_runs_without_one(tmp_path, config):
    with pytest.raises(InputError, match=r"without a budget: .* leave it out with controls=\['ran"):
        compare(make_dataset(), config(), tmp_path, arms=["full"], equal_budget=False)
    assert not any(tmp_path.iterdir())


def test_a_string_is_one_arm_and_not_its_letters():
    assert with_controls("grant-s", "random") == ("random", "grant-s")


def test_a_refused_resume_leaves_the_folder_as_it_was(tmp_path, config):
    data, settings = make_dataset(), config(epochs=2)
    compare(data, settings, tmp_path, arms=["full"], seeds=1)
    (run_folder(tmp_path, "random", 0) / "last.pt").unlink()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for other, seeds in ((replace(settings, lr=0.5), 1), (replace(settings, lr=0.5), 2)):
        with pytest.raises(InputError, match=r"the run was made with lr=.*, not 0\.5"):
            compare(data, other, tmp_path, arms=["full"], seeds=seeds, resume=True)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_what_is_taken_up_elsewhere_says_where(tmp_path, config):
    data, settings = make_dataset(), config(epochs=2, source="here.csv")
    compare(data, settings, tmp_path, arms=["full"], controls=(), seeds=1)
    moved = replace(settings, source="there.csv")
    compare(data, moved, tmp_path, arms=["full"], controls=(), seeds=2, resume=True)
    for seed in (0, 1):
        assert read_config(run_folder(tmp_path, "full", seed)).source == "there.csv"


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked there")
def test_a_run_that_another_process_goes_on_with_is_left_to_it(tmp_path, config):
    run_dir = run_folder(tmp_path, "full", 0)
    job = {"arms": ["full", "grant-s"], "controls": (), "seeds": 2}
    compare(make_dataset(), config(epochs=1), tmp_path, **job)
    before = sorted(tmp_path.rglob("*"))
    refused = pytest.raises(InputError, match="another process is writing to")
    with alone_in(run_folder(tmp_path, "grant-s", 1)), refused:
        compare(make_dataset(), config(epochs=1), tmp_path, **job, overwrite=True)
    assert sorted(tmp_path.rglob("*")) == before
    with alone_in(tmp_path), pytest.raises(InputError, match="another process is writing to"):
        compare(make_dataset(), config(epochs=1), tmp_path, **job, resume=True)
    (run_dir / "result.json").unlink()
    for how in ("overwrite", "resume"):
        with alone_in(run_dir), pytest.raises(InputError, match="another process is writing to"):
            compare(make_dataset(), config(epochs=1), tmp_path, **job, **{how: True})


def test_what_has_begun_is_told_from_what_else_is_there(tmp_path, config):
    assert (begun(tmp_path), begun_config(tmp_path)) == ([], None)
    settings = config(epochs=1, seed=4)
    compare(make_dataset(), settings, tmp_path, arms=["grant-s"], controls=["random"], seeds=2)
    for other in ("best/seed-1", "random/seed-x"):
        (tmp_path / other).mkdir(parents=True)
        (tmp_path / other / "config.json").write_text("mine")
    assert begun(tmp_path) == [(arm, seed) for arm in ("random", "grant-s") for seed in (4, 5)]
    shared = begun_config(tmp_path)
    assert (shared.seed, shared.visits, shared.epochs) == (4, None, 1)
    (run_folder(tmp_path, "random", 4) / "config.json").unlink()  # so far begun by one arm alone
    assert begun_config(tmp_path).seed == 4


def test_the_lowest_seed_is_taken_whichever_arm_has_it(tmp_path):
    for arm, seed in (("full", 5), ("random", 4)):
        folder = run_folder(tmp_path, arm, seed)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(RunConfig(arm=arm, seed=seed).to_json())
    assert begun_config(tmp_path).seed == 4
