"""Cells of a CSV file: what stands between them, and what is a number."""

import pytest
from pytest import approx

from grant_fast.data.sheet import read_sheet
from grant_fast.data.table import read_table
from grant_fast.errors import InputError
from tests.data.tables import cells_of, columns


@pytest.mark.parametrize(
    "text",
    [
        'smiles;"IC50, nM";y\nCC;a, b;1.5\n',
        '"smiles"\t"IC50, nM"\ty\nCC\t5;6\t1.5\n',
        '\ufeff\n\nsmiles,"IC50; nM\t",y\nCC,5;6,1.5\n',
        '"IC50,\nnM ""5"""\tsmiles\ty\n"5,6"\tCC\t1.5\n',
        'smiles;5" tube;y\rCC;"a, b";1.5\r',
    ],
)
def test_the_header_says_what_stands_between_cells(csv_file, text: str) -> None:
    table = read_table(csv_file(text), target=["y"])
    assert (table.smiles, columns(table)) == (["CC"], [[1.5]])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])  # as spreadsheets write them
def test_a_byte_order_mark_tells_the_encoding(csv_file, encoding: str) -> None:
    path = csv_file("smiles\tLöslichkeit\r\nC\t1,5\r\nO\t2,5\r\n".encode(encoding))
    assert columns(read_table(path, target="Löslichkeit")) == [[1.5, 2.5]]


def test_all_cells_that_are_no_numbers_are_told_at_once(csv_file) -> None:
    path = csv_file("smiles,y\nC,1\nO,n.v.\nN,>10\nCC,n.v.\nCO,2\n")
    told = r"row 3, .*'n\.v\.' is not a number; .* \(of 3 such cells: 'n\.v\.', '>10'\)"
    with pytest.raises(InputError, match=told):
        read_table(path, target="y")


def test_a_minus_as_typographers_set_it_is_one(csv_file) -> None:
    table = read_table(csv_file("smiles;y\nC;\u22120,5\nO;\u22122\nN;-3\n"))
    assert columns(table) == [[-0.5, -2.0, -3.0]]


@pytest.mark.parametrize("mark", [";", "\t"])
def test_decimals_take_commas_where_these_stand_between_no_cells(csv_file, mark: str) -> None:
    lines = ["smiles;logS;pIC50", "C;-0,77;6.5", "O;1,50E-03;", "N;;7", "CC;+2;8", "CN;12,5;9.25"]
    table = read_table(csv_file("\n".join(lines).replace(";", mark)), target="all")
    assert table.target_names == ("logS", "pIC50")
    values = [[-0.77, 1.5e-3, -9.0, 2.0, 12.5], [6.5, -9.0, 7.0, 8.0, 9.25]]
    assert columns(table) == [approx(values[0]), values[1]]
    assert cells_of(table)[0] == ["C", "-0,77", "6.5"]
    mixed = read_table(csv_file(f"smiles{mark}y\nC{mark}1,234\nO{mark}-0,770\n"))
    assert columns(mixed) == [approx([1.234, -0.77])]
    sure = [f"smiles{mark}a{mark}b", f"C{mark}1,234{mark}n.d.", f"O{mark}2{mark}-,5"]
    assert columns(read_table(csv_file("\n".join(sure)), target="a")) == [[approx(1.234), 2.0]]
    # Where a point shows that "2,5" may be no number, a column speaks for itself alone.
    both = [
        f"smiles{mark}a{mark}b{mark}c",
        f"C{mark}1,234{mark}2,5{mark}.5",
        f"O{mark}2{mark}3,250{mark}1.234",
    ]
    path = csv_file("\n".join(both))
    assert columns(read_table(path, target=["b", "c"])) == [[2.5, 3.25], [0.5, approx(1.234)]]
    with pytest.raises(InputError, match=r"column 'a': '1,234' may mean 1\.2340 or 1234"):
        read_table(path, target="a")
    with pytest.raises(InputError, match=r"'1,234' is not a number, as decimals take a point"):
        read_table(
            csv_file(
                f"smiles{mark}p{mark}y\nC{mark}2,4{mark}1,234\nO{mark}3{mark}1e.5\nN{mark}3{mark}.5e0"
            ),
            target="y",
        )


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_a_space_before_a_quote_is_not_of_the_cell(csv_file, mark: str) -> None:
    lines = ["smiles, active", 'C, "1"', 'CC, "0"', ' "CCO", ""', 'CN, "1"']
    table = read_table(csv_file("\n".join(lines).replace(",", mark)))
    assert (table.smiles[2], table.classes, columns(table)) == ("CCO", (), [[1.0, 0.0, -9.0, 1.0]])


