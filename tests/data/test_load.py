"""From a name or file to a data set that can be trained on."""

from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from grant_fast.data.dataset import default_metric
from grant_fast.data.graphon import generate
from grant_fast.data.load import GENERATED_FRACTIONS, load_dataset
from grant_fast.data.splits import random_split
from grant_fast.errors import InputError
from grant_fast.tasks import Kind, Task
from grant_fast.training.metrics import check_metric
from tests.data.parts import assert_covers, parts

RINGS = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "c1ccsc1", "C1CCCC1"]


def test_data_are_float32_whatever_is_usual(double_is_usual: None) -> None:
    graphs = load_dataset("gen-reg", num_graphs=12, progress=False).graphs
    assert graphs.y is not None
    assert graphs.x.dtype == graphs.y.dtype == torch.float32
    assert torch.get_default_dtype() == torch.float64


class TestMolecules:
    @pytest.fixture(autouse=True)
    def packages(self) -> None:
        pytest.importorskip("rdkit")
        pytest.importorskip("ogb")

    @pytest.fixture
    def csv_file(self, tmp_path: Path) -> Callable[[list[str]], Path]:
        def write(rows: list[str], header: str = "smiles,y") -> Path:
            path = tmp_path / "rings.csv"
            path.write_text("\n".join([header, *rows]) + "\n")
            return path

        return write

    def test_defaults(self, csv_file: Callable) -> None:
        path = csv_file([f"C{ring},{i}.5" for i, ring in enumerate(RINGS * 2)])
        dataset = load_dataset(str(path), progress=False)
        assert dataset.name == "rings"
        assert dataset.task == Task("regression", "graph", 1, ("y",))
        assert (dataset.metric, dataset.encoder) == ("mae", "atom")
        assert dataset.graphs.num_graphs == 12
        assert dataset.graphs.x.dtype == torch.uint8
        assert dataset.graphs.y is not None
        assert dataset.graphs.y[:2].tolist() == [[0.5], [1.5]]
        assert_covers(dataset)
        rings = {part: {i % 6 for i in ids} for part, ids in parts(dataset).items()}
        assert sum(map(len, rings.values())) == 6  # by scaffold: no ring in two parts

    def test_labels_that_fit_no_task_are_named_by_place(self, csv_file: Callable) -> None:
        path = csv_file(["C1,1", "C,", *(f"{ring},{i}" for i, ring in enumerate(RINGS))])
        with pytest.raises(InputError, match=r"rings.csv: .*found 2 in row 6, column 'y': use"):
            load_dataset(path, task="binary", split="random", progress=False)

    def test_first_rows_without_a_label_are_too_few(self, csv_file: Callable) -> None:
        path = csv_file(["C,", "CC,", "CCC,", "CO,1"])
        with pytest.raises(
            InputError, match=r"first 3 rows of .*rings\.csv has a label: take more"
        ):
            load_dataset(path, num_graphs=3, progress=False)

    def test_random_split_when_asked_for(self, csv_file: Callable) -> None:
        path = csv_file([f"{'C' * i},{i}" for i in range(1, 21)])
        dataset = load_dataset(path, split="random", seed=1, progress=False)
        assert dataset.sizes == (16, 2, 2)
        again = load_dataset(path, split="random", seed=1, progress=False)
        assert parts(dataset) == parts(again)

    def test_a_column_of_two_parts_has_valid_drawn_from_train(self, csv_file: Callable) -> None:
        rows = [f"{'C' * (i % 9 + 1)}O,{'test' if i % 4 == 0 else 'train'},{i}" for i in range(40)]
        path = csv_file(rows, header="smiles,fold,y")
        first, again, other = (
            load_dataset(path, split_column="fold", seed=seed, progress=False) for seed in (0, 0, 1)
        )
        assert (first.sizes, first.splitting) == ((27, 3, 10), "given train/test")
        assert_covers(first)
        assert parts(first)["test"] == list(range(0, 40, 4))
        assert parts(first) == parts(again) != parts(other)
        few = load_dataset(path, split_column="fold", num_graphs=8, progress=False)
        assert few.sizes == (5, 1, 2)
        late = csv_file([*rows, "CCS,valid,1"], header="smiles,fold,y")
        with pytest.raises(InputError, match="is in valid: take more of them"):
            load_dataset(late, split_column="fold", num_graphs=8, progress=False)
        lone = csv_file(["C,train,1", "CC,test,2", "CCC,test,3"], header="smiles,fold,y")
        with pytest.raises(InputError, match="is in valid: mark some rows 'valid' in the column"):
            load_dataset(lone, split_column="fold", progress=False)

    def test_a_column_may_say_which_part_a_row_is_in(self, csv_file: Callable) -> None:
        said = ["Train", "test", "val", "Training ", "validation", "dev", " testing", "train"]
        rows = [f"{'C' * i},{part},{i}" for i, part in enumerate(said, 1)]
        rows[2:2] = ["nonsense,test,1", "CC,train,"]
        path = csv_file(rows, header="smiles,fold,y")
        dataset = load_dataset(path, split_column="fold", progress=False)
        assert parts(dataset) == {"train": [0, 3, 7], "valid": [2, 4, 5], "test": [1, 6]}
        assert (dataset.splitting, dataset.task.names) == ("given", ("y",))
        assert dataset.graphs.ids.tolist() == [2, 3, 6, 7, 8, 9, 10, 11]
        with pytest.raises(InputError, match="row 3, column 'fold': 'x' is not a part of a split"):
            wrong = csv_file(["C,train,1", "CC,x,2"], header="smiles,fold,y")
            load_dataset(wrong, split_column="fold", progress=False)
        with pytest.raises(InputError, match=r"row 2, column 'fold': the cell is empty: .* or del"):
            empty = csv_file(["C,,1", "CC,test,2"], header="smiles,fold,y")
            load_dataset(empty, split_column="fold", progress=False)
        message = "none of the 6 graphs of rings is in test: mark some rows 'test' in the column"
        with pytest.raises(InputError, match=message):
            hollow = csv_file(
                [f"{'C' * i},{said[i % 2 * 2]},{i}" for i in range(1, 7)], "smiles,fold,y"
            )
            load_dataset(hollow, split_column="fold", progress=False)
        with pytest.raises(InputError, match="is in test: take more of them, or use split="):
            load_dataset(hollow, split_column="fold", num_graphs=4, progress=False)
        rows = ["C,train,1", "CC,train,2", "CO,test,3", "CC,valid,", "X,valid,1"]
        left_out = r"valid \(2 without a label or a valid SMILES are left out\).* column 'fold'"
        with pytest.raises(InputError, match=left_out):
            hollow = csv_file(rows, "smiles,fold,y")
            load_dataset(hollow, split_column="fold", progress=False)
        for words, message in (
            (
                {"split_column": "z"},
                "no column called 'z': give split_column= one of 'smiles', 'fold', 'y'",
            ),
            (
                {"split_column": "y", "target": ["y"]},
                "'y' cannot be both the split column and a target",
            ),
        ):
            with pytest.raises(InputError, match=message):
                load_dataset(path, **words, progress=False)

    def test_bad_and_unlabelled_rows_are_counted_and_left_out(self, csv_file: Callable) -> None:
        rows = [f"{ring},{i % 2}" for i, ring in enumerate(RINGS)]
        rows[1:1] = ["C1,1", "CC,", ",1"]
        dataset = load_dataset(csv_file(rows), split="random", progress=False)
        assert dataset.skipped == [(3, "C1"), (5, "")]
        assert dataset.unlabelled == 1
        assert dataset.graphs.num_graphs == 6
        assert dataset.task.kind == "binary"
        assert dataset.metric == "roc_auc"
        assert dataset.graphs.y is not None
        assert dataset.graphs.y[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
        assert_covers(dataset)

    def test_strict_stops_at_the_first_bad_row(self, csv_file: Callable) -> None:
        path = csv_file([f"{ring},1" for ring in RINGS] + ["C1,0", "C2,0"])
        message = r"rings.csv row 8: 'C1' is not a valid SMILES \(2 such in the file\).*strict=True"
        with pytest.raises(InputError, match=message):
            load_dataset(path, strict=True, progress=False)

    def test_nothing_parsable_is_an_error_anyway(self, csv_file: Callable) -> None:
        with pytest.raises(
            InputError, match=r"column 'smiles' holds no valid SMILES \('C1', 'C2'\): name"
        ):
            load_dataset(csv_file(["C1,0", "C2,1"]), progress=False)

    def test_too_few_left_to_split_names_what_was_left_out(self, csv_file: Callable) -> None:
        path = csv_file([f"{RINGS[0]},1", "C1,0", f"{RINGS[1]},0"])
        message = r"row 3: 'C1' is not a valid SMILES \(1 such.*left, 2 of 3, is too few to split"
        with pytest.raises(InputError, match=message):
            load_dataset(path, progress=False)

    def test_several_targets_with_gaps(self, csv_file: Callable) -> None:
        rows = [f"{ring},{i % 2},{'' if i else 1}" for i, ring in enumerate(RINGS)]
        path = csv_file(rows, header="smiles,a,b")
        dataset = load_dataset(path, target=["b", "a"], split="random", progress=False)
        assert dataset.task == Task("multilabel", "graph", 2, ("b", "a"))
        assert dataset.metric == "roc_auc"
        assert dataset.unlabelled == 0
        assert dataset.graphs.y is not None
        assert int(dataset.graphs.y.isnan().sum()) == 5

    @pytest.mark.parametrize(("target", "names"), [("all", ("logS", "S")), ("S", ("S",))])
    def test_a_string_is_one_target_or_all(
        self, csv_file: Callable, target: str, names: tuple[str, ...]
    ) -> None:
        path = csv_file([f"{'C' * i},{i},{i}" for i in range(1, 11)], header="smiles,logS,S")
        dataset = load_dataset(path, target=target, split="random", progress=False)
        assert dataset.task.names == names
        assert dataset.metric == ("mae" if len(names) == 1 else "r2")

    def test_classes_when_asked_for(self, csv_file: Callable) -> None:
        path = csv_file([f"{ring},{i % 3}" for i, ring in enumerate(RINGS)])
        dataset = load_dataset(path, task="multiclass", split="random", progress=False)
        assert (dataset.task.kind, dataset.task.num_outputs) == ("multiclass", 3)
        assert dataset.metric == "accuracy"
        assert dataset.graphs.y is not None
        assert dataset.graphs.y.tolist() == [0, 1, 2, 0, 1, 2]

    def test_only_the_first_rows(self, csv_file: Callable) -> None:
        path = csv_file([f"C{ring},1.5" for ring in RINGS * 3] + ["nonsense,1.5"])
        dataset = load_dataset(path, num_graphs=12, strict=True, progress=False)
        assert dataset.graphs.num_graphs == 12

    def test_packing_keeps_everything(self, csv_file: Callable, tmp_path: Path) -> None:
        path = csv_file([f"C{ring},{i % 2}" for i, ring in enumerate(RINGS * 3)])
        dataset = load_dataset(path, progress=False)
        dataset.save(tmp_path / "rings.gfast")
        restored = load_dataset(tmp_path / "rings.gfast")
        assert restored.task == dataset.task
        assert parts(restored) == parts(dataset)
        assert (restored.name, restored.metric) == ("rings", "roc_auc")
        assert restored.encoder == "atom"
        assert torch.equal(restored.graphs.x, dataset.graphs.x)

    def test_real_molecules(self, shared_data: Path) -> None:
        dataset = load_dataset(shared_data / "esol.csv", progress=False)
        assert dataset.task == Task("regression", "graph", 1, ("logSolubility",))
        assert dataset.graphs.num_graphs == 1128
        assert_covers(dataset)


class TestGenerated:
    def test_regression(self) -> None:
        dataset = load_dataset("gen-reg", num_graphs=300, seed=2, progress=False)
        drawn = random_split(300, GENERATED_FRACTIONS, 2)
        assert all(torch.equal(dataset.split[part], where) for part, where in drawn.items())
        assert dataset.task == Task("regression", "node", 1)
        assert (dataset.metric, dataset.encoder) == ("mae", None)
        assert dataset.sizes == (180, 60, 60)
        assert_covers(dataset)
        expected = generate("gen-reg", 300, seed=2)
        assert torch.equal(dataset.graphs.x, expected.x)
        assert dataset.graphs.y is not None
        assert expected.y is not None
        assert torch.equal(dataset.graphs.y, expected.y)
        assert dataset.graphs.ids.tolist() == list(range(300))
        batch = dataset.graphs.batch([299])
        last = (expected.batch == 299).nonzero()[:, 0]
        edges = expected.edge_index[:, expected.edge_index[0] >= last[0]] - last[0]
        assert set(map(tuple, batch.edge_index.T.tolist())) == set(map(tuple, edges.T.tolist()))

    def test_classes(self) -> None:
        dataset = load_dataset("gen-cls", num_graphs=5, progress=False)
        assert dataset.task == Task("multiclass", "node", 10)
        assert dataset.metric == "roc_auc"
        assert dataset.graphs.y is not None
        assert dataset.graphs.y.dtype == torch.int64

    def test_task_cannot_be_another(self) -> None:
        with pytest.raises(InputError, match="gen-cls is a multiclass task, not regression"):
            load_dataset("gen-cls", num_graphs=5, task="regression", progress=False)


class TestOGB:
    @pytest.fixture(autouse=True)
    def folder(
        self, tmp_path: Path, write_ogb_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("pandas")
        monkeypatch.chdir(tmp_path)  # OGB's folder is `dataset` where one stands
        write_ogb_folder(tmp_path / "dataset" / "ogbg_molhiv")
        numbers = {"raw/graph-label": "-1.5\n2\n0\n1\n"}
        write_ogb_folder(tmp_path / "dataset" / "ogbg_molesol", **numbers)
        several = {"raw/graph-label": "1,\n0,1\n,0\n1,1\n"}
        write_ogb_folder(tmp_path / "dataset" / "ogbg_molpcba", **several)

    def test_binary(self) -> None:
        dataset = load_dataset("ogbg-molhiv", progress=False)
        assert dataset.task == Task("binary", "graph", 1)
        assert (dataset.name, dataset.metric, dataset.encoder) == ("ogbg-molhiv", "roc_auc", "atom")
        assert parts(dataset) == {"train": [0, 1], "valid": [3], "test": [2]}

    @pytest.mark.parametrize(
        ("name", "task", "metric"),
        [
            ("ogbg-molesol", Task("regression", "graph", 1), "rmse"),
            ("ogbg-molpcba", Task("multilabel", "graph", 2), "ap"),
        ],
    )
    def test_official_metric(self, name: str, task: Task, metric: str) -> None:
        dataset = load_dataset(name, progress=False)
        assert (dataset.task, dataset.metric) == (task, metric)

    def test_another_task_takes_another_metric(self) -> None:
        dataset = load_dataset("ogbg-molhiv", task="regression", progress=False)
        assert (dataset.task.kind, dataset.metric) == ("regression", "mae")

    def test_fewer_graphs_keep_every_part(self) -> None:
        dataset = load_dataset("ogbg-molhiv", num_graphs=3, progress=False)
        found = {part: dataset.graphs.ids[ids].tolist() for part, ids in dataset.split.items()}
        assert found == {"train": [0], "valid": [3], "test": [2]}
        assert_covers(dataset)
        assert_covers(load_dataset("ogbg-molhiv", num_graphs=3, split="random", progress=False))


@pytest.mark.parametrize("source", ["gen-rag", "molecules.txt", "ogbg-ppa", ""])
def test_an_unknown_source_lists_what_is_known(source: str) -> None:
    with pytest.raises(InputError, match=rf"unknown data set '{source}': give gen-reg, gen-cls"):
        load_dataset(source)


def test_a_set_of_molecule_net_is_known_by_ogbs_name() -> None:
    with pytest.raises(InputError, match=r"did you mean ogbg-molesol\?$"):
        load_dataset("ESOL")


@pytest.mark.parametrize("source", [{"smiles": ["C"], "y": [1]}, None, b"molecules.csv"])
def test_what_is_no_path_is_told_how_to_become_graphs(source) -> None:
    kind = type(source).__name__
    with pytest.raises(
        InputError, match=rf"not a {kind}: give one of these, as .*from_dataset.*from_smiles\(df"
    ):
        load_dataset(source)


@pytest.mark.parametrize(
    ("options", "culprit"),
    [
        ({"task": "ranking"}, "unknown task 'ranking': choose one of regression, binary"),
        ({"workers": 0}, "workers=0: give a whole number of at least 1"),
        ({"split": "time"}, "unknown split 'time': choose one of random, scaffold"),
        ({"num_graphs": 0}, "num_graphs=0: give a whole number of at least 3"),
        ({"num_graphs": 3.5}, "num_graphs=3.5: give a whole number"),
        ({"seed": -1}, "seed=-1: give a whole number of at least 0"),
        ({"seed": "a"}, "seed='a': give a whole number"),
        ({"num_graphs": -4}, "num_graphs=-4"),
        ({"split": "scaffold"}, "split='scaffold' needs SMILES, which 'gen-reg'"),
        ({"target": ["y"]}, "targets can be chosen only in CSV files and SDFs, not in 'gen-reg'"),
        (
            {"split_column": "s"},
            "columns and targets can be chosen only in CSV files and SDFs, not in 'gen-reg'",
        ),
        ({"split": "random", "split_column": "s"}, "random or in the column 's': choose one"),
        (
            {"smiles_column": "s"},
            "targets can be chosen only in CSV files and SDFs, not in 'gen-reg'",
        ),
    ],
)
def test_nonsense_options_are_named(options: dict, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        load_dataset("gen-reg", **options)


def test_a_file_without_its_ending_is_not_there_whatever_is_asked_of_it(tmp_path) -> None:
    (tmp_path / "mine.csv").write_text("smiles,y\nC,1\n")
    for options in ({}, {"target": ["y"]}, {"smiles_column": "smiles"}):
        with pytest.raises(InputError, match=r"unknown data set .*mine'.*did you mean .*mine\.csv"):
            load_dataset(tmp_path / "mine", **options)
    with pytest.raises(InputError, match=r"unknown data set .*none'.*twin:NAME$"):  # no likely one
        load_dataset(tmp_path / "none")
    with pytest.raises(InputError, match=r"unknown data set 'HIV'.*did you mean ogbg-molhiv"):
        load_dataset("HIV", target="HIV_active")


def test_every_task_has_a_metric_that_fits_it_and_that_no_unit_weighs() -> None:
    for kind in get_args(Kind):
        for outputs in (1,) if kind == "binary" else (2, 3):
            task = Task(kind, num_outputs=outputs)
            check_metric(default_metric(task), task)
    assert default_metric(Task("regression")) == "mae"
    assert default_metric(Task("regression", num_outputs=2)) == "r2"


def test_grouping_puts_each_part_side_by_side_and_keeps_every_identity():
    dataset = load_dataset("gen-reg", num_graphs=20, progress=False)
    grouped = dataset.grouped()
    for part, positions in grouped.split.items():
        assert positions.diff().eq(1).all()
        assert torch.equal(grouped.graphs.ids[positions], dataset.split[part])
        for mine, theirs in zip(positions[:2].tolist(), dataset.split[part][:2], strict=True):
            assert torch.equal(grouped.graphs[mine].x, dataset.graphs[int(theirs)].x)
    assert grouped.grouped() is grouped


def test_names_and_a_seed_may_be_numpys(tmp_path) -> None:
    pytest.importorskip("rdkit")
    rows = [f"{'C' * n},{n},{n * n}" for n in range(1, 13)]
    (path := tmp_path / "t.csv").write_text("\n".join(["smiles,a,b", *rows]))
    options = {"split": "random", "progress": False}
    found = load_dataset(path, target=np.array(["a", "b"]), seed=np.int64(1), **options)
    assert found.targets == ("a", "b")
    want = load_dataset(path, target=["a", "b"], seed=1, **options)
    assert torch.equal(found.split["test"], want.split["test"])


def test_too_few_graphs_are_said_of_their_file_with_what_was_left_out(tmp_path) -> None:
    pytest.importorskip("rdkit")
    path = tmp_path / "two.csv"
    path.write_text("smiles,y\nC,1\nCC,2\nCCC,\nCO,\n")
    for split, says in (("random", "two"), (None, r"two\.csv")):
        with pytest.raises(InputError, match=rf"{says}: 2 graphs cannot be .* \(2 without a label"):
            load_dataset(path, split=split)
    path.write_text("smiles,y\nC,1\nCC,2\nCCC,3\n")
    with pytest.raises(InputError, match=r"two\.csv: the scaffold split leaves train empty"):
        load_dataset(path)


def test_arguments_of_another_type_are_named(tmp_path) -> None:
    (path := tmp_path / "t.csv").write_text("smiles,y\nC,1\nCC,2\nCCC,3\n")
    for wrong in ({"target": 5}, {"target": [5]}, {"split_column": ["y"]}, {"smiles_column": 0}):
        with pytest.raises(InputError, match=r"the column .* is no name: give a string"):
            load_dataset(path, **wrong)
    with pytest.raises(InputError, match=r"give a number below 2\^63"):
        load_dataset(path, seed=1 << 70)
