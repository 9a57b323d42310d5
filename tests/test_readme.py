"""What README and docs/ say: examples run, links lead somewhere, tables are those of results."""

import csv
import json
import re
import shlex
import socket
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch

from grant_fast.studies.report import Spread
from grant_fast.teaching.picking import MODES
from grant_fast.training.config import ARMS, INFOBATCH, ON_REQUEST, RunConfig
from grant_fast.training.defaults import defaults_for
from tests.cli.runs import SMILES, succeeds

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md")))
}
EXAMPLES = [
    pytest.param(page, example, id=f"{page}:{number}")
    for page, text in PAGES.items()
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", text, re.DOTALL), start=1)
]
TRAIN = re.search(r"^grant-fast (train +hiv\.csv .*)$", README, re.MULTILINE)


@pytest.fixture
def hiv(tmp_path, monkeypatch):
    """A working folder with a hiv.csv of a few molecules, and the README's run on it."""
    pytest.importorskip("rdkit")
    monkeypatch.chdir(tmp_path)
    with open("hiv.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles", "activity", "HIV_active"])
        writer.writerows([smiles, "CI", row % 2] for row, smiles in enumerate(SMILES * 3))
    assert TRAIN is not None
    succeeds(*shlex.split(TRAIN[1]), "--epochs", 2)


@pytest.fixture
def one_process(monkeypatch):
    """What a launcher tells a process, here the only one."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        facts = {"RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port.getsockname()[1]}
    for name, value in {**facts, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    if sys.platform == "linux":
        monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


def test_every_mode_and_arm_is_explained():
    rows = re.findall(r'^\| `"(\w+)"`[^|]*\| `([\w-]+)` \|', README, re.MULTILINE)
    assert {mode for mode, _ in rows} == set(MODES)
    assert {arm for _, arm in rows} == {*ARMS, *ON_REQUEST} - {INFOBATCH}
    _, _, chooses = PAGES["docs/command-line.md"].partition("`--arm` chooses")
    assert {*ARMS, *ON_REQUEST} <= set(re.findall(r"`([\w-]+)`", chooses.partition("\n\n")[0]))


def test_there_are_examples():
    assert sum(example.id.startswith("README") for example in EXAMPLES) >= 3
    assert len(EXAMPLES) >= 9


@pytest.mark.parametrize(("page", "example"), EXAMPLES)
def test_an_example_runs_word_for_word(page, example, request, tmp_path, monkeypatch):
    pytest.importorskip("ogb")
    monkeypatch.chdir(tmp_path)
    if "hiv" in example:
        request.getfixturevalue("hiv")
    has_group = "init_process_group" in example
    if has_group:
        request.getfixturevalue("one_process")
    scope: dict = {}
    with warnings.catch_warnings():  # PyG's own, at its import
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric")
        exec(compile(example, f"an example of {page}", "exec"), scope)
    if has_group:
        # Gloo's thread wants the interpreter once more. PyTorch would hold that while it takes the
        # model apart, with it the group, and waits for the thread: forever (its issue #56297).
        time.sleep(0.5)


def test_the_loop_that_stops_goes_on_to_the_same_result(tmp_path, monkeypatch):
    pytest.importorskip("ogb")
    (loop,) = (e.values[1] for e in EXAMPLES if "set_rng_state" in e.values[1])
    ends = []
    for name, parts in (("whole", [50]), ("stopped", [20, 50])):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        for end in parts:
            torch.manual_seed(0)
            done: dict = {}
            exec(compile(loop.replace("first, 50", f"first, {end}"), name, "exec"), done)
        ends.append(done["net"].state_dict())
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def anchors(text: str) -> set[str]:
    """What a heading can be linked by, as GitHub makes it."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", PAGES[page])
    for file, _, anchor in (link.partition("#") for link in links if ":" not in link):
        target = ((ROOT / page).parent / file).resolve() if file else ROOT / page
        assert target.exists(), file
        if anchor:
            assert anchor in anchors(target.read_text(encoding="utf-8")), f"{file}#{anchor}"


