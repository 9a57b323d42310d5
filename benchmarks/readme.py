"""The speed tables of README.md and docs/speed.md, made from benchmarks/results/ and nothing else.

python -m benchmarks.readme          writes them between the markers of both
python -m benchmarks.readme --check  says whether they are what the results say
"""

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grant_fast.files import atomic_write_text

from .cases import SCORED
from .report import (
    LEGEND,
    MARK,
    PYGS,
    WAYS,
    left_out,
    marked,
    our_time,
    ratio,
    ratio_to,
    runs_behind,
    sizes,
    table,
)

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- speed: python -m benchmarks.readme -->\n", "<!-- end of speed -->"
NOT_MEASURED = "not measured"

#: (what a reader calls it, case, peer) of the networks; the ratio is the peer's time over ours.
NETWORKS = (
    ("training step, molhiv network", "step/molhiv", "PyG, DataLoader"),
    ("training step, widths 64", "step/molhiv, widths 64", "PyG, DataLoader"),
    ("training step, gen-cls", "step/gen-cls", "PyG, DataLoader"),
    ("scoring pass, molhiv network", "infer/molhiv", "PyG, DataLoader"),
    ("scoring pass, widths 64", "infer/molhiv, widths 64", "PyG, DataLoader"),
    ("scoring pass, gen-cls", "infer/gen-cls", "PyG, DataLoader"),
    ("paper-mode epoch, molhiv", "epoch/ogbg-molhiv", "PyG, DataLoader"),
    ("paper-mode epoch, molhiv", "epoch/ogbg-molhiv", "paper's formulation, DataLoader"),
    ("paper-mode epoch, molhiv", "epoch/ogbg-molhiv", "PyG, one batch collated beforehand"),
    ("collating 100 molecules", "collate/molecules", "PyG"),
    ("collating 40 graphon graphs", "collate/graphon", "PyG"),
    ("packing PyG's molecules, once", "pack/molecules", "PyG"),
    ("packing PyG's graphon graphs, once", "pack/graphon", "PyG"),
)
LAYERS = [
    (f"{data}, width {width}", f"layer/{data}/{width}/3/forward+backward")
    for data in ("molecules", "graphon", "big")
    for width in (9, 64, 300)
]
PEERS = ("torch", "TAGConv, edge_index", "TAGConv, compiled", "TAGConv, CSR", "vendor SpMM",
         "paper's formulation")  # fmt: skip

#: The README's: (what a reader calls it, its work and ours in cpu-steps.json, the suite's peer and
#: cases for the GPU).
SHORT = (
    ("training step / scoring pass, molhiv, 9-27-18-18", "molhiv, 9-27-18-18", WAYS[0],
     "PyG, DataLoader", ("step/molhiv", "infer/molhiv")),
    ("training step / scoring pass, molhiv, widths 64", "molhiv, widths 64", WAYS[0],
     "PyG, DataLoader", ("step/molhiv, widths 64", "infer/molhiv, widths 64")),
    ("training step / scoring pass, gen-cls, 40-10-10", "gen-cls, 40-10-10", WAYS[0],
     "PyG, DataLoader", ("step/gen-cls", "infer/gen-cls")),
    ("paper-mode epoch, molhiv, 9-27-18-18", "molhiv, an epoch", WAYS[0],
     "paper's formulation, DataLoader", ("epoch/ogbg-molhiv",)),
    ("training step / scoring pass, molhiv, `FlexGCN` on PyG's batches", "molhiv, 9-27-18-18",
     WAYS[1], "PyG, DataLoader", ()),
    ("training step / scoring pass, molhiv, `FlexConv` for `TAGConv`", "molhiv, 9-27-18-18",
     WAYS[2], "PyG, DataLoader", ()),
)  # fmt: skip
THREADS = (1, 2)

Results = dict[str, Any]


def load(scale: str, folder: Path = ROOT / "benchmarks" / "results") -> Results | None:
    """The results of a scale ("cpu" or "gpu"), the latest of those of the whole suite."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("*/results.json")]
    found = [document for document in found if document.get("scale") == scale]
    found = [document for document in found if "--only" not in document["command"]]
    return max(found, key=lambda document: document["began"], default=None)


def load_steps() -> Results | None:
    """What `python -m benchmarks.cpu` measured."""
    file = ROOT / "benchmarks" / "results" / "cpu-steps.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else None


def short(cpu: Results | None, gpu: Results | None, cpu_steps: Results | None = None) -> str:
    """The README's section: a row a network, then where we gain least or lose, and the commands."""
    suites = [*(cpu if _threads(cpu) == count else None for count in THREADS), gpu]
    rows = []
    for what, work, way, peer, cases in SHORT:
        found = [_gain(cpu_steps, count, work, way) for count in THREADS]
        rows.append([what, peer.split(",")[0], *found, _suite_gain(gpu, peer, *cases)])
    what = "one layer, forward and backward, where we gain least"
    rows.append([what, "any peer", *map(_least, suites)])
    found = [_suite_gain(suite, "PyG", "pack/molecules", "pack/graphon") for suite in suites]
    rows.append(["packing a list of PyG's molecules / graphon graphs, once", "PyG", *found])
    head = [
        "work",
        "compared with",
        *(f"CPU, {count} thread{'s' * (count > 1)}" for count in THREADS),
    ]
    made = NOT_MEASURED if cpu_steps is None else _made(cpu_steps)
    where = [f"CPU, networks: {made}.", _where("CPU, last two rows", cpu), _where("GPU", gpu)]
    text = table([*head, "GPU"], rows)
    return "\n\n".join([text, *[LEGEND] * (MARK in text), " ".join(where)]) + "\n"


