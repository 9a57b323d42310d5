"""The suite's arithmetic: bytes, ratios, budgets, tables."""

import json
import math
import os
from functools import partial
from pathlib import Path
from unittest.mock import Mock, call

import pytest
import torch

from benchmarks import cases, readme, report, stages, timing
from benchmarks.measure import relative_error, short, trace
from benchmarks.memory import LayerShape, held_for_backward, peak
from grant_fast import FlexGCN, native

SHAPE = LayerShape(nodes=100, edges=240, h_in=9, h_out=27, order=3)


def test_a_layer_on_chip_moves_every_row_once():
    bits = LayerShape(100, 240, 9, 27, 3, words=100)
    x, y, weights = 4 * 100 * 9, 4 * 100 * 27, 4 * (3 * 9 + 1) * 27
    assert bits.forward() == x + y + weights + 8 * 100 + 4 * 100
    assert bits.backward() == y + 2 * x + 2 * weights + 8 * 100 + 4 * 100
    assert bits.train() == bits.forward() + bits.backward()


def test_csr_costs_an_index_an_edge_and_order_one_reads_no_edges():
    assert SHAPE.adjacency == 4 * 101 + 4 * 240 + 4 * 100
    assert LayerShape(100, 240, 9, 27, 3, words=900).adjacency == SHAPE.adjacency  # the lesser
    one = LayerShape(100, 240, 9, 27, 1)
    assert one.forward() == 4 * 100 * 36 + one.weights


def test_a_graph_beyond_the_chip_goes_out_and_back_between_hops():
    big = LayerShape(100, 240, 9, 27, 4, fits=False)
    small = LayerShape(100, 240, 9, 27, 4)
    between = 2 * 4 * 100 * 9 * 2
    assert big.forward() - small.forward() == 2 * big.adjacency + between


def test_what_is_held_counts_a_storage_once_and_leaves_out_what_was_given():
    x, weight = torch.randn(50, 4), torch.randn(4, 3, requires_grad=True)

    def run():
        hidden = x @ weight
        return hidden * hidden

    assert held_for_backward(run, [weight]) == 4 * (50 * 4 + 50 * 3)
    assert held_for_backward(run, [weight, x]) == 4 * 50 * 3


def test_the_peak_is_a_number_or_nobody_can_tell():
    found = peak(lambda: torch.ones(4_000_000), torch.device("cpu"))
    if found is None and not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("only Linux says how much memory a process has taken")
    assert found > 8_000_000


def test_relative_error_sees_shapes_and_nan():
    one = torch.ones(4, dtype=torch.float64)
    assert relative_error([one.float()], [one]) == 0
    assert relative_error([1.01 * one], [one]) == pytest.approx(0.01)
    assert relative_error([one, 3 * one], [one, one]) == pytest.approx(2)
    assert math.isinf(relative_error([one[:2]], [one])) and math.isinf(relative_error([], [one]))
    assert math.isnan(relative_error([one * math.nan, one], [one, one]))
    assert math.isnan(relative_error([one, one * math.nan], [2 * one, one]))
    assert relative_error([0 * one], [0 * one]) == relative_error([], []) == 0


def test_rounds_fill_the_budget_within_limits():
    assert timing.rounds_for(0.1, 1.0) == 10
    assert timing.rounds_for(10, 1.0) == 3
    assert timing.rounds_for(0, 1.0) == 50
    assert timing.least_rounds(0.09) == 7 and timing.least_rounds(0.11) == 3


def test_turns_are_taken_and_the_first_round_is_none():
    order: list[str] = []
    sides = {name: partial(order.append, name) for name in "ab"}
    times = timing.interleaved(sides, rounds=2, turn=2)
    assert "".join(order) == 3 * "aabb"
    assert [len(values) for values in times.values()] == [4, 4]
    assert timing.spread([1.0, 2.0, 3.0]) == 1 and timing.spread([0.0, 0.0]) == 0


