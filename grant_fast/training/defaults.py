"""Settings that suit each kind of data, for whoever gives none.

Orders and start shares are the paper's (its appendix on settings; molhiv's for molecules), widths
those of its code, but for small sets. Learning rates and epochs are neither's: with a step a batch
instead of one an epoch, fewer epochs at a larger rate learn more, and on the graphon sets a run
should end while its user is watching. What small sets of molecules have was chosen by the
validation error on ESOL, FreeSolv and lipophilicity.
"""

import dataclasses
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from .config import RunConfig

if TYPE_CHECKING:
    from ..data.dataset import Dataset

_GRAPHONS: dict[str, Any] = {
    "hidden_channels": (10,),
    "norm": "layer_norm",  # features in [0, 1]: without it many units start dead
    "batch_size": 50,
    "lr": 0.005,
    "start_ratio": 0.05,
}
_MOLECULES: dict[str, Any] = {
    "hidden_channels": (27, 18, 18),
    "orders": (4, 3, 2, 2),
    "embedding": 9,
    "norm": "batch_norm",
    "dropout": (0.27, 0.0, 0.0),  # after the first layer only, as the authors' code has it
    "batch_size": 500,
    "lr": 0.01,
    "weight_decay": 5e-4,
    "epochs": 50,
    "start_ratio": 0.1,
}
_SMALL_SET = 20_000  # molecules; fewer make too few batches of 500 for (B) to choose among
_SMALL: dict[str, Any] = {
    "hidden_channels": (64,),
    "embedding": 32,
    "batch_size": 32,
    "lr": 0.003,
    "epochs": 100,
}
_TINY_SET = 2_000  # molecules; fewer make few steps an epoch


def defaults_for(
    source: str, num_graphs: int | None = None, layers: int | None = None
) -> dict[str, Any]:
    """Settings of `RunConfig` for a source of graphs.

    Args:
        source: as `load_dataset` takes it.
        num_graphs: how many there are, where known; small sets get smaller batches and steps, wider
            layers and more epochs.
        layers: how many there shall be, where that is not left open: values between layers are
            cut, or the last one repeated.
    """
    suits = _defaults_for(source, num_graphs)
    if layers is not None:
        for name in ("hidden_channels", "dropout"):
            values = suits.get(name, ())
            if len(values) > 1:
                suits[name] = (*values, *values[-1:] * layers)[: layers - 1]
    return suits


def _defaults_for(source: str, num_graphs: int | None) -> dict[str, Any]:
    if source == "gen-reg":
        return {**_GRAPHONS, "orders": (3, 2), "epochs": 50}
    if source == "gen-cls":
        return {**_GRAPHONS, "orders": (4, 3), "epochs": 50}
    if num_graphs is None or num_graphs >= _SMALL_SET:
        return dict(_MOLECULES)
    longer = {"epochs": 300} if num_graphs < _TINY_SET else {}
    return {**_MOLECULES, **_SMALL, **longer}


def check_heeded(config: RunConfig, given: Collection[str]) -> None:
    """Refuse settings of a curriculum where all graphs are taken (InputError)."""
    of_curriculum = ("start_ratio", "ratio_schedule", "interval", "lr_restart")
    idle = [name for name in of_curriculum if name in given and getattr(config, name) is not None]
    if idle and config.arm == "full":
        raise InputError(
            f"{idle[0]}={getattr(config, idle[0])} cannot be used: arm=full takes all graphs in "
            "every epoch; give another arm with it, such as grant-b"
        )


def config_of(given: dict[str, Any], dataset: "Dataset | None" = None) -> RunConfig:
    """What the user gave, and for the rest what suits the source, or better the data in it.

    Args:
        given: fields of `RunConfig`; `source` among them where there is no data set.
        dataset: the data, where they were read.

    Raises:
        InputError: a value is out of range.
    """
    layers = len(given["orders"]) if "orders" in given else None
    if dataset is None:
        suits = defaults_for(given["source"], layers=layers)
    else:
        name = dataset.name if dataset.encoder is None else "molecules"
        suits = defaults_for(name, len(dataset.graphs), layers)
    return RunConfig(**{**suits, **given})


def given_of(config: RunConfig, dataset: "Dataset") -> dict[str, Any]:
    """What `config_of` has to be given to make this config, the source apart."""
    given: dict[str, Any] = {}
    for _ in range(2):  # what suits the data depends on the number of layers, if that is given
        usual = config_of({"source": config.source, **given}, dataset)
        values = {spec.name: getattr(config, spec.name) for spec in dataclasses.fields(config)}
        given |= {name: v for name, v in values.items() if v != getattr(usual, name)}
    return given
