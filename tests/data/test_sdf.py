"""Molecules from SDFs."""

import gzip
from pathlib import Path

import pytest

from grant_fast.data.load import load_dataset
from grant_fast.data.sdf import read_sdf
from grant_fast.data.table import read_table
from grant_fast.errors import InputError

MOLECULES = [
    ("ethanol", "OCC", {"y": "1.5", "note": "two\nlines"}),
    ("", "C[C@H](N)C(=O)O", {"y": ""}),
    ("salt", "[Na+].[Cl-]", {"smiles": "wrong", "y": "-2"}),
]


@pytest.fixture(autouse=True)
def chem():  # type: ignore[no-untyped-def]
    return pytest.importorskip("rdkit.Chem")


def records(chem, molecules=MOLECULES) -> list[str]:  # type: ignore[no-untyped-def]
    """Each molecule as it stands in an SDF, up to its closing line."""
    texts = []
    for name, smiles, fields in molecules:
        molecule = chem.MolFromSmiles(smiles)
        molecule.SetProp("_Name", name)
        lines = [f">  <{key}>\n{value}\n" for key, value in fields.items()]
        texts.append(chem.MolToMolBlock(molecule) + "\n".join(lines) + "\n$$$$\n")
    return texts


def write(folder: Path, texts: list[str]) -> Path:
    path = folder / "molecules.sdf"
    path.write_bytes("".join(texts).encode())
    return path


def test_structures_names_and_fields_become_columns(tmp_path: Path, chem) -> None:
    sheet, names = read_sdf(write(tmp_path, records(chem)))
    assert sheet.names == ["sdf_smiles", "name", "y", "note", "smiles"]
    assert sheet.body == [
        (1, ["CCO", "ethanol", "1.5", "two\nlines", ""]),
        (2, ["C[C@H](N)C(=O)O", "", "", "", ""]),
        (3, ["[Cl-].[Na+]", "salt", "-2", "", "wrong"]),
    ]
    assert names == ("ethanol", "", "salt")


def test_without_names_there_is_no_column_of_them(tmp_path: Path, chem) -> None:
    texts = records(chem, [("", "CCO", {"y": "1"}), ("", "C", {"z": "2"})])
    sheet, names = read_sdf(write(tmp_path, texts))
    assert (sheet.names, names) == (["smiles", "y", "z"], ())
    texts = records(chem, [("", "CCO", {"name": "a"}), ("b", "C", {"name": "c"})])
    sheet, names = read_sdf(write(tmp_path, texts))
    assert sheet.names == ["smiles", "sdf_name", "name"]
    assert [cells[1:] for _, cells in sheet.body] == [["", "a"], ["b", "c"]]


def test_explicit_hydrogens_and_coordinates_leave_the_smiles_alone(tmp_path: Path, chem) -> None:
    all_chem = pytest.importorskip("rdkit.Chem.AllChem")
    molecule = chem.AddHs(chem.MolFromSmiles("C[C@H](N)C(=O)O"))
    all_chem.EmbedMolecule(molecule, randomSeed=1)
    path = write(tmp_path, [chem.MolToMolBlock(molecule) + "$$$$\n"])
    assert read_sdf(path)[0].body == [(1, ["C[C@H](N)C(=O)O"])]


@pytest.mark.parametrize("ending", ["\r\n", "\r", "\n"])
@pytest.mark.parametrize("tail", ["", "\n\n", None])
def test_line_ends_and_what_follows_the_last_molecule(tmp_path, chem, ending, tail) -> None:
    text = "".join(records(chem))
    text = text.removesuffix("$$$$\n") if tail is None else text + tail
    sheet, _ = read_sdf(write(tmp_path, [text.replace("\n", ending)]))
    assert [cells[0] for _, cells in sheet.body] == ["CCO", "C[C@H](N)C(=O)O", "[Cl-].[Na+]"]


