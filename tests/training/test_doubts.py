"""What is said of a data set that may not be as its user thinks."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from grant_fast.data.dataset import Dataset
from grant_fast.data.load import load_dataset
from grant_fast.tasks import Task
from grant_fast.training import doubts as module
from grant_fast.training.config import RunConfig
from grant_fast.training.doubts import doubts
from tests.rings import make_dataset

FEW = module._FEW
CHAINS = ["C" * n + "O" for n in range(1, 31)]


@pytest.fixture(autouse=True)
def one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sets here are tiny, and nothing is to be said of that but where it is tested."""
    monkeypatch.setattr(module, "_FEW", 1)


def said(folder: Path, rows: list[tuple[str, object]], target: str = "y") -> list[str]:
    """The doubts about a table of molecules and labels."""
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    table = folder / "table.csv"
    table.write_text(f"smiles,{target}\n" + "\n".join(f"{s},{y}" for s, y in rows))
    dataset = load_dataset(table, split="random", progress=False)
    return doubts(dataset, RunConfig(source=str(table)))


def spread(values: list[object]) -> list[tuple[str, object]]:
    """Chains with labels 0, 0.1, 0.2, …, the first of which are replaced."""
    return list(zip(CHAINS, values + [n / 10 for n in range(len(values), 30)], strict=True))


def test_an_ordinary_table_raises_none(tmp_path: Path) -> None:
    assert said(tmp_path, spread([])) == []


@pytest.mark.parametrize("mark", ["-999", "-9999999.0", "99"])
@pytest.mark.parametrize(
    ("times", "words"), [(1, "label of target y is"), (3, "labels of target y are")]
)
def test_labels_that_may_mean_not_measured(
    tmp_path: Path, mark: str, times: int, words: str
) -> None:
    assert said(tmp_path, spread([mark] * times)) == [
        f"{times} {words} {int(float(mark))}, far from all others: "
        'if that means "not measured", empty such cells'
    ]


def test_a_mark_among_the_targets_of_nodes_is_said_too():
    data = make_dataset(level="node")
    data.graphs.y[3, 0] = -9999.0
    (line,) = (line for line in doubts(data, RunConfig(source="x.gfast")) if "-9999" in line)
    assert "is -9999, far from all others: if that means" in line


def test_classes_that_a_script_packed_as_a_column_look_like_classes():
    data, config = make_dataset(), RunConfig(source="x.gfast")
    data.task = Task("regression")
    data.graphs.y = torch.arange(len(data.graphs.y))[:, None] % 3.0
    (line,) = (line for line in doubts(data, config) if "look like classes" in line)
    assert line.endswith("for classification, give task='multiclass'")
    data.graphs.meta["task"] = {}  # as of a set whose task was chosen
    assert not any("look like classes" in line for line in doubts(data, config))


@pytest.mark.parametrize("label", ["", "3.5", "9", "11"])
def test_labels_not_so_far_from_others_are_the_users_own(tmp_path: Path, label: str) -> None:
    assert said(tmp_path, spread([label])) == []


@pytest.mark.parametrize("label", ["-999.5", "-1000", "12", "1e30"])
def test_a_label_far_from_all_others_may_be_a_slip(tmp_path: Path, label: str) -> None:
    assert said(tmp_path, spread([0, 0.1, label])) == [
        "a label of target y is far from all others, and outweighs them "
        f"({float(label):.6g} in row 4): correct it, if it is a slip"
    ]


def test_a_few_labels_may_be_slips_on_either_side(tmp_path: Path) -> None:
    assert said(tmp_path, spread([0, 1e20, "", -40, 15])) == [
        "3 labels of target y are far from the others, and outweigh them "
        "(such as 1e+20 in row 3): correct it, if it is a slip"
    ]
    many = [("C" * n + "O", 12 if n % 8 else n / 80) for n in range(1, 81)]
    assert not any("slip" in line for line in said(tmp_path, many))


@pytest.mark.parametrize("slip", ["", 1e12])
def test_labels_of_many_sizes_are_better_learned_by_their_logarithms(
    tmp_path: Path, slip: object
) -> None:
    says = (
        "some labels of target y are more than 100 times its median, and outweigh the others: "
        "learn the logarithms"
    )
    rows: list[tuple[str, object]] = [(s, 10 ** (n / 5)) for n, s in enumerate(CHAINS)]
    rows[0] = (CHAINS[0], slip)
    assert said(tmp_path, rows) == [says]
    rows[1] = (CHAINS[1], -1)  # of which there is no logarithm
    assert says not in said(tmp_path, rows)