def test_the_clock_runs_only_while_the_measured_code_does():
    clock = timing.Clock()
    elapsed = clock.run(lambda: torch.ones(10), torch.device("cpu"))
    timing.seconds(lambda: torch.ones(10), torch.device("cpu"))
    assert clock() == elapsed > 0


def test_on_a_gpu_the_host_gets_no_time_for_free(monkeypatch):
    done = Mock()
    done.start.elapsed_time.return_value = 3.0
    monkeypatch.setattr(timing, "_flusher", lambda device: done.flusher)
    monkeypatch.setattr(torch.cuda, "Event", Mock(side_effect=[done.start, done.end]))
    monkeypatch.setattr(torch.cuda, "synchronize", done.synchronize)
    device = torch.device("cuda")
    assert timing.seconds(done.run, device) == 3e-3
    wait = call.synchronize(device)
    before = [call.flusher.zero_(), wait, call.start.record(), call.run(), call.end.record()]
    assert done.mock_calls == [*before, call.end.synchronize(), call.start.elapsed_time(done.end)]


def test_an_error_is_one_line():
    assert short(ValueError("one\ntwo")) == "ValueError: one"
    assert short(ValueError()) == "ValueError"
    assert short(torch.OutOfMemoryError("CUDA out of memory. Tried …")) == "out of memory"


def test_what_went_wrong_first_is_said_of_a_kernel_that_does_not_compile():
    try:
        try:
            raise ValueError("at 3:2:\n  return z\n  ^\nz is not defined")
        except ValueError as inner:
            raise TypeError("at 9:4:\n" + 2000 * "x" + "\n    ^") from inner
    except TypeError as error:
        assert short(error) == "TypeError: at 9:4: z is not defined"
        assert "z is not defined" in trace(error) and "TypeError" not in trace(error)[:1000]
        assert "xxx" in trace(error)[-100:]


@pytest.mark.parametrize("scale", ["tiny", "cpu", "gpu"])
def test_the_suite_has_every_group_and_every_name_once(scale):
    suite = cases.suite(scale)
    names = [case.name for case in suite]
    assert len(set(names)) == len(names)
    groups = {case.group for case in suite} - {"check"}
    assert groups >= {"layer", "step", "infer", "score", "epoch", "memory", "run"}
    layers = [name.split("/") for name in names if name.startswith("layer/")]
    assert {int(parts[2]) for parts in layers} == {9, 27, 64, 128, 300}
    assert {int(parts[3]) for parts in layers} == {2, 3, 4, 5}
    # In nine minutes, a third of them for the checks, all but the grid's corners nearly fit.
    corner = [parts[2] != "27" and parts[3] != "3" for parts in layers]
    assert corner == sorted(corner)
    races = [case.seconds for case in suite if case.group != "check"]
    assert sum(races[: len(races) - sum(corner)]) < (9 * 60 if scale == "cpu" else 6.5 * 60)
    if scale == "cpu":  # where there are no checks, `make bench` leaves nothing out
        assert sum(races) < 9 * 60


def test_what_compiles_most_is_known_to_take_longest():
    seconds = {case.name: case.seconds for case in cases.suite("gpu")}
    network, layer = "check/triton network ogbg-molpcba", "check/triton 27→18 κ=3 float32"
    assert seconds[network] > seconds[layer] > seconds[layer.replace("triton", "torch")]
    # On 15 cores: less than half of nine minutes.
    assert sum(s for name, s in seconds.items() if name.startswith("check/")) / 15 < 4 * 60


def side(seconds: float, **more) -> dict:
    return {"seconds": seconds, **more}


def race(ours: str, **sides: dict) -> dict:
    mine = sides[ours]["seconds"]
    ratios = {n: s["seconds"] / mine for n, s in sides.items() if n != ours and "seconds" in s}
    facts = {"graphs": 500, "nodes": 13_600, "edges": 2_100_000}
    return {"ours": ours, "facts": facts, "sides": sides, "ratios": ratios}


