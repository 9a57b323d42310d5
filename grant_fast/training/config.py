"""Everything that defines a run, in one frozen, checked object that travels as JSON.

The command line is made from these fields: their names, types, limits and help stand here only.
"""

import dataclasses
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, get_args

from ..errors import InputError, short
from ..tasks import Kind

# Copies of nn.ACTIVATIONS and nn.NORMS (a test compares them): importing this module must not
# import torch.
ACTS = ("relu", "elu", "gelu", "leaky_relu", "sigmoid", "silu", "tanh")
NORMS = ("batch_norm", "layer_norm")
ARMS = ("full", "random", "grant-b", "grant-s", "grant-global")
PROPORTIONAL = "grant-proportional"  # drawn in proportion to the score, with unbiasing weights
INFOBATCH = "infobatch"  # a baseline that prunes by loss, without a teacher or a curriculum
ON_REQUEST = (PROPORTIONAL, INFOBATCH)  # arms that a comparison runs only where they are named
WEIGHTED = (PROPORTIONAL, INFOBATCH)  # arms that weigh the losses of the graphs they picked
EQUAL_BUDGET = "full-equal-budget"  # what reports call "full" for so many visits, a control
# The settings of how a source is read, which decide what `grant-fast pack` writes.
DATA = ("smiles_column", "target", "task", "split", "split_column", "graphs", "data_seed", "strict")
MEMORY = "memory:"  # what the source of a run begins with whose data no file holds
_MOST_SHOWN = 100  # letters of a value that is refused
# What reports call a network; the usual one goes without saying.
NETWORKS = {"flex": "", "gcn": "GCN", "gcn-virtual-node": "GCN + virtual node"}


