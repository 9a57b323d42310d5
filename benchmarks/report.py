"""From results.json to what people read: table.md and ratio.png."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from grant_fast.files import atomic_path
from grant_fast.studies.markdown import markdown as table

from .cases import CENTRE_ORDER, CHECK, RUN, WIDTHS
from .timing import QUICK

Results = dict[str, Any]
#: Ours in the table of `benchmarks.cpu`, from what gains most to what changes least of a script.
WAYS = ("FlexGCN, packed", "FlexGCN, PyG's loader", "FlexConv, PyG's loader")
#: Ours in a race, perhaps with more words behind a comma.
OURS = ("auto", "torch", "triton")
#: PyG in that table: as its loader comes, and where there are threads for it with num_workers=1.
PYGS = ("PyG", "PyG, a worker process")
#: A figure is marked whose runs spread over more of their median, ours or the peer's.
UNSTEADY = 0.3
MARK = "≈"
LEGEND = (
    f"{MARK} marks a noisy figure: for us or for the peer, the middle half of the runs behind it "
    f"(of three, all) spans more than {UNSTEADY:.0%} of their median."
)
TITLES = {
    "step": "Training steps (timing includes collating the batches)",
    "infer": "Scoring passes (inference; timing includes collating the batches)",
    "epoch": "An epoch in the paper's mode (one step)",
    "layer": "One layer",
    "score": "Scoring and selecting, compared with inference on the same graphs",
    "memory": "Bytes held for the backward pass of a layer of width 64, order 2 to 5",
    "collate": "Putting a shuffled batch together",
    "pack": "Packing a data set",
}


def markdown(document: Results) -> str:
    """Everything in results.json that is worth reading, as a page."""
    cases = document["cases"]
    parts = [f"# {document['device']['name']}", _about(document), _runs(cases)]
    for group, title in TITLES.items():
        members = {n: c["result"] for n, c in cases.items() if c.get("group") == group and _ok(c)}
        if members:
            make = _memory_table if group == "memory" else _race_table
            parts.append(f"## {title}\n\n{make(members)}")
    parts.append(_checks(cases))
    failed = [f"- {name}: {why}" for name, why in failures(cases)]
    if failed:
        parts.append("## Failed\n\n" + "\n".join(failed))
    if document["dropped"]:
        names = "\n".join(f"- {name}" for name in document["dropped"])
        parts.append(f"## Dropped: the time was up, or the command was stopped\n\n{names}")
    return "\n\n".join(filter(None, parts)) + "\n"


#: Where a peer is left out of the suite itself.
LEFT_OUT = {
    "TAGConv, compiled": "compiling takes seconds, so only for layers in training, and on the CPU "
    "only for order 3",
    "paper's formulation": "not for the one big graph, because the powers of its matrix fill in",
    "PyG, DataLoader": "slow, so only for ogbg-molhiv's epoch",
    "paper's formulation, DataLoader": "the same",
}


def _ok(case: Results) -> bool:
    return "error" not in case


def failures(cases: dict[str, Results], peers: bool = True) -> Iterator[tuple[str, str]]:
    """What failed and why: cases, also those that went well without the kernels alone, and sides of
    a race, those of the peers only where they are asked for."""
    for name, case in cases.items():
        yield from ((name, case[key]) for key in ("error", "with the kernels") if key in case)
        for side, values in case.get("result", {}).get("sides", {}).items():
            if "failed" in values and (peers or side.split(",")[0] in OURS):
                yield f"{name}, {side}", values["failed"]


def _about(document: Results) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in document["device"]["versions"].items() if v)
    lines = [f"    {document['command']}", "", f"{document['date']}; {versions}."]
    limits = document["ceilings"]
    if limits:
        rates = [f"copy {limits['copy bytes/s'] / 1e9:,.1f} GB/s (read and written)"]
        rates += [f"{k.split()[0]} GEMM {v / 1e12:,.2f} TFLOP/s" for k, v in limits.items() if
                  k.endswith("FLOP/s")]  # fmt: skip
        lines.append(f"Measured limits: {', '.join(rates)}.")
    lines.append(
        "Times are medians; the sides take turns. A ratio is the peer's time divided by ours: "
        "above 1, we are faster. *Limit* is the least time that the stated bytes take at copy "
        "bandwidth, divided by our time."
    )
    raced = [c["result"] for c in document["cases"].values() if "sides" in c.get("result", {})]
    lines += [f"{runs_behind(raced)} {LEGEND}".strip()] if raced else []
    tool = document.get("compute-sanitizer")
    if tool is not None:
        code = tool.get("exit code")
        found = "out of time" if code is None else f"exit code {code}"
        lines.append(f"compute-sanitizer: {found if tool['found'] else 'not on this machine'}.")
    return "\n".join(lines)


def _runs(cases: dict[str, Results]) -> str:
    lines = []
    for case in cases.values():
        if case.get("group") == RUN and _ok(case):
            r = case["result"]
            stopped = f"stopped after {r['epochs']} of {r['of']} epochs"
            whole = f"all {r['of']} epochs" if r["epochs"] == r["of"] else stopped
            test = f", test {r['metric']} {r['test']:.3f}" if r.get("test") is not None else ""
            lines.append(
                f"**{r['recipe']}, {r['arm']}** on {r['data']}, layers by {r['backend']}, batch "
                f"norm over {r['normalised together']:,} graphs: {whole} in {r['seconds']:.1f} s, "
                f"{r['selection seconds']:.1f} of them for selecting and "
                f"{r['validation seconds']:.1f} for validating{test}."
            )
            lines += [f"It warned: {text}" for text in r.get("warnings", ())]
    return "\n\n".join(lines)


def _race_table(members: dict[str, Results]) -> str:
    """A row a case: our time, the ratio of every peer, and the fraction of the limit."""
    peers = dict.fromkeys(
        side for result in members.values() for side in result["sides"] if side != result["ours"]
    )
    limited = any("bytes" in result for result in members.values())
    head = ["case", "measured on", "ours", "ms", *peers, *(["limit"] if limited else [])]
    rows = [
        [
            name.split("/", 1)[1],
            sizes(result["facts"]),
            result["ours"],
            our_time(result),
            *(_cell(result, peer) for peer in peers),
            *([percent(result.get("fraction of copy bandwidth"))] if limited else []),
        ]
        for name, result in members.items()
    ]
    return "\n\n".join([table(head, rows), *left_out(members.values(), peers)])


def left_out(results: Iterable[Results], peers: Iterable[str]) -> list[str]:
    """Why a peer is not beside some of these cases; nothing where every one has it."""
    missing = {peer for result in results for peer in peers if peer not in result["sides"]}
    reasons = "; ".join(f"{peer}: {why}" for peer, why in LEFT_OUT.items() if peer in missing)
    return [f"– means not run. {reasons}."] if reasons else []


def _cell(result: Results, peer: str) -> str:
    if peer not in result["sides"]:
        return "–"
    failed = result["sides"][peer].get("failed")
    if failed is not None:
        return "out of memory" if failed == "out of memory" else "failed"
    return ratio_to(result, peer)


def our_time(result: Results) -> str:
    """Our milliseconds."""
    mine = result["sides"][result["ours"]]
    return marked(milliseconds(mine["seconds"]), mine.get("spread"))


def ratio_to(result: Results, peer: str) -> str:
    """A peer's time over ours."""
    spreads = (result["sides"][side].get("spread") for side in (result["ours"], peer))
    return marked(ratio(result["ratios"][peer]), *spreads)


