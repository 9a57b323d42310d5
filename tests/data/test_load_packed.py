"""From a packed file to a data set that can be trained on."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grant_fast.data.dataset import Dataset, default_metric
from grant_fast.data.load import load_dataset
from grant_fast.errors import InputError
from grant_fast.graphs import PackedGraphs
from grant_fast.tasks import Task
from tests.cases import Case
from tests.data.parts import assert_covers, parts


class TestPacked:
    @pytest.fixture
    def packed(self, tmp_path: Path) -> Path:
        load_dataset("gen-cls", num_graphs=20, progress=False).save(tmp_path / "a.gfast")
        return tmp_path / "a.gfast"

    def test_classes_with_names_are_no_other_task(self, packed: Path) -> None:
        dataset = load_dataset(packed)
        named = replace(dataset, task=replace(dataset.task, names=tuple("abcdefghij")))
        named.save(packed)
        with pytest.raises(
            InputError, match=r"\('a', 'b', 'c', …\) are a multiclass task, not reg"
        ):
            load_dataset(packed, task="regression")

    @pytest.mark.parametrize("names", [(), ("class",)])
    def test_another_task_keeps_the_name_of_the_target(self, packed: Path, names) -> None:
        dataset = load_dataset(packed)
        replace(dataset, task=replace(dataset.task, names=names)).save(packed)
        assert load_dataset(packed).task.names == names
        assert load_dataset(packed, task="regression").task == Task("regression", "node", 1, names)

    def test_a_part_without_graphs_is_refused(self, packed: Path) -> None:
        with pytest.raises(InputError, match="holds no graphs: give some"):
            load_dataset(load_dataset(packed).graphs.subset(slice(0, 0)))

    def test_everything_is_restored(self, packed: Path) -> None:
        original = load_dataset("gen-cls", num_graphs=20, progress=False)
        dataset = load_dataset(packed)
        assert dataset.name == "gen-cls"
        assert dataset.task == original.task
        assert parts(dataset) == parts(original)
        assert torch.equal(dataset.graphs.y, original.graphs.y)  # type: ignore[arg-type]

    def test_only_the_first_graphs(self, packed: Path) -> None:
        whole, dataset = load_dataset(packed), load_dataset(packed, num_graphs=15)
        assert dataset.graphs.num_graphs == 15
        assert parts(dataset) == {
            part: [i for i in ids if i < 15] for part, ids in parts(whole).items()
        }

    def test_a_new_random_split(self, packed: Path) -> None:
        dataset = load_dataset(packed, split="random", seed=9)
        assert len(dataset.split["train"]) == 16
        assert parts(dataset) != parts(load_dataset(packed, split="random", seed=10))

    def test_split_survives_taking_a_subset(self, packed: Path, tmp_path: Path) -> None:
        dataset = load_dataset(packed)
        some = torch.cat([positions[-2:] for positions in dataset.split.values()]).flip(0)
        dataset.graphs.subset(some).save(tmp_path / "b.gfast")
        restored = load_dataset(tmp_path / "b.gfast")
        assert restored.graphs.num_graphs == 6
        for part, positions in restored.split.items():
            assert (
                restored.graphs.ids[positions].sort().values.tolist() == parts(dataset)[part][-2:]
            )

    @pytest.mark.parametrize("joins", ["its own parts", "some twice", "another's"])
    def test_a_split_is_joined_where_it_holds(
        self, joins: str, packed: Path, tmp_path: Path
    ) -> None:
        """It says where each id belongs: numbered anew, graphs were in the parts of others."""
        replace(load_dataset(packed), splitting="scaffold").save(packed)
        graphs = PackedGraphs.load(packed)
        first, second = graphs[:12], graphs[12:]
        if joins == "some twice":
            first, second = graphs[:6], graphs[4:8]
        elif joins == "another's":
            second.meta["split"] = second.meta["split"].translate(str.maketrans("te", "et"))
        PackedGraphs.concat([first, second]).save(tmp_path / "b.gfast")
        joined = load_dataset(tmp_path / "b.gfast")
        assert_covers(joined)
        kept = joins == "its own parts"
        assert joined.splitting == ("scaffold" if kept else "random")
        assert (parts(joined) == parts(load_dataset(packed))) == kept
        assert graphs.meta["split"]

    def test_a_graph_in_two_parts_is_not_saved(self, packed: Path, tmp_path: Path) -> None:
        """A part of the split is stored for each id, and so the last one for all that share it."""
        dataset = load_dataset(packed)
        train, valid, test = torch.arange(20).split([15, 2, 3])
        drawn = dataset.graphs[[*range(19), 0]]
        again = replace(dataset, graphs=drawn, split={"train": train, "valid": valid, "test": test})
        with pytest.raises(
            InputError, match=r"graphs with id 0 are in test and in another.*concat"
        ):
            again.save(tmp_path / "b.gfast")
        assert not (tmp_path / "b.gfast").exists()
        again = replace(again, graphs=PackedGraphs.concat([drawn]))
        again.save(tmp_path / "b.gfast")
        assert parts(load_dataset(tmp_path / "b.gfast")) == parts(again)

    def test_a_part_that_is_gone_is_named(self, packed: Path, tmp_path: Path) -> None:
        dataset = load_dataset(packed)
        dataset.graphs.subset(dataset.split["train"]).save(tmp_path / "b.gfast")
        with pytest.raises(InputError, match=r"of gen-cls is in valid.*split='random'"):
            load_dataset(tmp_path / "b.gfast")

    def test_graphs_saved_without_description(self, tmp_path: Path) -> None:
        graphs = PackedGraphs.from_arrays(
            x=torch.ones(12, 2),
            edge_index=torch.empty(2, 0, dtype=torch.int64),
            batch=torch.arange(12),
            y=torch.arange(12) % 2,
            y_level="graph",
        )
        graphs.save(tmp_path / "mine.gfast")
        dataset = load_dataset(tmp_path / "mine.gfast")
        assert dataset.name == "mine"
        assert dataset.task == Task("binary", "graph", 1)
        assert (dataset.metric, dataset.encoder) == ("roc_auc", None)
        assert_covers(dataset)
        regression = load_dataset(tmp_path / "mine.gfast", task="regression")
        assert (regression.task.kind, regression.metric) == ("regression", "mae")

    def test_it_is_known_how_a_split_was_made(self, packed: Path) -> None:
        replace(load_dataset(packed), splitting="scaffold").save(packed)
        assert load_dataset(packed).splitting == "scaffold"
        older = PackedGraphs.load(packed)
        mine = Dataset("mine", older, load_dataset(packed).task, load_dataset(packed).split, "mae")
        assert mine.splitting == "given"
        del older.meta["splitting"]
        assert load_dataset(older).splitting == "stored"

    def test_graphs_in_memory_are_taken_as_those_of_a_file(self, packed: Path) -> None:
        of_file = load_dataset(packed)
        same = load_dataset(of_file.graphs)
        assert (same.name, same.task, same.metric) == (of_file.name, of_file.task, of_file.metric)
        assert parts(same) == parts(of_file) and same.splitting == of_file.splitting
        few = load_dataset(of_file.graphs, num_graphs=9, split="random", seed=1)
        assert sum(few.sizes) == few.graphs.num_graphs == 9

    @pytest.mark.parametrize("saved", [False, True])
    @pytest.mark.parametrize(
        ("y", "task"),
        [
            (lambda n: torch.arange(n) % 3, Task("multiclass", "graph", 3)),
            (lambda n: torch.randn(n, 2), Task("regression", "graph", 2)),
            (lambda n: (torch.arange(n) % 2).float(), Task("binary", "graph", 1)),
        ],
    )
    def test_other_targets_pose_another_task(self, packed: Path, tmp_path, saved, y, task) -> None:
        graphs = load_dataset(packed).graphs
        graphs.y = y(len(graphs))
        if saved:
            graphs.save(tmp_path / "again.gfast")
        again = load_dataset(tmp_path / "again.gfast" if saved else graphs)
        assert (again.task, again.metric) == (task, default_metric(task))
        assert parts(again) == parts(load_dataset(packed))

    def test_a_task_that_does_not_fit_the_targets_is_not_taken(
        self, packed: Path, tmp_path
    ) -> None:
        graphs = load_dataset(packed).graphs
        meta = graphs.meta
        graphs.y = torch.arange(len(graphs)) % 3
        graphs.meta = meta  # as a file of an older version has it
        assert load_dataset(graphs).task == Task("multiclass", "graph", 3)

    def test_to_save_them_leaves_graphs_as_they_are(self, tmp_path: Path) -> None:
        graphs = PackedGraphs.from_smiles(["CC", "CO"] * 10, torch.randn(20, 1))
        load_dataset(graphs).save(tmp_path / "mine.gfast")
        assert graphs.meta == {"encoder": "atom"}

    def test_graphs_in_memory_are_left_as_they_are(self) -> None:
        y = torch.tensor([[3.0], [5.0]]).repeat(10, 1)
        graphs = PackedGraphs.from_smiles(["CC", "CO"] * 10, y)
        dataset = load_dataset(graphs, task="multiclass")
        assert (dataset.name, dataset.encoder, dataset.splitting) == ("graphs", "atom", "random")
        assert dataset.task == Task("multiclass", "graph", 2, ("3", "5"))
        assert torch.equal(graphs.y, y) and dataset.graphs.y.tolist() == [0, 1] * 10

    @pytest.mark.parametrize(
        "of_files", [{"target": "y"}, {"smiles_column": "y"}, {"split": "scaffold"}]
    )
    def test_graphs_in_memory_have_no_columns(self, packed: Path, of_files) -> None:
        with pytest.raises(InputError, match="a PackedGraphs has no columns and no SMILES"):
            load_dataset(PackedGraphs.load(packed), **of_files)

    def test_graphs_without_targets_are_refused(self, tmp_path: Path) -> None:
        PackedGraphs.from_arrays(
            torch.ones(4, 2), torch.empty(2, 0, dtype=torch.int64), torch.arange(4)
        ).save(tmp_path / "bare.gfast")
        with pytest.raises(InputError, match=r"bare.gfast holds no targets"):
            load_dataset(tmp_path / "bare.gfast")

    @pytest.mark.parametrize(
        "damage",
        [
            {"task": {"kind": "multiclass"}},
            {"task": 3},
            {"split": "t"},
            {"split": "é" * 20},
            {"split": 4},
            {"targets": 5},
            {"metric": []},
            {"name": ["a"]},
            {"name": "a\0b"},
        ],
    )
    def test_a_damaged_description_is_named(self, packed: Path, damage: dict) -> None:
        graphs = PackedGraphs.load(packed)
        graphs.meta.update(damage)
        graphs.save(packed)
        with pytest.raises(InputError, match=r"a.gfast has a damaged description"):
            load_dataset(packed)

    def test_only_gfast_files_are_written(self, packed: Path, tmp_path: Path) -> None:
        with pytest.raises(InputError, match=r"cannot pack into .*a.csv.*ends in .gfast"):
            load_dataset(packed).save(tmp_path / "a.csv")
        assert not (tmp_path / "a.csv").exists()

    def test_other_ids_forget_the_stored_split(self, packed: Path) -> None:
        graphs = PackedGraphs.load(packed)
        graphs.ids = torch.arange(20).flip(0)
        assert "split" not in graphs.meta and "task" in graphs.meta
        assert_covers(load_dataset(graphs, split="random"))

    def test_ids_that_no_file_holds_are_refused_before_it_is_written(
        self, packed: Path, tmp_path: Path
    ) -> None:
        dataset, out = load_dataset(packed), tmp_path / "ids.gfast"
        dataset.graphs.ids = torch.arange(20) + 49_999_980
        dataset.save(out)
        again = load_dataset(out)
        assert again.graphs.ids.tolist() == dataset.graphs.ids.tolist()
        assert all(torch.equal(again.split[part], dataset.split[part]) for part in dataset.split)
        out.unlink()
        dataset.graphs.ids = torch.arange(20) + 2**45
        with pytest.raises(InputError, match=r"ids below 50,000,000, and one has 35,184.*renumber"):
            dataset.save(out)
        assert not out.exists()
        for ids in (torch.arange(20) - 1, torch.ones(20)):
            with pytest.raises(InputError, match="ids must be int64 and not below 0"):
                dataset.graphs.ids = ids


def test_edges_features_are_kept_by_either_way(tmp_path):
    graphs = Case().graphs
    graphs.edge_attr = torch.ones(graphs.num_edges, 2)
    graphs.y = torch.ones(len(graphs), 1)
    graphs.save(tmp_path / "a.gfast")
    for source in (graphs, tmp_path / "a.gfast"):
        assert load_dataset(source, edge_attr=True).graphs.edge_attr.shape == (graphs.num_edges, 2)