def document(**cases_: dict) -> dict:
    return {
        "command": "python -m benchmarks.device --out x",
        "scale": "cpu",
        "device": {"name": "a machine", "versions": {"torch": "2.13.0", "triton": None}},
        "date": "2026-01-01",
        "ceilings": {"copy bytes/s": 2e10, "float32 FLOP/s": 5e10},
        "dropped": ["layer/big/300/3/forward"],
        "cases": cases_,
    }


def test_the_page_shows_a_peer_that_wins_and_one_that_failed():
    layer = race("torch", torch=side(0.002), A=side(0.001), B={"failed": "out of memory"})
    layer |= {"bytes": 8_000_000, "fraction of copy bandwidth": 0.2}
    text = report.markdown(
        document(
            **{
                "layer/x/9/3/forward": {"group": "layer", "result": layer},
                "layer/x/9/4/forward": {"group": "layer", "error": "the process died"},
                "check/one": {"group": "check", "result": {"Y": 1e-7}},
                "check/two": {"group": "check", "result": {"not taken": "too wide"}},
                "check/three": {"group": "check", "error": "WrongAnswer: dX is off"},
            }
        )
    )
    on = "500 graphs (14k nodes, 2.1M edges)"
    assert f"| x/9/3/forward | {on} | torch | 2.00 | 0.50× | out of memory | 20% |" in text
    assert "- layer/x/9/4/forward: the process died" in text
    assert "1 right, 1 wrong. 1 not taken by the kernels: too wide" in text
    assert "- layer/big/300/3/forward" in text.split("Dropped")[1]
    assert "torch 2.13.0" in text and "triton" not in text.split("Checks")[0]
    assert "copy 20.0 GB/s" in text


def test_the_page_says_why_a_side_failed_and_what_went_well_only_without_the_kernels():
    sides = {"torch": side(0.002), "triton, CUDA graph": {"failed": "RuntimeError: no"}}
    step = race("torch", **sides, PyG={"failed": "out of memory"})
    found = {
        "step/x": {"group": "step", "result": step},
        "step/y": {
            "group": "step", "result": race("torch", torch=side(1)), "with the kernels": "it died"
        },
    }  # fmt: skip
    failed = report.markdown(document(**found)).split("## Failed")[1]
    assert "- step/x, triton, CUDA graph: RuntimeError: no\n" in failed
    assert "- step/x, PyG: out of memory\n- step/y: it died\n" in failed
    ours = [name for name, _ in report.failures(found, peers=False)]
    assert ours == ["step/x, triton, CUDA graph", "step/y"]


def test_bytes_held_are_shown_in_copies_of_x():
    result = race("torch", torch=side(1, **{"held bytes": 400}), A=side(1, **{"held bytes": 1200}))
    result["facts"]["bytes of x"] = 400
    text = report.markdown(document(**{"memory/x/64/3": {"group": "memory", "result": result}}))
    assert "| x/64/3 | 1.0 | 3.0 |" in text


@pytest.mark.parametrize(
    ("value", "text"), [(0.414, "0.41×"), (1.0, "1.0×"), (12.34, "12.3×"), (1234.5, "1,234×")]
)
def test_a_ratio_in_few_digits(value, text):
    assert report.ratio(value) == text


def test_the_picture_takes_the_trained_layers_of_the_central_order(tmp_path):
    both = race("torch", torch=side(1), A=side(3))
    names = ("layer/x/9/3/forward+backward", "layer/x/64/3/forward+backward", "layer/x/9/3/forward")
    found = {name: {"group": "layer", "result": both} for name in names}
    assert report.ratios_by_width(found) == {"x": {"A": [(9, 3.0), (64, 3.0)]}}
    report.plot(tmp_path / "ratio.png", document(**found))
    assert (tmp_path / "ratio.png").read_bytes()[:4] == b"\x89PNG"