def marked(figure: str, *spreads: float | None) -> str:
    """The figure, with a mark where one of the spreads behind it is large."""
    return MARK * any(spread is not None and spread > UNSTEADY for spread in spreads) + figure


def runs_behind(results: Iterable[Results]) -> str:
    """Of how many runs these figures are medians."""
    sides = [side for result in results for side in result["sides"].values() if "rounds" in side]
    if not sides:
        return ""
    slow = [side["rounds"] for side in sides if side["seconds"] >= QUICK]
    quick = [side["rounds"] for side in sides if side["seconds"] < QUICK] or slow
    least, few = min(quick), min(slow or quick)
    rest = f"; where one takes {1e3 * QUICK:.0f} ms or longer, of {few} or more"
    return f"A figure is the median of {least} runs or more{rest * (few != least)}."


def _memory_table(members: dict[str, Results]) -> str:
    """Bytes held by each side, in copies of X."""
    sides = dict.fromkeys(side for result in members.values() for side in result["sides"])
    rows = []
    for name, result in members.items():
        x = result["facts"]["bytes of x"]
        held = (result["sides"].get(side, {}).get("held bytes") for side in sides)
        cells = ["–" if h is None else f"{h / x:.1f}" for h in held]
        rows.append([name.split("/", 1)[1], *cells])
    return "In copies of X, the edges aside:\n\n" + table(["case", *sides], rows)