def _threads(document: Results | None) -> int | None:
    """How many the suite ran on: a CPU's name ends with them, as in "AMD EPYC, 2 threads"."""
    found = re.search(r", (\d+) threads?$", document["device"]["name"]) if document else None
    return int(found[1]) if found else None


def _made(document: Results) -> str:
    """The processor, where `benchmarks.cpu` has kept it, and the command."""
    on = f"{document['processor']}, " if "processor" in document else ""
    return f"{on}`{document['command']}`"


def _gain(document: Results | None, threads: int, work: str, way: str) -> str:
    """The ratios that `benchmarks.cpu` found: an epoch's, or a training step's and a pass's."""
    runs = [] if document is None else document["runs"]
    for figure in (f for run in runs if run["threads"] == threads for f in run["figures"]):
        if figure["work"].startswith(work):
            if "ratio" in figure:
                return _epoch_ratio(figure)
            return " / ".join(_way_ratio(figure, what, way) for what in ("train", "score"))
    return NOT_MEASURED


def _epoch_ratio(figure: Results) -> str:
    spreads = (figure.get(f"{side}, spread") for side in ("ours", "paper's formulation"))
    return marked(f"{figure['ratio']:.1f}×", *spreads)


def _way_ratio(figure: Results, what: str, way: str) -> str:
    """The ratio of a way to the faster of PyG's, in training ("train") or inference ("score")."""
    sides = [peer for peer in PYGS if f"{what} {peer}, ms" in figure]
    fastest = min(sides, key=lambda peer: figure[f"{what} {peer}, ms"], default=PYGS[0])
    spreads = (figure.get(f"{what} {side}, spread") for side in (way, fastest))
    return marked(ratio(figure[f"{what} {way}, ratio"]), *spreads)


def _suite_gain(document: Results | None, peer: str, *cases: str) -> str:
    """The suite's ratios to a peer in these cases, if it has them all."""
    found = [result for name in cases if (result := _result(document, name)) is not None]
    cells = [_ratio(result, peer) for result in found if peer in result["sides"]]
    return " / ".join(cells) if cells and len(cells) == len(cases) else NOT_MEASURED


def _least(document: Results | None) -> str:
    """The least ratio of all layers in training to whatever stands beside them, and where it is."""
    layers = {
        name: result
        for name in ({} if document is None else document["cases"])
        if name.startswith("layer/") and name.endswith("/forward+backward")
        if (result := _result(document, name)) is not None
    }
    found = [
        (value, name, peer)
        for name, result in layers.items()
        for peer, value in result["ratios"].items()
    ]
    if not found:
        return NOT_MEASURED
    _, name, peer = min(found)
    _, data, width, order, _ = name.split("/")
    return f"{ratio_to(layers[name], peer)} ({data}, width {width}, order {order}, {peer})"


def steps(document: Results | None) -> str:
    """The CPU's steps and passes beside PyG's, and an epoch beside the paper's formulation."""
    if document is None:
        return f"CPU, compared with PyG: {NOT_MEASURED}."
    rows = []
    for run in document["runs"]:
        for figure in run["figures"]:
            graphs = f" ({figure['graphs']:,} graphs)" if "graphs" in figure else ""
            place = [figure["work"] + graphs, str(run["threads"])]
            if "ratio" in figure:
                for side, name, gain in (
                    (WAYS[0], "ours", _epoch_ratio(figure)),
                    ("paper's formulation", "paper's formulation", "–"),
                ):
                    spent = f"{1e3 * figure[f'{name}, s']:,.0f}"
                    ms = marked(spent, figure.get(f"{name}, spread"))
                    rows.append([*place, side, ms, gain, "–", "–"])
                continue
            for side in (*WAYS, *(peer for peer in PYGS if f"train {peer}, ms" in figure)):
                cells = []
                for what in ("train", "score"):
                    spent = f"{figure[f'{what} {side}, ms']:.2f}"
                    cells.append(marked(spent, figure.get(f"{what} {side}, spread")))
                    cells.append(_way_ratio(figure, what, side) if side in WAYS else "–")
                rows.append([*place, side, *cells])
    head = ["work", "threads", "by", "train, ms", "ratio", "score, ms", "ratio"]
    workers = (
        " On two threads PyG's `DataLoader` runs with a worker process, too, and the ratio is to "
        "the faster of the two."
    )
    has_workers = any(row[2] == PYGS[1] for row in rows)
    return (
        "On the CPU, a training step and a scoring pass compared with PyG's, and an epoch compared "
        f"with the paper's own formulation: `{document['command']}`. Ours runs in three ways: "
        "`FlexGCN` on a packed data set; `FlexGCN` called, like PyG's network, with the batches of "
        "PyG's `DataLoader`; and PyG's own network with each `TAGConv` replaced by a `FlexConv`. "
        "The sides take turns of five batches each. In the suite below they take turns of one "
        f"batch, which finds the caches as the peer left them.{workers * has_workers}"
        "\n\n" + table(head, sorted(rows, key=lambda row: tuple(row[:2])))
    )