def test_what_cannot_be_read_keeps_its_place_and_name(tmp_path: Path, chem) -> None:
    ethanol, alanine, salt = records(chem)
    five_bonds = records(chem, [("five bonds", "C[N+](C)(C)C", {"y": "3"})])[0]
    five_bonds = "\n".join(line for line in five_bonds.split("\n") if "M  CHG" not in line)
    cut = ethanol[: ethanol.index("M  END") - 20] + "\n$$$$\n"
    table = read_table(write(tmp_path, [alanine, five_bonds, salt, cut]), target="y")
    assert table.smiles == ["C[C@H](N)C(=O)O", "", "[Cl-].[Na+]", ""]
    assert table.titles == ("", "five bonds", "salt", "ethanol")
    assert table.rows == [1, 2, 3, 4]
    assert table.y is not None and table.y.nan_to_num(9).flatten().tolist() == [9, 3, -2, 9]


@pytest.mark.parametrize("end", ["M  END", "0.0000", "lines\n", "\n\n$$$$", "\n$$$$", "$\n"])
def test_a_file_that_breaks_off_is_refused(tmp_path: Path, chem, end: str) -> None:
    ethanol, alanine, _ = records(chem)
    whole = alanine + ethanol
    path = write(tmp_path, [whole[: whole.rindex(end)]])
    with pytest.raises(InputError, match=r"breaks off within molecule 2: restore the file"):
        read_sdf(path)


def test_fields_are_those_that_rdkit_reads(tmp_path: Path, chem) -> None:
    text = "".join(
        f">{head}\n{value}\n\n"
        for head, value in [
            ("  <a>  (1) ", " 1 "),
            (" 25 <M.P., deg>", "> <no field>\n2"),
            (" <x<y>z>", "\ttab"),
            (" < spaces >", "a\n \nb"),
            (" <empty>", ""),
            (" <last>", "5"),
        ]
    )
    record = records(chem, [("> <title>", "CCO", {})])[0].replace("$$$$", text + "$$$$")
    path = write(tmp_path, [record])
    (molecule,) = chem.SDMolSupplier(str(path))
    theirs = {
        name.strip(): value.strip()
        for name, value in molecule.GetPropsAsDict(False, False, autoConvertStrings=False).items()
    }
    sheet, _ = read_sdf(path)
    assert dict(zip(sheet.names[2:], sheet.body[0][1][2:], strict=True)) == theirs


@pytest.mark.parametrize("between", [" \n", "", "\n"])
@pytest.mark.parametrize("all_of_them", [False, True])
def test_a_field_that_swallows_the_next_is_refused(tmp_path, chem, between, all_of_them) -> None:
    """As RDKit lets it: that molecule's label would be lost without a word."""
    texts = records(chem, [("a", "CCO", {"note": "5", "y": "1"}), ("b", "C", {"y": "2"})])
    texts[0] = texts[0].replace("5\n\n", f"5\n{between}")
    if all_of_them:
        texts = texts[:1]
    path = write(tmp_path, texts)
    if between == "\n" or (all_of_them and not between):  # of which no other knows the name
        assert read_sdf(path)[0].names[2:] == (["note", "y"] if between else ["note"])
        return
    with pytest.raises(InputError, match=r"molecule 1: field 'note' goes on to '> <y>': end it"):
        read_sdf(path)


def test_a_field_that_is_there_twice_has_both_values(tmp_path, chem) -> None:
    texts = records(chem, [(str(n), "CCO", {"y": f"{n}", "z": "1"}) for n in range(9)])
    texts[2] = texts[2].replace(">  <z>\n1", ">  <y>\n7\n\n>  <z>\n1\n\n>  <z>\n1")
    path = write(tmp_path, texts)
    assert [cells[2:] for _, cells in read_sdf(path)[0].body][1:4] == [
        ["1", "1"], ["2 / 7", "1"], ["3", "1"],
    ]  # fmt: skip
    with pytest.raises(InputError, match=r"row 3, column 'y': '2 / 7' is not a number"):
        read_table(path, target="y")


def test_a_long_tail_of_blank_lines_takes_no_time(tmp_path, chem) -> None:
    text = records(chem)[0].removesuffix("$$$$\n") + "> <z>\n" + "\n" * 200_000 + "a"
    with pytest.raises(InputError, match="breaks off"):
        read_sdf(write(tmp_path, [text]))