@dataclass(frozen=True)
class Limit:
    """What a setting may be: in words, and as a test of one value."""

    words: str
    fits: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Whether it is a finite float, or an int that can be one."""
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and abs(value) <= sys.float_info.max


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(*names: str) -> Limit:
    return Limit("one of " + ", ".join(names), names.__contains__)


def _whole(low: int, high: int) -> Limit:
    words = f"a whole number of at least {low} and at most {high:,}"
    return Limit(words, lambda value: _is_whole(value) and low <= value <= high)


_TEXT = Limit("text", lambda value: isinstance(value, str))
_SWITCH = Limit("true or false", lambda value: isinstance(value, bool))
# Upper limits are far beyond any use: they are there for slips of the finger.
_COUNT = _whole(1, 100_000_000)
_EPOCHS = _whole(1, 10_000_000)
_VISITS = _whole(1, 10**15)  # all graphs at all epochs
_WIDTH = _whole(1, 65_536)
_ORDER = _whole(1, 1_000)
_SEED = _whole(0, 2**32 - 1)
_POSITIVE = Limit("a number above 0", lambda value: is_number(value) and value > 0)
_NOT_NEGATIVE = Limit("a number of at least 0", lambda value: is_number(value) and value >= 0)
_SHARE = Limit("above 0 and at most 1", lambda value: is_number(value) and 0 < value <= 1)
_RATE = Limit("at least 0 and below 1", lambda value: is_number(value) and 0 <= value < 1)
_INTERVAL = Limit(
    f"{_EPOCHS.words}, or 'curriculum'",
    lambda value: value == "curriculum" or _EPOCHS.fits(value),
)


def _setting(default: Any, limit: Limit, help: str) -> Any:
    return field(default=default, metadata={"limit": limit, "help": help})


@dataclass(frozen=True)
class RunConfig:
    """One run: data, model, optimisation, teacher. Checked when made, never changed after.

    Each field's metadata says what it is and what it may be; `grant-fast train --help` shows it.

    Raises:
        InputError: a value is out of range; the message names field, value and range.
    """

    source: str = _setting("gen-reg", _TEXT, "gen-reg, gen-cls, a CSV of SMILES, a packed file, …")
    smiles_column: str | None = _setting(
        None, _TEXT, "the CSV column that holds the SMILES. Default: the one called smiles"
    )
    target: tuple[str, ...] = _setting(
        (),
        _TEXT,
        "the table's target columns, or 'all' for every column of numbers. Default: the only "
        "other column",
    )
    task: str = _setting(
        "auto",
        _one_of("auto", *get_args(Kind)),
        "the type of task",
    )
    split: str | None = _setting(
        None,
        _one_of("random", "scaffold"),
        "how to split the data. Default: the published or packed split; tables by scaffold; "
        "others at random",
    )
    split_column: str | None = _setting(
        None, _TEXT, "the column that says train, valid or test (or training, val, …)"
    )
    graphs: int | None = _setting(
        None,
        _COUNT,
        "use only the first N graphs (published splits: the first of each part, in proportion; "
        "generated sets: make N, default 50,000)",
    )
    data_seed: int = _setting(0, _SEED, "seed of generated data and of a random split")
    strict: bool = _setting(False, _SWITCH, "stop at an unparsable molecule instead of skipping it")

    network: str = _setting(
        "flex", _one_of(*NETWORKS), "the flexible GCN, or a plain one to compare it with"
    )
    hidden_channels: tuple[int, ...] = _setting(
        (18,), _WIDTH, "width of each hidden layer, or one for all"
    )
    orders: tuple[int, ...] = _setting((3, 2), _ORDER, "order κ of each layer: κ − 1 hops")
    head: int | None = _setting(
        None,
        _WIDTH,
        "width between two final linear maps, as in the paper's code; by default there is only "
        "one map",
    )
    embedding: int = _setting(9, _WIDTH, "width of the atom embedding (molecules)")
    act: str = _setting("relu", _one_of(*ACTS), "activation between the layers")
    norm: str = _setting("none", _one_of("none", *NORMS), "normalisation between the layers")
    dropout: tuple[float, ...] = _setting(
        (0.0,), _RATE, "dropout probability after each hidden layer, or one for all"
    )
    pool: str = _setting("mean", _one_of("mean", "sum", "max"), "readout of graph-level targets")
    normalize: bool = _setting(True, _SWITCH, "normalise the adjacency symmetrically")

    init: str = _setting(
        "default",
        _one_of("default", "kaiming"),
        "how initial weights are drawn; 'kaiming' is what the paper's code does",
    )

    epochs: int = _setting(100, _EPOCHS, "passes over the selected graphs")
    lr: float = _setting(0.01, _POSITIVE, "AdamW's learning rate")
    lr_schedule: str = _setting(
        "constant",
        _one_of("constant", "plateau"),
        "'plateau' lowers lr while the validation metric does not improve",
    )
    lr_restart: float | None = _setting(
        None, _POSITIVE, "raise lr to at least this at each new selection of graphs"
    )
    weight_decay: float = _setting(0.0, _NOT_NEGATIVE, "AdamW's weight decay")
    batch_size: int = _setting(500, _COUNT, "graphs in a batch")
    step_every: str = _setting(
        "batch",
        _one_of("batch", "epoch"),
        "when to step the optimizer; 'epoch' is what the paper does",
    )
    pass_size: int | None = _setting(
        None, _COUNT, "with --step-every epoch: how many graphs batch norm normalises together"
    )
    clip: float | None = _setting(None, _POSITIVE, "clip the gradient to this norm")
    standardize: bool = _setting(
        True, _SWITCH, "scale regression targets to mean 0 and standard deviation 1 in training"
    )

    arm: str = _setting("full", _one_of(*ARMS, *ON_REQUEST), "how the graphs are picked")
    start_ratio: float = _setting(
        0.1, _SHARE, "share of the graphs (grant-b: of the batches) selected at first"
    )
    ratio_schedule: str = _setting(
        "step", _one_of("step", "linear", "cosine", "constant"), "how the share grows towards 1"
    )
    interval: int | str = _setting(
        "curriculum", _INTERVAL, "epochs between selections; 'curriculum' lets the gaps grow"
    )

    metric: str = _setting(
        "auto",
        _one_of("auto", "mae", "rmse", "r2", "roc_auc", "ap", "accuracy"),
        "the metric that chooses the best weights and is reported on the test set; 'auto' uses "
        "the data's own",
    )
    eval_every: int = _setting(1, _COUNT, "epochs between validations")
    patience: int | None = _setting(
        None, _COUNT, "with --arm full: stop after this many validations without a better metric"
    )
    visits: int | None = _setting(None, _VISITS, "stop after this many graph visits")
    seed: int = _setting(
        0, _SEED, "seed of weights, data order and dropout; of several seeds, the first"
    )
    device: str = _setting(
        "auto", _TEXT, "where to compute: cpu, cuda, cuda:1, …; auto uses a GPU if there is one"
    )

    def __post_init__(self) -> None:
        for spec in dataclasses.fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, list):  # as JSON gives it; a frozen config holds tuples
                object.__setattr__(self, spec.name, tuple(value))
            is_list = isinstance(spec.default, tuple)
            if is_list != isinstance(value, (list, tuple)):
                self._reject(spec.name, "it must be a list" if is_list else "not a list")
            limit: Limit = spec.metadata["limit"]
            absent = value is None and spec.default is None
            values = value if isinstance(value, (list, tuple)) else [value]
            if not absent and not all(map(limit.fits, values)):
                self._reject(spec.name, f"give {limit.words}")
        if self.pass_size is not None and self.step_every != "epoch":
            self._reject("pass_size", "give step_every=epoch with it, or batch_size instead")
        if self.patience is not None and self.arm != "full":
            self._reject(
                "patience", "give arm=full, as other arms show more graphs to the very end"
            )
        gaps = len(self.orders) - 1
        if gaps < 0:
            self._reject("orders", "give one order for each layer")
        for name in ("hidden_channels", "dropout"):
            if len(getattr(self, name)) not in (1, gaps):
                self._reject(name, _fitting(gaps, _plain(self.orders)))

    @property
    def label(self) -> str:
        """What reports call the arm."""
        return EQUAL_BUDGET if self.arm == "full" and self.visits else self.arm

    def metric_of(self, usual: str) -> str:
        """The metric that judges a run, `usual` being the data's own."""
        return usual if self.metric == "auto" else self.metric

    def _reject(self, name: str, remedy: str) -> None:
        shown = short(_plain(getattr(self, name)), _MOST_SHOWN)
        raise InputError(f"{name}={shown} cannot be used: {remedy}")

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON holds them: tuples become lists."""
        values = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    def to_json(self) -> str:
        """The config as indented JSON, ended by a newline."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_dict(cls, values: Any, origin: str = "config") -> "RunConfig":
        """The config that `to_dict` gave.

        Args:
            values: a mapping with every field and no other.
            origin: the file that it came from, for the error message.

        Raises:
            InputError: a key is unknown or missing, or a value is out of range.
        """
        if not isinstance(values, dict):
            raise InputError(f"{origin}: not a run's config; give the config.json of a run folder")
        names = {spec.name for spec in dataclasses.fields(cls)}
        unknown, missing = values.keys() - names, names - values.keys()
        for complaint, keys in (("unknown", unknown), ("missing", missing)):
            if keys:
                raise InputError(
                    f"{origin}: {complaint} key{'s' * (len(keys) > 1)} {', '.join(sorted(keys))}; "
                    "it was written by another version, or edited: correct it, or train again"
                )
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{origin}: {error}") from error

    @classmethod
    def from_json(cls, text: str, origin: str = "config") -> "RunConfig":
        """The config that `to_json` wrote; see `from_dict`."""
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, say
            raise InputError(f"{origin}: not JSON ({error}); restore the file") from error
        return cls.from_dict(values, origin)


def _fitting(gaps: int, orders: str) -> str:
    """How many values there may be for what lies between layers."""
    if gaps == 0:
        return f"a single layer (orders={orders}) has no gap: leave the setting out"
    if gaps == 1:
        return f"2 layers (orders={orders}) have one gap: give one value"
    return f"{gaps + 1} layers (orders={orders}) have {gaps} gaps: give that many values, or one"


def _plain(value: object) -> str:
    """A value as one types it on the command line."""
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
