"""Runs as they are recorded, made up."""

from grant_fast.training.records import EpochRecord, Run, RunResult


def make_run(arm, seed, metric, seconds=10.0, higher_is_better=True):
    history = tuple(
        EpochRecord(e, 0.5, 100 * e, seconds * e / 2, 0.1 * e, 0.2 * e, 1 / e, 1 / e, metric)
        for e in (1, 2)
    )
    return Run(
        RunResult(
            arm=arm,
            seed=seed,
            metric="roc_auc" if higher_is_better else "mae",
            higher_is_better=higher_is_better,
            test_metric=metric,
            test_metric_last=metric,
            test_loss=0.7,
            valid_metric=metric,
            best_epoch=2,
            epochs=2,
            graphs_seen=200,
            train_seconds=seconds,
            selection_seconds=0.2,
            valid_seconds=0.4,
            constant_loss=0.9,
        ),
        history,
    )


def make_runs(metrics, **settings):
    """Runs of arms from {arm: metric of each seed}; all but full take half the time."""
    return [
        make_run(arm, seed, value, 10.0 if arm == "full" else 5.0, **settings)
        for arm, values in metrics.items()
        for seed, value in enumerate(values)
    ]