def speed(cpu: Results | None, gpu: Results | None, cpu_steps: Results | None = None) -> str:
    """The page's section: steps on the CPU; then where the suite ran, the networks, one layer."""
    there = [(place, found) for place, found in (("CPU", cpu), ("GPU", gpu)) if found is not None]
    raced = [
        case["result"]
        for _, document in there
        for case in document["cases"].values()
        if "sides" in case.get("result", {})
    ]
    about = f"The suite. {runs_behind(raced)}".strip()
    parts = [steps(cpu_steps), about, _where("CPU", cpu), _where("GPU", gpu)]
    parts = [LEGEND, *parts] if any(MARK in part for part in parts) or raced else parts
    if not there:
        return "\n\n".join(parts) + "\n"
    rows = [
        [what, peer, place, *_race(document, name, peer)]
        for what, name, peer in NETWORKS
        for place, document in there
    ]
    rows += [
        [f"scoring and selecting, {name}", "inference alone", place, *_overhead(document, name)]
        for name in SCORED
        for place, document in there
    ]
    parts.append(table(["work", "compared with", "on", "graphs", "ours, ms", "ratio"], rows))
    parts.append(
        "One layer of order 3, forward and backward: the ratio of each peer's time to ours. "
        '`torch` is our own layer with `backend="torch"`, that is, plain PyTorch:'
    )
    rows = [
        [what, place, *_layer(document, name)] for what, name in LAYERS for place, document in there
    ]
    parts.append(table(["layer", "on", "graphs", "ours, ms", *PEERS], rows))
    names = [name for _, name in LAYERS]
    results = [r for name in names for _, document in there if (r := _result(document, name))]
    return "\n\n".join([*parts, *left_out(results, PEERS)]) + "\n"


def _where(place: str, document: Results | None) -> str:
    if document is None:
        return f"{place}: {NOT_MEASURED}."
    return f"{place}: {document['device']['name']}, {document['date']}, `{document['command']}`."


def _result(document: Results | None, name: str) -> Results | None:
    return None if document is None else document["cases"].get(name, {}).get("result")


def _race(document: Results, name: str, peer: str) -> list[str]:
    result = _result(document, name)
    return [NOT_MEASURED] * 3 if result is None else [*_mine(result), _ratio(result, peer)]


def _overhead(document: Results, name: str) -> list[str]:
    """Our time, and how many times inference it is: the less the better, so it says so."""
    result = _result(document, f"score/{name}")
    if result is None:
        return [NOT_MEASURED] * 3
    other = result["sides"]["inference"]
    if "failed" in other:
        return [*_mine(result), other["failed"]]
    spreads = (result["sides"][result["ours"]].get("spread"), other.get("spread"))
    times = marked(f"{1 / result['ratios']['inference']:.2f}×", *spreads)
    return [*_mine(result), f"takes {times} as long"]


def _layer(document: Results, name: str) -> list[str]:
    result = _result(document, name)
    if result is None:
        return [NOT_MEASURED] * (2 + len(PEERS))
    return [*_mine(result), *(_ratio(result, peer) for peer in PEERS)]


def _mine(result: Results) -> list[str]:
    """What it was measured on, and our milliseconds."""
    return [sizes(result["facts"]), our_time(result)]


def _ratio(result: Results, peer: str) -> str:
    if peer not in result["sides"]:
        return "–"
    return result["sides"][peer].get("failed") or ratio_to(result, peer)


def merged(text: str, section: str) -> str:
    """`text` with `section` between the markers.

    Raises:
        ValueError: the markers are not there, each once and in order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"a page must have {BEGIN.strip()!r} and {END!r}, once each")
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + section + "\n" + END + rest.split(END)[1]


def main(arguments: Sequence[str]) -> int:
    """Write both pages' sections, or with --check compare them; 1 where one differs."""
    results = load("cpu"), load("gpu"), load_steps()
    stale = []
    for page, section in (("README.md", short), ("docs/speed.md", speed)):
        text = (ROOT / page).read_text(encoding="utf-8")
        wanted = merged(text, section(*results))
        if "--check" not in arguments:
            atomic_write_text(ROOT / page, wanted)
        elif text != wanted:
            stale.append(page)
    if "--check" in arguments:
        names = " and ".join(stale)
        print(f"{names}: run python -m benchmarks.readme" if stale else "both pages are up to date")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