def test_spaces_before_quotes_that_are_a_cell_s_own_stay(csv_file) -> None:
    table = read_table(csv_file('smiles,note,y\nC, "a" and b,5\nCC, c,6\n'), target="y")
    assert (columns(table), cells_of(table)[0]) == ([[5.0, 6.0]], ["C", ' "a" and b', "5"])
    for row in ('CC, "c",6', 'CC, "c, d",6'):  # where they stand around cells, too
        with pytest.raises(InputError, match="row 2 is not valid CSV"):
            read_table(csv_file(f'smiles,note,y\nC, "a" and b,5\n{row}\n'), target="y")


def test_a_name_may_go_over_several_lines(csv_file) -> None:
    table = read_table(csv_file('a, b;"y\n(mM)"; "smiles"\n1;5;C\n'), target="y\n(mM)")
    assert (table.smiles_column, columns(table)) == ("smiles", [[5.0]])


def test_names_are_typed_with_single_spaces_and_written_as_they_are(csv_file) -> None:
    path = csv_file('"IC50\r\n(nM)"," SMILES\u00a0(canonical)",log  S\n1,C,2\n')
    table = read_table(path, "smiles (canonical)", ["IC50 (nM)", "log S,"])
    assert table.target_names == ("IC50 (nM)", "log S") and columns(table) == [[1.0], [2.0]]
    assert table.sheet.header == ["IC50\r\n(nM)", " SMILES\u00a0(canonical)", "log  S"]
    assert read_table(path, "SMILES\u00a0(canonical)", "log  S").target_names == ("log S",)
    with pytest.raises(InputError, match=r"has several columns called 'y'"):
        read_table(csv_file("smiles,y ,\u00a0y\nC,1,2\n"), target="y")


def test_a_header_that_is_no_csv_between_other_marks_is_read_between_its_own(csv_file) -> None:
    table = read_table(csv_file('a, "b" c;smiles;y\n1;C;5\n'), target="y")
    assert columns(table) == [[5.0]]
    long = f"{'a' * 200_000}\tb,c;smiles\n"
    with pytest.raises(InputError, match=r"not valid CSV \(field larger than field limit"):
        read_table(csv_file(long))


def test_empty_rows_at_the_end_are_left_out(csv_file) -> None:
    table = read_table(csv_file("smiles,y\nC,1\n,\nO,2\n , \n,\n"), require_target=False)
    assert (table.rows, table.smiles) == ([2, 3, 4], ["C", "", "O"])


def test_a_quoted_name_tells_what_stands_between_cells(csv_file) -> None:
    table = read_table(csv_file('"smiles";"y";note, free\nC;5;"a, b"\n'), target="y")
    assert (table.sheet.header, columns(table)) == (["smiles", "y", "note, free"], [[5.0]])


def test_names_may_hold_what_stands_between_other_tables_cells(csv_file) -> None:
    for header in ("SMILES;log S (mol/l, 25 C)", "log S (a\tb);smiles"):
        table = read_table(csv_file(f"{header}\n1;1\n"))
        assert (table.smiles, columns(table)) == (["1"], [[1.0]])
    table = read_table(csv_file("structure,y (a; b)\nC,1\n"), "structure")
    assert table.target_names == ("y (a; b)",)
    table = read_table(csv_file("Structure;IC50, nM\nC;1\n"), "Structure")
    assert table.target_names == ("IC50, nM",)


def test_what_fits_the_first_row_stands_between_cells_where_names_do_not_tell(csv_file) -> None:
    for text in ("can;IC50, nM\n\nCC;5.5\nC;1.5\n", 'can;IC50, nM\n"CC";"5,5"\nC;1,5\n'):
        with pytest.raises(InputError, match=r"from 'can', 'IC50, nM'$"):
            read_table(csv_file(text))
    for text in ("can;IC50, nM\n", "can;IC50, nM\nCC;5,5\n", "can;IC50, nM\nCC\n"):
        with pytest.raises(
            InputError, match=r"(from 'can;IC50', 'nM'|but no rows: add molecules.*)$"
        ):
            read_table(csv_file(text))


