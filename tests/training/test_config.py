"""A run's config: what it refuses, and that it survives JSON."""

import json
from dataclasses import FrozenInstanceError, fields, replace

import pytest

from grant_fast.errors import InputError
from grant_fast.nn import ACTIVATIONS
from grant_fast.nn import NORMS as NETWORK_NORMS
from grant_fast.training.config import ACTS, NORMS, RunConfig
from grant_fast.training.metrics import _METRICS

NONSENSE = [
    ("epochs", -3, "at least 1"),
    ("epochs", 2.5, "whole number"),
    ("epochs", True, "whole number"),
    ("epochs", 10**14, "at most 10,000,000"),
    ("seed", 10**23, "at most 4,294,967,295"),
    ("data_seed", 10**23, "at most 4,294,967,295"),
    ("batch_size", 10**19, "at most 100,000,000"),
    ("graphs", 10**23, "at most 100,000,000"),
    ("interval", 10**23, "at most 10,000,000"),
    ("hidden_channels", (10**9,), "at most 65,536"),
    ("embedding", 10**13, "at most 65,536"),
    ("orders", (10**9, 2), "at most 1,000"),
    ("batch_size", 0, "at least 1"),
    ("graphs", 0, "at least 1"),
    ("visits", 0, "at least 1"),
    ("eval_every", 0, "at least 1"),
    ("seed", -1, "at least 0"),
    ("lr", 0.0, "above 0"),
    ("lr", float("nan"), "above 0"),
    ("lr", "fast", "above 0"),
    ("lr", 10**400, "above 0"),
    ("weight_decay", -0.1, "at least 0"),
    ("clip", 0.0, "above 0"),
    ("start_ratio", 1.5, "above 0 and at most 1"),
    ("start_ratio", 0.0, "above 0 and at most 1"),
    ("dropout", (1.0,), "below 1"),
    ("arm", "grant-x", "grant-global"),
    ("ratio_schedule", "exponential", "cosine"),
    ("interval", "often", "'curriculum'"),
    ("interval", 0, "at least 1"),
    ("step_every", "year", "epoch"),
    ("norm", "group_norm", "batch_norm"),
    ("pool", "median", "mean, sum, max"),
    ("split", "stratified", "scaffold"),
    ("task", "ranking", "multilabel"),
    ("orders", (), "each layer"),
    ("orders", (3, 0), "at least 1"),
    ("orders", 3, "list"),
    ("target", "logS", "must be a list"),
    ("seed", (1, 2), "list"),
    ("strict", "yes", "true or false"),
]


@pytest.mark.parametrize(("name", "value", "range_"), NONSENSE, ids=lambda v: str(v)[:20])
def test_nonsense_is_refused_by_name_value_and_range(name, value, range_):
    shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    shown = f"{shown[:100]}…" if len(shown) > 100 else shown
    with pytest.raises(InputError) as caught:
        RunConfig(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"{name}={shown} cannot be used")
    assert range_ in message and "\n" not in message


@pytest.mark.parametrize("name", ["hidden_channels", "dropout"])
def test_values_between_layers_must_fit_the_number_of_layers(name):
    values = (0.5, 0.5) if name == "dropout" else (8, 8)
    assert getattr(RunConfig(orders=(4, 3, 2), **{name: values}), name) == values
    with pytest.raises(InputError, match=rf"{name}=.*4 layers \(orders=4,3,2,2\) have 3 gaps"):
        RunConfig(orders=(4, 3, 2, 2), **{name: values})


def test_activations_norms_and_metrics_are_those_there_are():
    assert (tuple(ACTIVATIONS), tuple(NETWORK_NORMS)) == (ACTS, NORMS)
    limit = next(spec for spec in fields(RunConfig) if spec.name == "metric").metadata["limit"]
    assert {name for name in ("auto", *_METRICS) if limit.fits(name)} == {"auto", *_METRICS}
    assert limit.words == f"one of auto, {', '.join(_METRICS)}"


def test_json_gives_the_same_config_back():
    config = RunConfig(target=("a", "b"), orders=(4, 3, 2), hidden_channels=(8, 9), clip=1.0)
    assert RunConfig.from_json(config.to_json()) == config


def test_a_config_is_frozen_and_replace_checks_again():
    with pytest.raises(FrozenInstanceError):
        RunConfig().epochs = 3
    with pytest.raises(InputError, match="epochs=0"):
        replace(RunConfig(), epochs=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d | {"colour": 1}, "unknown key colour"),
        (lambda d: {k: v for k, v in d.items() if k != "visits"}, "missing key visits"),
        (lambda d: {k: v for k, v in d.items() if k not in ("lr", "arm")}, "missing keys arm, lr"),
        (lambda d: d | {"epochs": "many"}, "epochs=many"),
        (lambda d: [d], "not a run's config"),
    ],
)
def test_an_edited_file_is_refused_by_file_and_key(change, message):
    text = json.dumps(change(RunConfig().to_dict()))
    with pytest.raises(InputError, match=f"run/config.json: .*{message}"):
        RunConfig.from_json(text, "run/config.json")


@pytest.mark.parametrize("text", ['{"epochs": ', '{"lr": ' + "1" * 5000 + "}", "[" * 100_000])
def test_a_file_that_is_not_json_is_named(text):
    with pytest.raises(InputError, match=r"run/config\.json: not JSON"):
        RunConfig.from_json(text, "run/config.json")
