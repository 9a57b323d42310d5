"""Reading molecules and targets from CSV files."""

import gzip
from pathlib import Path

import pytest
from pytest import approx

from grant_fast.data.table import read_smi, read_table, table_kind
from grant_fast.errors import InputError
from tests.data.tables import cells_of, columns


def test_the_only_other_column_is_the_target(csv_file) -> None:
    table = read_table(csv_file("SMILES,gap\nCC,1.5\nO,-2\n"))
    assert table.smiles == ["CC", "O"]
    assert columns(table) == [[1.5, -2.0]]
    assert (table.smiles_column, table.target_names) == ("SMILES", ("gap",))


def test_awkward_but_right_csv_is_read(csv_file) -> None:
    text = '\ufeff"name", smiles ,y\r\n"a, b",CC ,1\r\n\r\n  \r\n"two\nlines", O,2\r\n'
    table = read_table(csv_file(text), target=["y"])
    assert table.smiles == ["CC", "O"]
    assert columns(table) == [[1.0, 2.0]]
    assert table.rows == [2, 5]  # as a spreadsheet counts: header 1, the blank rows 3 and 4


def test_empty_cells_and_their_synonyms_are_missing_targets(csv_file) -> None:
    table = read_table(csv_file("smiles,y\nC,\nC,NaN\nC,na\nC,NULL\nC, \nC,#N/A\nC,1e-3\n"))
    assert columns(table) == [[-9.0] * 6 + [approx(1e-3)]]


def test_true_and_false_are_one_and_nought(csv_file) -> None:
    table = read_table(csv_file("smiles,active\nC,True\nO,FALSE\nN,\nCC,false\n"), target="all")
    assert columns(table) == [[1.0, 0.0, -9.0, 0.0]]


def test_labels_that_float32_rounds_away_are_refused_with_what_to_subtract(csv_file) -> None:
    text = "smiles,E\nC,-1000001.53\nO,\nN,-1000002.53\n"
    with pytest.raises(
        InputError, match=r"column 'E' varies too little .* subtract its mean, some -1e\+06"
    ):
        read_table(csv_file(text))
    assert columns(read_table(csv_file(text.replace("-100000", "")))) == [
        approx([1.53, -9.0, 2.53])
    ]


def test_targets_are_taken_in_the_order_asked_for(csv_file) -> None:
    path = csv_file("a,structure,b\n1,C,2\n")
    table = read_table(path, "structure", ["b", "a"])
    assert table.target_names == ("b", "a")
    assert columns(table) == [[2.0], [1.0]]


@pytest.mark.parametrize("target", [["all"], "all"])
def test_all_stands_for_every_column_but_the_smiles(csv_file, target) -> None:
    table = read_table(csv_file("a,smiles,b\n1,C,2\n"), target=target)
    assert table.target_names == ("a", "b")


def test_names_are_separated_by_commas_unless_they_hold_some(csv_file) -> None:
    path = csv_file('smiles,"a, b",a,b\nC,1,2,3\n')
    assert read_table(path, target=["a, b"]).target_names == ("a, b",)
    assert read_table(path, target=["b,a"]).target_names == ("b", "a")


def test_a_column_called_all_is_just_that(csv_file) -> None:
    table = read_table(csv_file("all,smiles,b\n1,C,2\n"), target=["all"])
    assert table.target_names == ("all",)


def test_molecules_alone_are_enough_for_prediction(csv_file) -> None:
    assert read_table(csv_file("smiles\nC\n"), require_target=False).y is None
    assert read_table(csv_file("id,smiles\nx,C\n"), require_target=False).y is None
    table = read_table(csv_file("y,smiles\n3,C\n"), target=["y"], require_target=False)
    assert columns(table) == [[3.0]]


def test_take_keeps_rows_together(csv_file) -> None:
    table = read_table(csv_file("smiles,y\nC,1\nCC,2\nCCC,3\n")).take([2, 0])
    assert (table.smiles, table.rows, columns(table)) == (["CCC", "C"], [4, 2], [[3.0, 1.0]])
    assert len(table.take([])) == 0