def test_a_zipped_one_is_read_and_many_molecules_in_processes_alike(tmp_path: Path, chem) -> None:
    path = write(tmp_path, records(chem))
    (zipped := tmp_path / "a.sdf.gz").write_bytes(gzip.compress(path.read_bytes()))
    assert read_sdf(zipped)[0].body == read_sdf(path)[0].body
    many = write(tmp_path, records(chem)[:1] * 10_001)
    sheet, _ = read_sdf(many, workers=2)
    assert [cells for _, cells in sheet.body] == [["CCO", "ethanol", "1.5", "two\nlines"]] * 10_001


def test_the_only_other_field_is_the_target(tmp_path: Path, chem) -> None:
    texts = records(chem, [("1", "CCO", {"y": "1"}), ("2", "C", {"y": "2"})])
    table = read_table(path := write(tmp_path, texts))
    assert table.target_names == ("y",)
    with pytest.raises(InputError, match="'name' cannot be both the name column and a target"):
        read_table(path, target="name")
    with pytest.raises(InputError, match="holds structures, no SMILES: leave out smiles_column="):
        read_table(path, "smiles")
    with pytest.raises(InputError, match="no column beside 'smiles', 'name': add the targets"):
        read_table(write(tmp_path, records(chem, [("1", "CCO", {})])))


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty: give an SDF with molecules"):
        read_sdf(write(tmp_path, ["\n"]))
    with pytest.raises(InputError, match=r"there is no file .*none\.sdf"):
        read_sdf(tmp_path / "none.sdf")
    (bad := tmp_path / "bad.sdf").write_bytes(b"a\n\xff\n$$$$\n")
    with pytest.raises(InputError, match=r"line 2 is not UTF-8 text: save it in UTF-8$"):
        read_sdf(bad)


def test_records_that_cannot_be_read_are_not_taken_for_unlabelled_ones(
    tmp_path: Path, chem
) -> None:
    chains = [(f"chain {n}", "C" * n, {"y": str(n)} if n != 5 else {}) for n in range(1, 21)]
    texts = records(chem, chains)
    texts[10] = "chain 11\n\n\nbroken\n$$$$\n"
    path = write(tmp_path, texts)
    dataset = load_dataset(path, target="y", split="random", progress=False)
    assert (dataset.unlabelled, dataset.skipped) == (1, [(11, "chain 11")])
    assert len(dataset.graphs) == 18
    with pytest.raises(
        InputError, match=r"row 11: 'chain 11' is not a valid structure.*strict=True"
    ):
        load_dataset(path, target="y", split="random", strict=True, progress=False)


def test_a_molecule_without_its_last_line_is_named(tmp_path: Path, chem) -> None:
    texts = records(chem)
    for number, called in enumerate([r" \('ethanol'\)", ""]):
        lost = [text.removesuffix("$$$$\n" * (i == number)) for i, text in enumerate(texts)]
        with pytest.raises(InputError, match=rf"molecule {number + 1}{called} is not ended by \$"):
            read_table(write(tmp_path, lost), target="y")


def test_a_file_without_a_structure_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no valid structure \('{text}'\): give an SDF RDK"):
        read_table(write(tmp_path, ["{text}\n404\n"]), target="y")
    with pytest.raises(InputError, match="is a web page, not a file of data: download the file"):
        read_table(write(tmp_path, ["<html>\n404\n</html>"]), target="y")


def test_commas_are_no_decimal_ones(tmp_path: Path, chem) -> None:
    path = write(tmp_path, records(chem, [("", "CCO", {"rings": "5,6"})]))
    with pytest.raises(InputError, match="row 1, column 'rings': '5,6' is not a number"):
        read_table(path)


def test_a_field_may_quote_a_structure(tmp_path: Path, chem) -> None:
    texts = records(chem)
    quoted = ">  <fragment>\n  1  0  0\nM  END\n\n$$$$\n"
    plain, found = (
        [dict(zip(sheet.header, cells, strict=True)) for _, cells in sheet.body]
        for sheet in (
            read_sdf(write(tmp_path, texts))[0],
            read_sdf(write(tmp_path, [text.replace("$$$$\n", quoted) for text in texts]))[0],
        )
    )
    assert found == [{**row, "fragment": "1  0  0\nM  END"} for row in plain]