def test_a_target_that_numbers_the_rows_is_one_too_many(tmp_path: Path) -> None:
    dataset, config = of_two_targets(tmp_path, [(n + 7, n / 2) for n in range(31)])
    assert doubts(dataset, config) == ["target y only numbers the rows: leave it out"]
    assert said(tmp_path, [(s, n) for n, s in enumerate(CHAINS)]) == []  # it was asked for


def test_nines_among_others_are_labels(tmp_path: Path) -> None:
    rows = [(smiles, 90 + n / 2) for n, smiles in enumerate(CHAINS)]
    assert said(tmp_path, rows) == []


def test_molecules_whose_labels_contradict(tmp_path: Path) -> None:
    rows = [*spread([]), ("OCC", 2.9), ("OCCC", 0.3)]  # CCO is in row 3 with 0.1, CCCO with 0.2
    lines = [line for line in said(tmp_path, rows) if "in training" not in line]
    assert lines == [
        "1 molecule occurs more than once, or as isomers that look alike, with labels that "
        "differ by more than a standard deviation, for example in rows 3 and 32"
    ]
    classes = [(smiles, n % 2) for n, smiles in enumerate(CHAINS)] + [("OC", 1), ("OCC", 1)]
    lines = [line for line in said(tmp_path, classes) if "in training" not in line]
    assert lines == [
        "1 molecule occurs more than once, or as isomers that look alike, with labels that "
        "differ, for example in rows 2 and 32"
    ]


def test_labels_that_mean_not_measured_do_not_hide_contradictions(tmp_path: Path) -> None:
    """As they would where they widened the deviation."""
    rows = [*spread(["-999"] * 2), ("OCCC", 2.9)]  # CCCCO, say; CCCO is in row 4 with 0.2
    lines = [line for line in said(tmp_path, rows) if "in training" not in line]
    assert lines == [
        "2 labels of target y are -999, far from all others: "
        'if that means "not measured", empty such cells',
        "1 molecule occurs more than once, or as isomers that look alike, with labels that "
        "differ by more than a standard deviation, for example in rows 4 and 32",
    ]