@pytest.mark.parametrize(
    ("content", "culprit"),
    [
        ("", r"molecules.csv is empty"),
        ("\n\n", r"molecules.csv is empty"),
        ("smiles,y\n", "has a header but no rows"),
        ("id,y\nC,1\n", "no column called 'smiles'.*smiles_column=, from 'id', 'y'"),
        ("id,SMILES_std,y\na,C,1\n", "'smiles': .*; did you mean smiles_column='SMILES_std'\\?"),
        ("smiles|y\nC|1\n", r"from 'smiles\|y'; cells must be separated by commas, semicolons or"),
        ("smiles  y\nC  1\n", r"from 'smiles y'; cells must be separated by commas, semicolons or"),
        ("smiles,SMILES\nC,1\n", "several columns called 'smiles'"),
        ("smiles\nC\n", "no column beside 'smiles': add the targets"),
        ("smiles,id,z\nC,T1,\n", "no column of numbers beside 'smiles': add the targets"),
        (
            "smiles,id,z\nC,T1,1\nCC,T2,2\nCCC,T3,bad\n",
            r"row 4, column 'z': 'bad' is not a number.*\(no column beside 'smiles' holds",
        ),
        (
            "smiles,id,y,z\nC,T1,1,1\nCC,T2,2,2\nCCC,T3,3,>8\n",
            r"give target='y' \(.*nor classes; .* row 4, column 'z': '>8' is not a number",
        ),
        (
            "smiles,act,z\nC,a,1\nCC,b,2\nCCC,a,>8\nCCCC,b,3\n",
            r"several columns.*give target='act' .*; .*row 4, column 'z': '>8' is not a number",
        ),
        ("smiles,a,b\nC,1,2\n", "several columns.*target= among 'a', 'b' .*target='all'"),
        ("smiles,y\nC,1\nCC,high\n", "row 3, column 'y': 'high' is not a number"),
        ("smiles,y\nC,1_0\n", "row 2, column 'y': '1_0' is not a number"),
        ('smiles,y\nC,"1,5"\n', "row 2, column 'y': '1,5' is not a number, as decimals take a p"),
        ("smiles;y\nC;1.234,5\n", "'1.234,5' is not a number, as decimals take a point"),
        ("smiles;y\nC;1,5\nC;1.234,5\n", "'1.234,5' is not a number, as decimals take a comma"),
        ("smiles;y\nC;1,234,567\n", "'1,234,567' is not a number, as decimals take a point"),
        ("smiles;y\nC;1,234\nO;0.5\n", "row 2, column 'y': '1,234' is not a number, as decimals"),
        ("smiles\ty\nC\t1,234\nO\t-25,000\n", "'y': '1,234' may mean 1.2340 or 1234: write all"),
        ('smiles,y\nC,"-8,378"\n', "row 2, column 'y': '-8,378' may mean -8.3780 or -8378: write"),
        ("smiles;y\nC;0,5\nO;2.760\n", "row 3, column 'y': '2.760' may mean 2,7600 or 2760: write"),
        ('smiles,y\nC,"1,000.5"\n', "'1,000.5' is not a number, as .* point and thousands nothing"),
        ("smiles,y\nC,inf\n", "row 2, column 'y': 'inf' is not finite"),
        ("smiles,y\nC,1e39\n", "row 2, column 'y': '1e39' is not finite in float32"),
        ("smiles,y\nC,\nCC,nan\n", "column 'y' holds no labels at all"),
        (
            "smiles,y\nC,1\nCC\n",
            "row 3 has 1 cell, too few for the header's 2: complete the row, or",
        ),
        ("smiles,y\nC,1,2\n", "row 2 has 3 cells, too many .* 2: .* cells that contain commas"),
        ("smiles;y\nC;1;2\n", "row 2 has 3 cells, too many .* quote cells that contain semicolons"),
        ("smiles\ty\nC\n", "row 2 has 1 cell, too few .* quote names that contain tabs"),
        (
            "smiles,y\nC,>1\nCC,5 nM\n",
            r"words that begin like numbers \('>1', '5 nM'\): write plain numbers, without units",
        ),
        ("smiles,y\nC,'1'\nCC,'0'\nN,'1'\nO,'0'\n", r"begin like numbers \(\"'1'\", \"'0'\"\)"),
        ("smiles,y\nC,yes\nCC,No\n", r"words \('yes', 'No'\), too many different ones for classes"),
        ("smiles,y\nC,\u2212high\nO,1\n", "row 2, column 'y': '\u2212high' is not a number"),
        (
            b"smiles,y\nC,1\n\xff\xfe,2\n",
            "line 3 is not UTF-8 text: save it in UTF-8 .a spreadsheet",
        ),
        (b"smiles,y\nC\0,1\n", "line 2 holds binary data"),
        ("smiles,y\nC,1\n".encode("utf-16-le"), "line 1 holds .*: save it as text in UTF-8"),
        (b"\xff\xfea", "line 1 is not UTF-16 text"),
        (b"\x89PNG\r\n\x1a\n\0\0", "line 1 is not UTF-8 text"),
        (b"PKa,smiles\n\xb5,C\n", "line 2 is not UTF-8 text"),
        (b"PK\x03\x04\xff", "is a zip archive or a workbook, not text: .* save it as CSV"),
        (b"PK\x03\x04\0\0", "is a zip archive or a workbook, not text: .* save it as CSV"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", r"is a workbook \(.xls\), not text: save it as CSV"),
        ("\ufeff\n<!DOCTYPE html>\n<p>404</p>\n", "is a web page, .*: download the file itself"),
        ("<html><body>C,1</body>\n", "is a web page, not a file of data"),
        (
            "ethane\r\n  made by hand\r\n\r\n  2  1  0  0  0  0  0  0  0  0999 V2000\r\n",
            r"holds structures, as an SDF does: name it \*.sdf",
        ),
        ('smiles,y\nC,"1\n', r"row 2 is not valid CSV \(unexpected end of data\)"),
        ('smiles,y\nC,"1"x\n', "row 2 is not valid CSV"),
        pytest.param(
            f"smiles,y\nC,{'1' * 200_000}\n",
            "row 2 is not valid CSV.*leave out a cell as long as this",
            id="long cell",
        ),
    ],
)
def test_a_bad_file_is_refused_by_place(csv_file, content: str | bytes, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        read_table(csv_file(content))


def test_columns_without_a_name_are_no_targets(csv_file) -> None:
    path = csv_file(",smiles,y,z,,\n0,C,1,2,,\n1,CC,3,4,,\n,,,,,\n")
    assert read_table(path, target=["all"]).target_names == ("y", "z")
    assert read_table(csv_file(",smiles,y\n0,C,1\n")).target_names == ("y",)
    with pytest.raises(InputError, match="no column beside 'smiles': add the targets"):
        read_table(csv_file(",smiles\n0,C\n"))


MIXED = "a,id,smiles,NR-AR b,empty,some,name\n1,T1,C,0,,1,x\n,T2,CC,1,,>5,y\n"


def test_all_targets_are_the_columns_of_numbers_alone(csv_file) -> None:
    table = read_table(csv_file(MIXED), target="all")
    assert table.target_names == ("a", "NR-AR b")
    assert set(table.left_out) == {"id", "empty", "some", "name"}


def test_all_of_a_single_column_are_refused_by_place(csv_file) -> None:
    path = csv_file("smiles,y\nC,1\nCC,high\n")
    with pytest.raises(InputError, match="row 3, column 'y': 'high' is not a number"):
        read_table(path, target="all")


def test_columns_of_numbers_alone_are_proposed(csv_file) -> None:
    path = csv_file(MIXED)
    with pytest.raises(InputError, match=r"target= among 'a', 'NR-AR b' \(or target='all'"):
        read_table(path)
    advice = r"column 'id' holds words.*choose target=\['a', 'NR-AR b'\]$"
    with pytest.raises(InputError, match=advice):
        read_table(path, target=["id", "name,a,NR-AR b"])


def test_an_index_without_a_name_is_no_target(csv_file) -> None:
    table = read_table(csv_file(",smiles,y\n0,C,5\n1,CC,6\n"), target="y,")
    assert (table.target_names, columns(table)) == (("y",), [[5.0, 6.0]])


def test_of_columns_of_one_name_all_but_one_shall_be_renamed(csv_file) -> None:
    with pytest.raises(InputError, match="several columns called 'smiles': rename all but one"):
        read_table(csv_file("smiles,smiles,y\nC,C,1\n"))


WORDS = "id,smiles,act,kind,IC50,n\n" + "".join(
    f"T{i},C,{'in' * (i % 2)}active,{'xyz'[i % 3]},>{i % 2},{i}\n" for i in range(6)
)


def test_words_that_occur_again_are_classes(csv_file) -> None:
    table = read_table(csv_file(WORDS + "T6,C,,N/A,,\n"), target="kind")
    assert (table.classes, table.target_names) == (("x", "y", "z"), ("kind",))
    assert columns(table) == [[0.0, 1.0, 2.0, 0.0, 1.0, 2.0, -9.0]]
    assert read_table(csv_file("smiles,y\nC,+\nC,-\nC,+\nC,+\n")).classes == ("+", "-")
    assert read_table(csv_file(WORDS), target="n").classes == ()
    table = read_table(csv_file("smiles,y\n" + "C,none\nC,mild\nC,null\n" * 2))
    assert (table.classes, columns(table)) == (("mild", "none"), [[1.0, 0.0, -9.0] * 2])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("id", r"'id' holds words \('T0', 'T1', 'T2' and 3 more\), too many different ones"),
        ("IC50", r"'IC50' holds words that begin like numbers \('>0', '>1'\): write plain"),
        (
            "act,n",
            r"'act' holds classes .*, which are learned alone: choose target='act', or target='n'$",
        ),
        ("act,kind", r"learned alone: choose target='act', or another with target=$"),
    ],
)
def test_words_that_are_no_classes_are_refused(csv_file, target: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(csv_file(WORDS), target=target)


def test_long_words_are_shown_by_their_beginning(csv_file) -> None:
    rows = "".join(f"C,{letter * 9999}\n" for letter in "abc")
    with pytest.raises(
        InputError, match=rf"holds words \('{'a' * 80}…', '{'b' * 80}…', "
    ) as caught:
        read_table(csv_file(f"smiles,y\n{rows}"))
    assert len(str(caught.value)) < 1000


def test_classes_are_proposed_beside_numbers(csv_file) -> None:
    with pytest.raises(InputError, match=r"among 'act', 'kind', 'n' \(or target='all' for all th"):
        read_table(csv_file(WORDS))
    path = csv_file(WORDS.replace("n\n", "n\nT9,C,active,x,>1,a\n", 1))
    remedies = (
        r"numbers beside 'smiles': choose one of 'act', 'kind' as target=; or, as .*'a' is not"
    )
    with pytest.raises(InputError, match=remedies):
        read_table(path, target="all")


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["on", "off", "On", "on", "off", "off"], "holds both 'On' and 'on': write each class in"),
        (
            ["on", "on", ""],
            "holds no label but 'on': add other ones, or choose another with target=",
        ),
        (["on", "on", "1", "1"], "row 2, column 'y': 'on' is not a number"),
        (["on", "", "off", "3"], "row 5, column 'y': '3' is among words"),
        (["3", "on", "off"], "row 2, column 'y': '3' is among words"),
        (["3", ">3", ">3"], "row 3, column 'y': '>3' is not a number"),
        (["3", "(3)", "(4)"], r"row 3, column 'y': '\(3\)' is not a number"),
        (
            ["on", "on", "on", "1", "-2"],
            r"holds 3 words \('on'\) and 2 numbers \('1' in row 5\): learn one or the other",
        ),
        (
            ["7TM", "GPCR"] * 2,
            r"begin like numbers \('7TM'\): .*classes whose names begin with a l",
        ),
    ],
)
def test_classes_that_cannot_be_meant_are_refused(csv_file, cells, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_table(csv_file("smiles,y\n" + "".join(f"C,{cell}\n" for cell in cells)))


def test_a_zipped_table_is_read_as_the_table(tmp_path) -> None:
    path = tmp_path / "molecules.csv.gz"
    path.write_bytes(gzip.compress(b"\xef\xbb\xbfsmiles,y\r\nC,1\r\nCC,2\r\n"))
    table = read_table(path)
    assert table.smiles == ["C", "CC"] and table.rows == [2, 3]
    named = path.rename(tmp_path / "molecules.csv")  # as a browser may save it
    assert read_table(named).smiles == ["C", "CC"]
    smi = tmp_path / "molecules.SMI.GZ"
    smi.write_bytes(gzip.compress(b"CC ethane\r\nC methane\r\n"))
    assert cells_of(read_smi(smi)) == [["CC", "ethane"], ["C", "methane"]]
    kinds = {
        "a.csv.gz": ".csv",
        "A.CSV": ".csv",
        "a.csv.bz2": "",
        "a.gfast.gz": "",
        "a.smi": ".smi",
    }
    assert {name: table_kind(name) for name in kinds} == kinds


@pytest.mark.parametrize("cut", [False, True])
def test_a_zipped_table_that_is_none_or_cut_off_is_refused(tmp_path, cut: bool) -> None:
    path = tmp_path / "molecules.csv.gz"
    content = b"smiles,y\nC,1\n"
    path.write_bytes(gzip.compress(content)[:-9] if cut else content)
    with pytest.raises(
        InputError,
        match=r"molecules.csv.gz is not a complete gzip file .*(or pack it|name it molecules.csv$)",
    ):
        read_table(path)


@pytest.mark.parametrize("line", ["CCO,1.5", "x;[nH]1cccc1;2", "CC(=O)O", "ClCCl ethane"])
def test_a_first_row_of_data_asks_for_a_header(csv_file, line: str) -> None:
    with pytest.raises(InputError, match=r"row 1 looks like data, add a line .*above it") as said:
        read_table(csv_file(f"{line}\n{line}\n"))
    assert ("name the file *.smi" in str(said.value)) == ("," not in line and ";" not in line)


@pytest.mark.parametrize("name", ["conc", "Cons", "pos1", "ID", "structure", "IC50", "O", "", "N"])
def test_a_column_of_another_name_is_no_data(csv_file, name: str) -> None:
    with pytest.raises(InputError, match=f"from '{name}', 'y'$"):
        read_table(csv_file(f"{name},y\nC,1\n"))


@pytest.mark.parametrize(
    ("smiles_column", "target", "culprit"),
    [
        (
            "formula",
            None,
            "no column called 'formula': give smiles_column= one of 'smiles', 'y', 'z'",
        ),
        (None, ["activity"], "no column called 'activity': give target= one of 'y', 'z'"),
        (
            "Smile",
            None,
            "no column called 'Smile': did you mean smiles_column='smiles', of 'smiles', 'y', 'z'",
        ),
        (None, ["z"], "several columns called 'z': rename all but one of them"),
        (None, None, "several columns called 'z': rename all but one of them"),
        (None, [""], "target= is empty: name a column"),
        (None, ["smiles"], "'smiles' cannot be both the SMILES column and a target"),
        (None, ["y", "y"], "a target is given twice in 'y', 'y'"),
        (None, ["all"], "several columns called 'z': rename all but one of them"),
    ],
)
def test_a_wrong_column_is_named(csv_file, smiles_column, target, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        read_table(csv_file("smiles,y,z,z\nC,1,2,3\n"), smiles_column, target)


def test_the_smiles_column_may_be_named_in_another_case(csv_file) -> None:
    path = csv_file("SMILES,smiles,Structure\nC,CC,CCC\n")
    names = {"structure": "CCC", "smiles": "CC", "SMILES": "C"}
    for name, smiles in names.items():
        assert read_table(path, name, require_target=False).smiles == [smiles]
    with pytest.raises(InputError, match="no column called 'Smiles': did you mean smiles_column="):
        read_table(path, "Smiles", require_target=False)


def test_long_lists_of_columns_are_cut(csv_file) -> None:
    names = [f"t{i}" for i in range(617)]
    path = csv_file(f"smiles,{','.join(names)}\nC{',0' * 617}\n")
    with pytest.raises(InputError, match="'t19' and 597 more") as caught:
        read_table(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there is no file .*absent\.csv: .*check the path"):
        read_table(tmp_path / "absent.csv")
    with pytest.raises(InputError, match=r"is a folder: give a file in it"):
        read_table(tmp_path)


@pytest.mark.parametrize(
    ("text", "header", "cells"),
    [
        ("C\n CC \n", ["smiles"], [["C"], ["CC"]]),
        ("C\rCC\r", ["smiles"], [["C"], ["CC"]]),
        ("C\nCC\tan alkane \n", ["smiles", "name"], [["C", ""], ["CC", "an alkane"]]),
        ("C a\x0cb\u2028c\r\nCC", ["smiles", "name"], [["C", "a\x0cb\u2028c"], ["CC", ""]]),
    ],
)
def test_what_stands_behind_a_smiles_is_its_name(tmp_path: Path, text, header, cells) -> None:
    (path := tmp_path / "some.smi").write_text(text, encoding="utf-8", newline="")
    table = read_smi(path)
    assert (table.smiles, table.rows) == (["C", "CC"], [1, 2])
    assert (table.sheet.header, cells_of(table)) == (header, cells)


def test_blank_lines_of_a_smi_are_skipped_and_counted(tmp_path: Path) -> None:
    (path := tmp_path / "some.smi").write_text("\nC\n \t\r\nCC\n\n", encoding="utf-8")
    assert (read_smi(path).smiles, read_smi(path).rows) == (["C", "CC"], [2, 4])
    assert read_smi(path).first(1).smiles == ["C"]
    assert read_smi(path).first(3).smiles == ["C", "CC"]  # more than there are
    path.write_text("\n \n", encoding="utf-8")
    with pytest.raises(InputError, match="is empty: give one SMILES per line"):
        read_smi(path)


def test_real_file_with_missing_labels(shared_data: Path) -> None:
    table = read_table(shared_data / "tox21.csv", target=["all"])
    assert table.y is not None
    assert table.y.shape == (7831, 12)
    assert bool(table.y.isnan().any())
    assert table.rows[-1] == 7832