def test_the_page_of_speed_says_what_was_not_measured():
    sides = {"auto": side(0.004), "PyG, DataLoader": side(0.012)}
    step = {"group": "step", "result": race("auto", **sides)}
    step["result"]["facts"] = {"graphs": 3198, "batch size": 500}
    cpu = document(**{"step/molhiv": step})
    text = readme.speed(cpu, None)
    none = readme.NOT_MEASURED
    assert f"GPU: {none}." in text and "| GPU |" not in text
    what, on = "| training step, molhiv network | PyG, DataLoader", "3,198 graphs, 500 a batch"
    assert f"{what} | CPU | {on} | 4.00 | 3.0× |" in text
    assert f"| molecules, width 9 | CPU | {none} | {none} |" in text
    assert f"| packing PyG's molecules, once | PyG | CPU | {none} |" in text
    assert f"{what} | GPU | {none} | {none} | {none} |" in readme.speed(cpu, document())
    empty = readme.speed(None, None)
    assert f"CPU: {none}." in empty and "×" not in empty


def test_the_readmes_table_takes_what_was_measured_and_says_what_was_not():
    none = readme.NOT_MEASURED
    figures = [
        {
            "work": "molhiv, 9-27-18-18",
            "train PyG, ms": 60.0,
            "train PyG, a worker process, ms": 50.0,
            **{f"train {way}, ratio": 6.5 - n for n, way in enumerate(report.WAYS)},
            **{f"score {way}, ratio": 0.5 for way in report.WAYS},
        },
        {"work": "molhiv, an epoch in the paper's mode (5 graphs)", "ratio": 12.34},
    ]
    steps = {"command": "python -m benchmarks.cpu", "runs": [{"threads": 2, "figures": figures}]}
    loses = {"torch": side(9), "failing": {"failed": "no"}, "another": side(0.4)}
    found = {
        "pack/molecules": {"result": race("a", a=side(4), PyG=side(1))},
        "pack/graphon": {"result": race("a", a=side(2), PyG=side(1))},
        "layer/big/9/3/forward+backward": {"result": race("a", a=side(1), torch=side(0.5))},
        "layer/graphon/27/5/forward+backward": {"result": race("a", a=side(1), **loses)},
        "layer/graphon/27/5/forward": {"result": race("a", a=side(1), torch=side(0.1))},
        "step/gen-cls": {"result": race("a", a=side(1), **{"PyG, DataLoader": side(3)})},
    }
    cpu = document(**found) | {"device": {"name": "a machine, 1 thread"}}
    text = readme.short(cpu, None, steps)
    both = "| training step / scoring pass, molhiv"
    assert f"{both}, 9-27-18-18 | PyG | {none} | 6.5× / 0.50× | {none} |" in text
    assert f"{both}, `FlexConv` for `TAGConv` | PyG | {none} | 4.5× / 0.50× | {none} |" in text
    assert f"| paper's formulation | {none} | 12.3× | {none} |" in text
    least = "0.40× (graphon, width 27, order 5, another)"
    assert f"| any peer | {least} | {none} | {none} |" in text
    assert f"graphon graphs, once | PyG | 0.25× / 0.50× | {none} | {none} |" in text
    assert f"networks: `{steps['command']}`." in text and f"GPU: {none}." in text
    assert "networks: a Zen, `python" in readme.short(cpu, None, steps | {"processor": "a Zen"})

    found["infer/gen-cls"] = found["step/gen-cls"]
    text = readme.short(None, document(**found), None)
    assert f"gen-cls, 40-10-10 | PyG | {none} | {none} | 3.0× / 3.0× |" in text
    assert f"molhiv, 9-27-18-18 | PyG | {none} | {none} | {none} |" in text
    assert f"networks: {none}. CPU, last two rows: {none}. GPU: a machine" in text