def test_labels_of_atoms_are_not_compared(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    table = tmp_path / "table.csv"
    table.write_text("smiles,y\n" + "\n".join(f"{s},{y}" for s, y in spread([])))
    dataset = load_dataset(table, split="random", progress=False)
    dataset.graphs.y = torch.arange(len(dataset.graphs.x), dtype=torch.float32)[:, None]
    dataset = replace(dataset, task=replace(dataset.task, level="node"))
    assert doubts(dataset, RunConfig(source=str(table))) == []


def test_a_target_without_labels_is_no_trouble(tmp_path: Path) -> None:
    dataset, config = of_two_targets(tmp_path, [(n / 3, "") for n in range(30)] + [(1, 2)])
    assert doubts(dataset, config) == [
        "no label in training, so predictions mean nothing: target z"
    ]


def test_a_target_that_validation_cannot_judge_is_named(tmp_path: Path) -> None:
    dataset, config = of_two_targets(tmp_path, [(n / 3, n / 2) for n in range(31)])
    assert doubts(dataset, config) == []
    dataset.graphs.y[dataset.split["valid"][1:], 1] = torch.nan
    assert doubts(dataset, config) == [
        "too few values in valid, so it has no say in which weights are best: target z"
    ]
    assert doubts(dataset, replace(config, metric="mae")) == []
    dataset.graphs.y[dataset.split["valid"], 1] = torch.nan
    assert "no say" in doubts(dataset, replace(config, metric="mae"))[0]


@pytest.mark.parametrize("part", ["valid", "test"])
def test_a_part_on_which_nothing_can_be_measured_is_named(tmp_path: Path, part: str) -> None:
    dataset, config = of_two_targets(tmp_path, [(n / 3, n / 2) for n in range(31)])
    so = "the last weights are kept" if part == "valid" else "nothing is measured there"
    y = dataset.graphs.y
    assert y is not None
    y[dataset.split[part]] = 5
    says = f"the {part} split has labels of only one value, so {so}"
    assert doubts(dataset, replace(config, metric="mae")) == []
    assert doubts(dataset, config) == [says]
    y[dataset.split[part]] = torch.nan
    says = f"the {part} split has no labels, so {so}"
    assert doubts(dataset, config) == doubts(dataset, replace(config, metric="mae")) == [says]


def of_two_targets(folder: Path, labels: list[tuple[object, object]]) -> tuple[Dataset, RunConfig]:
    """A table of chains with labels y and z, of which the first 30 are taken."""
    pytest.importorskip("rdkit")
    pytest.importorskip("ogb")
    table = folder / "table.csv"
    rows = [f"{smiles},{y},{z}" for smiles, (y, z) in zip([*CHAINS, "N"], labels, strict=True)]
    table.write_text("\n".join(["smiles,y,z", *rows]))
    dataset = load_dataset(table, target="all", split="random", num_graphs=30, progress=False)
    return dataset, RunConfig(source=str(table))


def test_targets_of_classes_among_numbers_are_named(tmp_path: Path) -> None:
    labels = [("" if n % 5 == 4 else n % 2, n / 2) for n in range(31)]
    dataset, config = of_two_targets(tmp_path, labels)
    assert doubts(dataset, config)[0] == (
        "1 of 2 targets (y) look like classes: for classification, name those alone as target="
    )
    dataset, config = of_two_targets(tmp_path, [(n % 2, n % 3 - 1) for n in range(31)])
    assert doubts(dataset, config) == [
        "targets look like classes: for classification, name one as target=, and give "
        "task='multiclass'; if -1 means \"not measured\", empty such cells"
    ]


def test_targets_of_classes_are_named_in_a_packed_table_too(tmp_path: Path) -> None:
    def packed(labels: list[tuple[object, object]]) -> list[str]:
        dataset, _ = of_two_targets(tmp_path, labels)
        dataset.save(path := tmp_path / "table.gfast")
        return doubts(load_dataset(path), RunConfig(source=str(path)))

    assert packed([(n % 2, n / 2) for n in range(31)]) == [
        "1 of 2 targets (y) look like classes: for classification, pack the table again with "
        "those alone as target="
    ]
    assert packed([(n % 2, n % 3) for n in range(31)]) == [
        "targets look like classes: for classification, pack the table again with one as "
        "target=, and give task='multiclass'"
    ]


def test_targets_that_nobody_chose_are_what_their_set_says() -> None:
    dataset = make_dataset("regression")
    assert dataset.graphs.y is not None
    dataset.graphs.y = (dataset.graphs.y > 0).float()
    lines = doubts(dataset, RunConfig(source="set.gfast"))
    assert not any("look like classes" in line for line in lines)


def test_a_few_whole_numbers_are_not_advised_to_be_classes(tmp_path: Path) -> None:
    dataset, config = of_two_targets(tmp_path, [(n % 16, n / 2) for n in range(31)])
    assert not any("look like classes" in doubt for doubt in doubts(dataset, config))


@pytest.mark.parametrize(("rare", "expected"), [(1, 1), (2, 1), (5, 0)])
def test_accuracy_where_nearly_all_is_one_class(tmp_path: Path, rare: int, expected: int) -> None:
    kinds = ["low", "mid", "high"] * rare
    rows = list(zip(CHAINS * 3, kinds + ["mid"] * (90 - len(kinds)), strict=True))
    found = [line for line in said(tmp_path, rows) if "accuracy says little" in line]
    assert len(found) == expected
    assert all("of the labels in training are of class mid" in line for line in found)


@pytest.mark.parametrize(
    "mark", ["-", "?", "<NA>", "None", "n.d.", "ND", "Unknown", "NT", "inconclusive"]
)
@pytest.mark.parametrize(("times", "words"), [(1, "1 label is"), (4, "4 labels are")])
def test_a_class_that_may_mean_not_measured(
    tmp_path: Path, mark: str, times: int, words: str
) -> None:
    kinds = [mark] * times + ["active", "inactive"] * 15
    lines = said(tmp_path, list(zip(CHAINS, kinds[:30], strict=True)))
    expected = f'{words} {mark!r}: if that means "not measured", empty such cells'
    assert [line for line in lines if "measured" in line] == [expected]


def test_a_class_that_may_be_another_one_misspelt(tmp_path: Path) -> None:
    hardly = "hardly a label is of class"
    kinds = ["lower", "higher"] * 100
    cases = (
        ([], None),
        (["higehr"], "higehr (1)"),
        (["mid"] * 5, None),
        (["higer"] * 7, "higer (7)"),
    )
    for rare, expected in (*cases, (["higer"] * 12, None), (["higer2"] * 7, None)):
        words = [*kinds[: 200 - len(rare)], *rare]
        rows = [(CHAINS[n % len(CHAINS)], kind) for n, kind in enumerate(words)]
        lines = [line for line in said(tmp_path, rows) if hardly in line]
        says = f"{hardly} {expected}: if that is another one misspelt, correct it"
        assert lines == ([says] if expected else [])


@pytest.mark.parametrize("kinds", [("+", "-"), ("+", "-", "±"), ("no", "yes"), ("1", "2")])
def test_other_classes_are_the_users_own(tmp_path: Path, kinds: tuple[str, ...]) -> None:
    rows = list(zip(CHAINS, kinds * 10, strict=False))
    assert not any("not measured" in line for line in said(tmp_path, rows))


def test_a_split_with_next_to_no_graphs_or_none_of_a_class_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_FEW", FEW)
    small = make_dataset(num_graphs=40)
    small.split = {
        "train": torch.arange(20),
        "valid": torch.arange(20, 30),
        "test": torch.arange(30, 39),
    }
    few = "test has only 9 graphs, so its mae says little"
    assert doubts(small, RunConfig()) == [few]
    assert small.graphs.y is not None
    small.graphs.y = small.graphs.y.index_fill(0, torch.arange(21, 30), torch.nan)
    assert doubts(small, RunConfig()) == ["valid has only 1 graph, so its mae says little", few]
    dataset, y = make_dataset("binary", num_graphs=60), torch.arange(60.0)[:, None] % 2
    dataset.graphs.y = y
    parts = {"train": torch.arange(20), "valid": torch.arange(20, 40), "test": torch.arange(40, 60)}
    chosen = RunConfig(metric="roc_auc")
    assert not any("says little" in line for line in doubts(replace(dataset, split=parts), chosen))
    y[20:40] = 1
    y[22] = y[25] = 0
    y[40:] = 0
    y[47] = 1
    dataset.graphs.y = y
    found = [d for d in doubts(replace(dataset, split=parts), chosen) if "says little" in d]
    assert found == [
        "valid has only 2 negatives, so its roc_auc says little",
        "test has only 1 positive, so its roc_auc says little",
    ]


def test_of_several_targets_those_with_few_labels_are_named(monkeypatch) -> None:
    monkeypatch.setattr(module, "_FEW", FEW)
    y = torch.rand(40, 3)
    y[9:, 1] = y[:, 2] = torch.nan
    task = Task("regression", num_outputs=3, names=("a", "b", "c"))
    few = ["test has fewer than 10 labels of target b, of which the r2 says little"]
    assert module.few_to_judge_by(y, task, "r2", "test") == few
    assert module.few_to_judge_by(y[:, [0, 0, 0]], task, "r2", "test") == []
    y = torch.zeros(40, 3)
    y[:20, 0] = y[3, 1] = 1
    task = Task("multilabel", num_outputs=3)
    few = "test has fewer than 10 positives or negatives of target 1, of which the ap says little"
    assert module.few_to_judge_by(y, task, "ap", "test") == [few]
    assert module.few_to_judge_by(y, task, "accuracy", "test") == []


@pytest.mark.parametrize("names", [("dead", "alive"), ()])
def test_two_classes_with_names_are_counted_too(
    monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(module, "_FEW", FEW)
    dataset, y = make_dataset("multiclass", num_graphs=60), torch.arange(60) % 2
    parts = {"train": torch.arange(20), "valid": torch.arange(20, 40), "test": torch.arange(40, 60)}
    dataset = replace(dataset, split=parts, task=Task("multiclass", num_outputs=2, names=names))
    dataset.graphs.y = y

    def found(metric: str) -> list[str]:
        lines = doubts(dataset, RunConfig(metric=metric))
        return [line for line in lines if "so its" in line]

    assert found("roc_auc") == []
    y[20:39] = 1
    y[20:22], y[22:30] = 0, -100  # not measured
    y[40:] = 0
    y[47] = 1
    dataset.graphs.y = y
    dead, alive = names or ("0", "1")
    assert found("ap") == [
        f"valid has only 2 graphs of class {dead}, so its ap says little",
        f"test has only 1 graph of class {alive}, so its ap says little",
    ]
    assert found("accuracy") == []
    dataset.task = Task("multiclass", num_outputs=3)
    assert found("roc_auc") == []


@pytest.mark.parametrize(("rare", "share"), [(2, "90%"), (1, "95%"), (3, None), (0, None)])
def test_a_share_is_that_of_the_labels_to_the_last_digit(rare: int, share: str | None) -> None:
    dataset = make_dataset("binary")
    y = torch.arange(2.0).repeat(20)[:, None]
    y[:20] = 0
    y[:rare] = 1
    dataset.graphs.y = y
    parts = zip(("train", "valid", "test"), torch.arange(40).split([20, 10, 10]), strict=True)
    lines = doubts(replace(dataset, split=dict(parts)), RunConfig(metric="accuracy"))
    found = [line for line in lines if "accuracy says little" in line]
    assert [line.split(" of the labels in training are of class 0")[0] for line in found] == (
        [share] if share else []
    )


def test_of_a_data_set_in_memory_the_doubts_may_be_asked_for_alone(tmp_path: Path) -> None:
    dataset, config = of_two_targets(tmp_path, [(n, n / 2) for n in range(31)])
    assert doubts(dataset, config) == ["target y only numbers the rows: leave it out"]
    assert doubts(dataset) == ["target y only numbers the graphs: leave it out"]