@pytest.mark.parametrize("name", ["gen-cls", "ogbg-molhiv"])
def test_tables_of_reproductions_are_those_of_the_results(name):
    """Our arms' rows in docs/reproduce.md, and a row of all arms' metrics in docs/results.md."""
    document = json.loads((ROOT / f"benchmarks/results/reproduce-{name}.json").read_text())
    published = []
    for mark, row in zip(("✗", "random", "B", "S"), document["rows"], strict=True):
        loss = Spread(**row["loss"])
        one, other, best = (
            f"{row[metric]['mean']:.4f} ± {row[metric]['std']:.4f}"
            for metric in ("published_metric", "true_metric", "best_true_metric")
        )
        published.append(one)
        last = (one, other) if name == "gen-cls" else (other, best)
        cells = (mark, "here", f"{row['graphs_seen']['mean']:,.0f}", str(loss), *last)
        assert f"| {' | '.join(cells)} |" in PAGES["docs/reproduce.md"]
        shown = f"{row['saving']:.0%}" if row["saving"] else f"{Spread(**row['seconds'])} s"
        assert shown in PAGES["docs/reproduce.md"]
    command = document["command"].partition(" -o ")[0]
    assert f"| `{command}` | {' | '.join(published)} |" in PAGES["docs/results.md"]


@pytest.mark.parametrize("name", ["esol", "freesolv", "lipo"])
def test_the_table_of_small_sets_is_that_of_the_results(name):
    """The constant guess's, each arm's and each forest's metric, in one row of docs/results.md."""
    document = json.loads((ROOT / f"benchmarks/results/compare-{name}.json").read_text())
    arms = {row["arm"]: str(Spread(**row["test_metric"])) for row in document["arms"]}
    assert list(arms) == ["full", "full-equal-budget", "random", "grant-b"]
    forests = json.loads((ROOT / f"benchmarks/results/forest-{name}.json").read_text())["seeds"]
    guess = f"{document['runs'][0]['constant_metric']:.3g}"
    cells = (guess, *arms.values(), *(str(Spread.of(found)) for found in forests.values()))
    assert f" | {' | '.join(cells)} |" in PAGES["docs/results.md"]
    verdict = (ROOT / f"benchmarks/results/compare-{name}.md").read_text()
    assert "grant-b: no clear difference from random, no clear difference from full" in verdict


@pytest.mark.parametrize("name", ["compare-demo", "compare-hiv"])
def test_tables_of_results_are_those_of_the_results(name):
    """Each arm's row in docs/results.md, and its metric in the README's summary."""
    for row in (ROOT / f"benchmarks/results/{name}.md").read_text().splitlines():
        if re.match(r"\| (full|random|grant)", row):
            arm, seconds, saved, seen, loss, metric = row.split(" | ")[:6]
            assert " | ".join((arm, seconds, saved, seen, loss, metric)) in PAGES["docs/results.md"]
            assert metric in README, arm
            assert saved in README or name == "compare-demo"


def test_the_table_of_settings_is_that_of_the_defaults():
    sources = ["molecules", "gen-reg", "gen-cls"]
    small, *generated = (defaults_for(source, 2_000) for source in sources)
    large = defaults_for("molecules")
    text = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `--([a-z-]+)` \| (.+) \| (.+) \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) == 8
    for option, *cells in rows:
        name = option.replace("-", "_")
        usual = RunConfig.__dataclass_fields__[name].default
        found = [shown(each.get(name, usual)) for each in (small, large, *generated)]
        of_both = found[2] if found[2] == found[3] else f"gen-reg {found[2]}; gen-cls {found[3]}"
        assert cells == [*found[:2], "–" if name == "embedding" else of_both]


def shown(value: object) -> str:
    """A setting as the table has it."""
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"{each:g}" if isinstance(each, float) else str(each) for each in values)
