"""What does a random forest reach where a network was tested? Two columns of docs/results.md.

    python examples/forest.py esol.csv --target logSolubility -o benchmarks/results/forest-esol.json

On the split that `grant-fast train` takes, scikit-learn's forest learns from two descriptions of
each molecule: how often each circular fragment occurs in it (Morgan fingerprints of radius 2,
folded to 2,048 columns), and RDKit's descriptors. Needs rdkit, ogb and scikit-learn.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rdkit import Chem
from rdkit.Chem import Descriptors, rdFingerprintGenerator
from rdkit.rdBase import BlockLogs
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor

from grant_fast import load_dataset
from grant_fast.data.dataset import Dataset
from grant_fast.files import atomic_write_text
from grant_fast.studies.report import Spread
from grant_fast.training.metrics import evaluate

TREES = 200


def fragments(molecules: list[Chem.Mol]) -> np.ndarray:
    counter = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    return np.array([counter.GetCountFingerprintAsNumPy(molecule) for molecule in molecules])


def descriptors(molecules: list[Chem.Mol]) -> np.ndarray:
    rows = [list(Descriptors.CalcMolDescriptors(molecule).values()) for molecule in molecules]
    return np.nan_to_num(np.array(rows, dtype=np.float64), posinf=1e6, neginf=-1e6).clip(-1e6, 1e6)


FEATURES = {"Morgan fragments": fragments, "RDKit descriptors": descriptors}


def test_metric(dataset: Dataset, x: np.ndarray, seed: int) -> float:
    """Of a forest that has learned from the training molecules, by the data's own metric."""
    graphs, task, split = dataset.graphs, dataset.task, dataset.split
    assert graphs.y is not None
    y = graphs.y.numpy()[:, 0]
    forest = RandomForestClassifier if task.kind == "binary" else RandomForestRegressor
    learner = forest(TREES, max_features=1 / 3, n_jobs=-1, random_state=seed)
    learner.fit(x[split["train"]], y[split["train"]])
    answers = learner.predict_proba if task.kind == "binary" else learner.predict
    pred = torch.from_numpy(answers(x[split["test"]])).reshape(len(split["test"]), -1)
    # A metric of two classes heeds the order alone, so that a probability serves as a logit.
    return evaluate(dataset.metric, pred[:, -1:], graphs.y[split["test"]], task)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="a CSV of SMILES, or an SDF")
    parser.add_argument("--target", help="its column of numbers, or of labels 0 and 1")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--out", type=Path, help="a JSON file for the metrics")
    options = parser.parse_args(arguments)
    dataset = load_dataset(options.table, target=options.target)
    if dataset.task.kind not in ("regression", "binary") or dataset.task.num_outputs > 1:
        parser.error("give one --target, of numbers or of labels 0 and 1")
    found: dict[str, list[float]] = {}
    with BlockLogs():
        molecules = [Chem.MolFromSmiles(dataset.smiles[id]) for id in dataset.graphs.ids.tolist()]
        for name, describe in FEATURES.items():
            x = describe(molecules)
            found[name] = [test_metric(dataset, x, seed) for seed in range(options.seeds)]
            print(f"forest of {name}: test {dataset.metric} {Spread.of(found[name])}")
    if options.out is not None:
        document = {"data": dataset.name, "metric": dataset.metric, "trees": TREES, "seeds": found}
        atomic_write_text(options.out, json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
