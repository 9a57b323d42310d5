"""Every case of the suite under pytest-benchmark, beside its peers: `make bench`.

By hand: `pytest benchmarks/test_suite.py --scale cpu -k 'layer and molecules'`. Our side is what
pytest-benchmark times; `extra_info` says how the peers did between its rounds.
"""

import time

import pytest

from .cases import CHECK, RUN, Case
from .conftest import EXIT_LATE, Records
from .data import Store
from .machine import describe
from .measure import Bench, measure
from .timing import Clock

CLOCK = Clock()

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # the peers' own
    pytest.mark.benchmark(timer=CLOCK, disable_gc=True),
]


def test_case(
    case: Case,
    store: Store,
    records: Records,
    pytestconfig: pytest.Config,
    request: pytest.FixtureRequest,
) -> None:
    until = pytestconfig.getoption("until")
    if until is not None and time.time() + case.seconds > until:
        if case.group == CHECK:
            pytest.skip("no time for it")  # a lighter one may still fit
        pytest.exit("the time is up", returncode=EXIT_LATE)  # what is left is less important
    if case.group == CHECK:  # needs neither a clock nor the ceilings
        _noted(case, records, lambda: case.build(store))
        return
    bench: Bench = request.getfixturevalue("bench")
    benchmark = request.getfixturevalue("benchmark")
    benchmark.group = case.group
    benchmark.extra_info["device"] = describe(bench.device)
    if case.group == RUN:
        benchmark.extra_info |= _noted(
            case, records, lambda: benchmark.pedantic(lambda: _run(case, store))
        )
        return
    benchmark.extra_info |= _noted(
        case, records, lambda: measure(case.build(store), bench, CLOCK, benchmark.pedantic)
    )


def _run(case: Case, store: Store) -> dict:
    result = case.build(store)
    CLOCK.now += result["seconds"]
    return result


def _noted(case: Case, records: Records, work) -> dict:  # type: ignore[no-untyped-def]
    """Do a case's work, and write down that it began, and how it ended."""
    if not records.begin(case.name):
        pytest.skip("another process has begun it")
    try:
        result = work()
    except Exception as error:
        records.failed(case.name, error)
        raise
    records.write("end", name=case.name, result=result)
    return result