def _checks(cases: dict[str, Results]) -> str:
    members = {n: c for n, c in cases.items() if c.get("group") == CHECK}
    if not members:
        return ""
    left = {n: c["result"]["not taken"] for n, c in members.items() if _ok(c)
            and "not taken" in c["result"]}  # fmt: skip
    wrong = [n for n, c in members.items() if not _ok(c)]
    right = len(members) - len(left) - len(wrong)
    text = f"## Checks against float64\n\n{right} right, {len(wrong)} wrong."
    if left:
        reasons = "; ".join(dict.fromkeys(left.values()))
        text += f" {len(left)} not taken by the kernels: {reasons}."
    return text


def sizes(facts: Results) -> str:
    """What a case is measured on, such as "3,198 graphs (81k nodes, 174k edges), 500 a batch"."""
    many = [f"{_short(facts[what])} {what}" for what in ("nodes", "edges") if what in facts]
    text = f"{facts['graphs']:,} graph{'s' * (facts['graphs'] != 1)}"
    text += f" ({', '.join(many)})" if many else ""
    return text + (f", {facts['batch size']:,} a batch" if "batch size" in facts else "")


def _short(count: int) -> str:
    if count < 10_000:
        return f"{count:,}"
    return f"{count / 1e3:,.0f}k" if count < 1_000_000 else f"{count / 1e6:,.1f}M"


def milliseconds(seconds: float) -> str:
    """Three digits, or so."""
    ms = 1e3 * seconds
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def ratio(value: float) -> str:
    """2.3×; two digits, or so."""
    return f"{value:,.0f}×" if value >= 100 else f"{value:.1f}×" if value >= 1 else f"{value:.2f}×"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0%}"


def plot(path: Path, document: Results) -> None:
    """Each peer's ratio against the width, forward and backward, one panel a kind of graphs."""
    found = ratios_by_width(document["cases"])
    try:
        import matplotlib
    except ImportError:
        return
    if not found:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(found), figsize=(4 * len(found), 3.6), sharey=True)
    peers = dict.fromkeys(peer for lines in found.values() for peer in lines)
    colours = dict(zip(peers, plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for panel, (data, lines) in zip([panels] if len(found) == 1 else panels, found.items(),
                                    strict=True):  # fmt: skip
        for peer, points in lines.items():
            panel.plot(*zip(*points, strict=True), "o-", label=peer, color=colours.get(peer))
        panel.axhline(1, color="black", linewidth=0.8)
        panel.set(title=data, xlabel="width", xscale="log", yscale="log")
        panel.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
        panel.minorticks_off()
    handles = [plt.Line2D([], [], color=colours.get(peer), marker="o") for peer in peers]
    figure.legend(handles, list(peers), loc="outside lower center", ncols=3, fontsize="small")
    figure.suptitle("Time of a peer over ours, forward and backward, order 3")
    figure.tight_layout(rect=(0, 0.16, 1, 1))
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110, format="png")
    plt.close(figure)


def ratios_by_width(
    cases: dict[str, Results],
) -> dict[str, dict[str, list[tuple[int, float]]]]:
    """data → peer → [(width, ratio), …] of the layers at the central order, trained."""
    out: dict[str, dict[str, list[tuple[int, float]]]] = {}
    for name, case in cases.items():
        if case.get("group") != "layer" or not _ok(case):
            continue
        _, data, width, order, kind = name.split("/")
        if int(order) == CENTRE_ORDER and kind == "forward+backward":
            for peer, value in case["result"]["ratios"].items():
                out.setdefault(data, {}).setdefault(peer, []).append((int(width), value))
    for lines in out.values():
        for points in lines.values():
            points.sort()
    return out