def test_a_figure_that_varied_is_marked_and_explained():
    steady, varied = side(1, spread=0.1, rounds=7), side(2, spread=0.4, rounds=3)
    both = race("auto", auto=steady, A=varied, B=steady)
    assert report.ratio_to(both, "A") == "≈2.0×" and report.ratio_to(both, "B") == "1.0×"
    assert report.our_time(both) == "1,000" and report.our_time(race("A", A=varied)) == "≈2,000"
    names = ("layer/big/9/3/forward+backward", "pack/molecules", "pack/graphon")
    found = {name: {"group": "layer", "result": race("a", a=steady, PyG=varied)} for name in names}
    cpu = document(**found) | {"device": {"name": "a machine, 1 thread", "versions": {}}}
    for page in (readme.short(cpu, None), readme.speed(cpu, None), report.markdown(cpu)):
        assert "≈2.0×" in page and report.LEGEND in page
    assert report.LEGEND not in readme.short(document(), None)


def test_the_cpus_table_marks_what_varied_and_takes_the_faster_of_pygs():
    peers = {"PyG": (60.0, 0.5), "PyG, a worker process": (50.0, 0.1)}
    figure = {"work": "net", "graphs": 9}
    for what in ("train", "score"):
        figure |= {f"{what} {way}, ratio": 5.0 for way in report.WAYS}
        for name, (ms, spread) in ({way: (10.0, 0.1) for way in report.WAYS} | peers).items():
            figure |= {f"{what} {name}, ms": ms, f"{what} {name}, spread": spread}
    steps = {"command": "c", "runs": [{"threads": 2, "figures": [figure]}]}
    text = readme.steps(steps)
    assert f"| {report.WAYS[0]} | 10.00 | 5.0× | 10.00 | 5.0× |" in text
    assert "| PyG | ≈60.00 | – | ≈60.00 | – |" in text
    assert "| PyG, a worker process | 50.00 | – | 50.00 | – |" in text
    assert "faster of the two" in text
    figure["train PyG, a worker process, ms"] = 70.0  # now the ratio is to the one that varied
    assert "| 10.00 | ≈5.0× | 10.00 | 5.0× |" in readme.steps(steps)
    del figure["train PyG, a worker process, ms"]
    assert "faster of the two" not in readme.steps(steps)


def test_of_how_many_runs_a_figure_is_the_median():
    def of(*sides: tuple[float, int]) -> str:
        named = {str(n): side(s, rounds=r) for n, (s, r) in enumerate(sides)}
        return report.runs_behind([race("0", **named)])

    assert of((0.01, 9), (0.02, 7)) == "A figure is the median of 7 runs or more."
    assert "of 7 runs or more; where one takes 100 ms or longer, of 3 or more." in of(
        (0.01, 7), (0.1, 3)
    )
    assert of((0.01, 3), (0.2, 3)) == of((0.2, 3)) == "A figure is the median of 3 runs or more."
    assert report.runs_behind([race("a", a=side(1))]) == ""


def test_inference_that_failed_is_named_where_scoring_is_compared_with_it():
    failed = race("auto", auto=side(0.002), inference={"failed": "out of memory"})
    cpu = document(**{"score/gen-cls": {"group": "score", "result": failed}})
    assert "| 2.00 | out of memory |" in readme.speed(cpu, None)


def test_the_readmes_gpu_column_is_empty_before_a_gpu_was_measured():
    text = readme.short(readme.load("cpu"), None, readme.load_steps())
    rows = text.split("\n\n")[0].splitlines()[2:]
    assert 5 <= len(rows) <= 8 and all(row.endswith(f"| {readme.NOT_MEASURED} |") for row in rows)


def test_a_peer_that_was_left_out_is_explained_and_no_other():
    compiled, plain = race("a", a=side(1), **{"TAGConv, compiled": side(2)}), race("a", a=side(1))
    names = ("layer/x/9/3/forward+backward", "layer/x/9/3/forward")
    cases_ = {
        n: {"group": "layer", "result": r} for n, r in zip(names, (compiled, plain), strict=True)
    }
    assert "– means not run. TAGConv, compiled: compiling" in report.markdown(document(**cases_))
    cases_[names[1]]["result"] = compiled
    assert "means not run" not in report.markdown(document(**cases_))


