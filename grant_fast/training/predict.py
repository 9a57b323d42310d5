"""The network of a finished (or interrupted) run, and what it answers."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..data.smiles import are_pyg_features
from ..devices import usual_tensors
from ..errors import InputError, typed
from ..files import check_name
from ..graphs import PackedGraphs
from ..nn import FlexGCN
from ..progress import track
from ..tasks import Task, fits, measured
from ..teaching.scoring import Ids, score_graphs
from .checkpoints import REMEDY, check_shapes, load_checkpoint, load_weights, taken_from
from .config import MEMORY, RunConfig
from .folder import BEST_FILE, CONFIG_FILE, LAST_FILE, difference, read_config
from .metrics import metrics_for
from .model import ModelSpec, fitting, make_model, predictions, resolve_device
from .records import RESULT_FILE, checksum_in, is_finished
from .source import dataset_of
from .targets import with_targets


@dataclass(frozen=True)
class Predictor:
    """A trained network with what turns its outputs into answers, in the targets' own units.

    Args:
        model: the network, in evaluation mode. Its own outputs are logits of classes; of a
            regression they are of standardised targets, not to be compared with the targets as they
            are (`spec.decode` takes them to the targets' units): `score` does it.
        config: the settings of the run.
        spec: the task, and how the network's outputs relate to the targets.
        checksum: of the data that it learned from, see `Dataset.checksum`; None if that is unknown.
        metric: that the run was judged by; "" if that is unknown.
        folder: of the run; None if that is unknown.
    """

    model: FlexGCN
    config: RunConfig
    spec: ModelSpec
    checksum: int | None = None
    metric: str = ""
    folder: Path | None = None

    def __call__(self, graphs: PackedGraphs, progress: bool = False) -> Tensor:
        """Own units (regression) or probabilities, float32 [rows, columns] on the CPU.

        Args:
            graphs: of the kind that the run was trained on.
            progress: show a progress bar on stderr.

        Raises:
            InputError: it is not given a `PackedGraphs`, or one with other features than the run
                was trained on.
        """
        return answers_of(self.outputs(graphs, progress), self.spec.task)

    def outputs(self, graphs: PackedGraphs, progress: bool = False) -> Tensor:
        """Own units (regression) or logits; arguments, errors and shape as of a call."""
        taken = self._taken(graphs)
        parts = fitting(taken, torch.arange(len(taken), device="cpu"), self.model)
        watched = track(parts, "predicting", len(parts), progress)
        return self.spec.decode(predictions(self.model, map(taken.batch, watched))).cpu()

    def dataset(self, progress: bool = False) -> Dataset:
        """The data set that the run learned from and was tested on, with its split, read anew from
        where the command `train` found it.

        Raises:
            InputError: as `load_dataset` (the data have moved, say); the data or their split are
                no longer the same; or the run is one of the function `train`, which keeps no data.
        """
        source = self.config.source
        try:
            dataset = dataset_of(self.config, progress=progress)
        except InputError as error:
            if source.startswith(MEMORY):
                raise
            raise InputError(
                f"{error} (the run learned from {source}, as seen from the folder in which it was "
                "started: go there, or read the data with load_dataset)"
            ) from error
        if self.checksum is not None and self.checksum != dataset.grouped().checksum:
            raise InputError(
                f"{source} has changed since the run learned from it, or is split in "
                "another way: restore it, or read it as it is now with load_dataset"
            )
        return dataset

    def score(self, graphs: PackedGraphs, ids: Ids | None = None) -> Tensor:
        """The teacher's score of each graph, float32 [len(ids)] on the CPU: its error, as
        `score_graphs` has it, for the run's own task; of a regression in the target's own units,
        of several targets each in its standard deviations (where the run scaled them).

        Args:
            graphs: with targets as the run was trained on.
            ids: positions in `graphs`, in the order of the result, or a mask; all of them if None.

        Raises:
            InputError: as a call, and as `score_graphs`.
        """
        graphs, scaling = self._taken(graphs), self.spec.scaling
        if scaling is not None and self._has_labels(graphs):  # else 0, or it says why not
            graphs = with_targets(graphs, self.spec.encode)
        scores = score_graphs(self.model, graphs, self.spec.task, ids=ids).cpu()
        if scaling is not None and self.spec.task.num_outputs == 1:
            scores *= scaling.deviation[0]
        return scores

    def _has_labels(self, graphs: PackedGraphs) -> bool:
        y, task = graphs.y, self.spec.task
        return y is not None and fits(y, graphs.y_level, task) and bool(measured(y, task).any())

    def _taken(self, graphs: PackedGraphs) -> PackedGraphs:
        """Graphs that the network can take, on its device and in its precision."""
        if not isinstance(graphs, PackedGraphs):
            raise InputError(
                f"a predictor takes a PackedGraphs, not a {type(graphs).__name__}: make one, for "
                "example with PackedGraphs.from_smiles or from_data_list; to score its graphs, "
                "call this predictor's score(graphs) instead of score_graphs"
            )
        if graphs.num_features != self.spec.num_features:
            raise InputError(
                f"these graphs have {graphs.num_features} features per node, but the run was "
                f"trained on {self.spec.num_features}: give graphs of the same kind"
            )
        of_ogb = self.spec.encoder == "atom" and not self.config.source.startswith(MEMORY)
        if of_ogb and are_pyg_features(graphs.x):
            raise InputError(
                "these molecules have the features of torch_geometric.utils.from_smiles, and the "
                "run was trained on OGB's: make them with PackedGraphs.from_smiles"
            )
        weight = next(self.model.parameters())
        return graphs.to(weight.device, weight.dtype)


def answers_of(outputs: Tensor, task: Task) -> Tensor:
    """Own units or logits [rows, columns] as own units or probabilities."""
    if task.kind == "regression":
        return outputs
    return outputs.softmax(dim=1) if task.kind == "multiclass" else outputs.sigmoid()


@usual_tensors
def load_predictor(run_dir: str | Path, *, last: bool = False, device: str = "auto") -> Predictor:
    """Rebuild the network from a run folder.

    Args:
        run_dir: the folder that `train` wrote.
        last: take the last weights instead of the best by validation.
        device: "auto" for a GPU where there is one, or "cpu", "cuda", ….

    Returns:
        What, called with a `PackedGraphs`, gives the answers for its graphs (or nodes) on the CPU:
        values in the targets' units, or probabilities, [rows, columns].

    Raises:
        InputError: it is not a run folder, its checkpoint is missing, damaged or belongs to another
            run, or the device cannot be used.
    """
    folder = Path(run_dir)
    check_name(folder)
    config = read_config(folder)
    path = folder / (LAST_FILE if last else BEST_FILE)
    if not path.exists():
        raise InputError(_without_weights(folder, path.name, config))
    state = load_checkpoint(path, _remedy(folder, path.name, config))
    with taken_from(path):
        saved = RunConfig.from_dict(state["config"], origin=str(path))
        spec = ModelSpec.from_dict(state["spec"])
        checksum, metric = state["data"], state["metric"]
        if metric not in metrics_for(spec.task):
            raise ValueError(f"its metric is {metric!r}")
    other, unlike = CONFIG_FILE, difference(saved, config)
    if not unlike and checksum_in(folder) not in (None, checksum):
        other, unlike = RESULT_FILE, "other data"
    if unlike:
        raise InputError(
            f"{path} belongs to another run than the {other} beside it, with {unlike}: put the "
            "run's own files back, or train again"
        )
    with taken_from(path):
        with torch.device("meta"):  # where a width that the weights have not takes no memory
            model = make_model(config, spec)
        check_shapes(model.state_dict(), state["model"], path)
        # `to_empty` would import PyTorch's compiler, for half a second.
        model = model._apply(lambda t: torch.empty(t.shape, dtype=t.dtype, device="cpu"))
        load_weights(model, state["model"], path)
    model = model.to(resolve_device(device)).eval()
    return Predictor(model, config, spec, checksum, metric, folder)


def _without_weights(folder: Path, name: str, config: RunConfig) -> str:
    if is_finished(folder):
        return f"{folder / name} is missing: {_remedy(folder, name, config)}"
    return f"{folder} has no {name} yet: {continued(folder, config)}"


def _remedy(folder: Path, name: str, config: RunConfig) -> str:
    """What helps where weights cannot be read: best.pt is written anew from last.pt."""
    if name == BEST_FILE and (folder / LAST_FILE).exists():
        return f"{resuming(folder, config)} writes it anew"
    return REMEDY


def continued(folder: Path, config: RunConfig) -> str:
    """That a run has not ended, and what continues it."""
    command = resuming(folder, config)
    return f"its training has not ended; {command} continues it if it was stopped"


def resuming(folder: Path, config: RunConfig) -> str:
    """The command that takes up a run, ended or not."""
    if config.source.startswith(MEMORY):
        return "train(…, resume=True) in Python"
    return typed("grant-fast", "train", "--resume", "-o", str(folder))