def test_a_column_of_both_decimal_marks_is_refused(csv_file) -> None:
    with pytest.raises(InputError, match=r"row 2, column 'y': '1,5' is not a number"):
        read_table(csv_file("smiles;y\nC;1,5\nCC;2.5\n"))


@pytest.mark.parametrize("mark", [";", "\t"])
def test_points_may_set_thousands_apart_where_whole_numbers_are_below_them(csv_file, mark) -> None:
    def read(cells: list[str]) -> list[list[float]]:
        rows = [f"C{mark}{cell}" for cell in cells]
        return columns(read_table(csv_file("\n".join([f"smiles{mark}IC50_nM", *rows]))))

    cells = ["85", "16.285", "", "8.791", "207", "1.217"]
    clear = r"row 3, column 'IC50_nM': '16\.285' may mean 16\.2850 or 16285: write all such cells"
    with pytest.raises(InputError, match=clear):
        read(cells)
    assert read(["85", "16.2850", "8.791"]) == [approx([85.0, 16.285, 8.791])]
    assert read(["85", "1.5", "8.791"]) == [approx([85.0, 1.5, 8.791])]
    assert read(["1000", "16.285", "8.791"]) == [approx([1000.0, 16.285, 8.791])]
    assert read(["1.000", "1.003", "1.250"]) == [approx([1.0, 1.003, 1.25])]


def test_spaces_within_a_class_are_one(csv_file) -> None:
    rows = ["C,very  active", "CC,very active", "CCC,inactive", "CO,inactive"]
    table = read_table(csv_file("\n".join(["smiles,y", *rows])))
    assert table.classes == ("inactive", "very active") and columns(table) == [[1.0, 1, 0, 0]]


@pytest.mark.parametrize("mark", list(",;\t"))
def test_a_line_that_tells_a_spreadsheet_the_mark_is_no_row(csv_file, mark):
    table = read_table(csv_file(f"SEP={mark}\r\nsmiles{mark}y\r\nC{mark}1\r\n"))
    assert columns(table) == [[1.0]]
    with pytest.raises(InputError, match=r"row 3, column 'y': 'x' is not a number"):
        read_table(csv_file(f"sep={mark}\nsmiles{mark}y\nC{mark}1\nO{mark}x\n"))


@pytest.mark.parametrize(
    "rows",
    [
        ["smiles\ty\tsites", "C\t12\t3,4,6", "CC\t1,234\t5,7"],  # a list shows no decimals
        ["smiles;y;logP;version", "C;1.975;12,3;1.2", "CC;2.591;3,1;3"],  # two ways in one file
        ["smiles;y;logP;z", "C;1,234;0,5;\u22120.5", "CC;7;3,1;3"],
    ],
)
def test_other_columns_do_not_make_thousands_decimals(csv_file, rows) -> None:
    with pytest.raises(InputError, match=r"column 'y': '\d[.,]\d{3}' may mean \d[.,]\d{3}0 or \d"):
        read_table(csv_file("\n".join(rows)), target="y")


def test_accents_may_be_letters_of_their_own(csv_file) -> None:
    composed, apart = "température", "tempe\u0301rature"
    for name, asked in ((composed, apart), (apart, composed)):
        table = read_table(csv_file(f"smiles,{name}\nC,1\n"), target=asked)
        assert table.target_names == (composed,)


def test_lines_are_counted_however_they_end(csv_file) -> None:
    for end in ("\r", "\n", "\r\n"):
        for cell, says in ((b"\xb5", "is not UTF-8 text"), (b"\0", "holds binary data")):
            text = end.join(["smiles,y", "C,1", "CC,2", "C?C,3"]).encode().replace(b"?", cell)
            with pytest.raises(InputError, match=f"line 4 {says}"):
                read_table(csv_file(text), target="y")


def test_cells_of_numbers_are_taken_as_they_are(csv_file) -> None:
    cells = ["1", "", "-2.5e-3", "+.5", "1_0", " 7 ", "TRUE", "\N{MINUS SIGN}3", "e"]
    rows = [f"C,{cell},{n}" for n, cell in enumerate(cells)]
    sheet = read_sheet(csv_file("\n".join(["smiles,any,number", *rows])), "smiles")
    assert sheet.column(1) == ["1", "", "-2.5e-3", "+.5", "1_0", "7", "1", "-3", "e"]
    assert sheet.column(2) == [str(n) for n in range(len(cells))]