def results(folder: Path, name: str, **changes: object) -> dict:
    """Write a document with these changes as `folder/name/results.json`."""
    values = document() | changes
    (folder / name).mkdir()
    (folder / name / "results.json").write_text(json.dumps(values))
    return values


def test_the_readme_takes_the_latest_whole_run_of_a_scale(tmp_path):
    assert readme.load("cpu", tmp_path) is None
    old = results(tmp_path, "a", date="2026-01-02", began="2026-01-02T09:00:00Z")
    assert readme.load("cpu", tmp_path) == old and readme.load("gpu", tmp_path) is None
    new = results(tmp_path, "b", date="2026-01-02", began="2026-01-02T10:00:00Z")
    results(tmp_path, "c", date="2026-01-01", began="2026-01-01T23:00:00Z")
    gpu = results(tmp_path, "d", scale="gpu", began="2026-01-03T10:00:00Z")
    assert readme.load("cpu", tmp_path) == new and readme.load("gpu", tmp_path) == gpu


def test_the_readme_never_takes_a_run_of_some_cases_nor_a_tiny_one(tmp_path):
    whole = results(tmp_path, "a", began="2026-01-01T09:00:00Z")
    command = "python -m benchmarks.device --out x --only 'layer/big'"
    results(tmp_path, "b", command=command, began="2026-01-01T10:00:00Z")
    results(tmp_path, "c", scale="tiny", began="2026-01-01T10:00:00Z")
    assert readme.load("cpu", tmp_path) == whole


def test_the_section_goes_between_its_markers_only():
    merged = partial(readme.merged, section="new\n")
    text = f"a\n{readme.BEGIN}old\n{readme.END}\nb\n"
    assert merged(text) == f"a\n{readme.BEGIN}\nnew\n\n{readme.END}\nb\n"
    assert merged(merged(text)) == merged(text)
    with pytest.raises(ValueError, match="once each"):
        merged("no markers")


def test_the_pages_are_what_the_results_say():
    assert readme.main(["--check"]) == 0


def test_both_pages_are_written_and_checked(tmp_path, monkeypatch, capsys):
    empty = f"a\n{readme.BEGIN}{readme.END}\nb\n"
    pages = [tmp_path / "README.md", tmp_path / "docs" / "speed.md"]
    pages[1].parent.mkdir()
    for page in pages:
        page.write_text(empty)
    monkeypatch.setattr(readme, "ROOT", tmp_path)
    assert readme.main(["--check"]) == 1
    assert "README.md and docs/speed.md: run" in capsys.readouterr().out
    assert readme.main([]) == readme.main(["--check"]) == 0
    pages[1].write_text(empty)
    assert readme.main(["--check"]) == 1 and "README" not in pages[1].read_text()
    assert capsys.readouterr().out.splitlines()[-1].startswith("docs/speed.md: run")


@pytest.mark.skipif(native.build() is None, reason="the CPU kernels were not compiled")
def test_a_stages_reason_speaks_of_its_own_model():
    plain = stages.reasons(FlexGCN(16, [32], 16, orders=[3, 2], pool=None), False)
    assert "widths" not in plain["layer"] and "random" not in plain["layer"]
    assert "normalised" not in plain["layer"] and "encoder" not in plain["the rest"]
    options = {"norm": "batch_norm", "dropout": 0.3, "encoder": "atom"}
    model = FlexGCN(9, [32, 9], 16, orders=[3, 2, 2], **options)
    full = stages.reasons(model, False)
    assert full["layer"].startswith("widths of 9 fill") and "copies" not in full["layer"]
    coded = stages.reasons(model, True)["layer"]
    assert coded.startswith("widths of 9 fill") and "copies κ rows" in coded
    model = FlexGCN(9, [32], 16, orders=[3, 2])
    assert "widths" not in stages.reasons(model, True)["layer"]
    assert "random" in full["layer"] and "normalised" in full["layer"]
    assert "dropout" in full["readout"] and "encoder" in full["the rest"]
