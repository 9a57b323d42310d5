"""The recipes: the paper's numbers, whole and checked."""

import json
from importlib.resources import files

import pytest

from grant_fast.errors import InputError
from grant_fast.studies.recipe import NAMES, load_recipe, parse_recipe
from grant_fast.teaching import selection_epochs

# The appendix's table of settings: lr, κ-list, batch size, start ratio, epochs; and Table 1's
# times of full and (B).
PAPER = {
    "QM9": (0.00005, (3, 2), 256, 0.05, 750, 9654.81, 6392.26),
    "ZINC": (0.0004, (5, 4, 2, 2), 256, 0.05, 1000, 33033.82, 20935.24),
    "ogbg-molhiv": (0.01, (4, 3, 2, 2), 500, 0.1, 600, 2163.50, 1457.39),
    "ogbg-molpcba": (0.015, (5, 4, 3, 2, 2), 128, 0.1, 800, 130191.26, 80465.06),
    "gen-reg": (0.0002, (3, 2), 100, 0.05, 250, 3344.78, 2308.97),
    "gen-cls": (0.0002, (4, 3), 200, 0.05, 500, 11662.25, 6145.72),
}


@pytest.fixture
def values():
    path = files("grant_fast.studies") / "recipes" / "zinc.json"
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_holds_the_papers_settings(name):
    recipe = load_recipe(name.upper())
    config = recipe.config
    lr, orders, batch_size, start_ratio, epochs, full, whole_batches = PAPER[name]
    assert (config.lr, config.orders, config.batch_size) == (lr, orders, batch_size)
    assert (config.start_ratio, config.epochs) == (start_ratio, epochs)
    assert (config.weight_decay, config.clip, config.init) == (5e-4, 1000, "kaiming")
    assert (config.step_every, config.standardize) == ("epoch", False)
    assert config.dropout == (0.27, *[0.0] * (len(orders) - 2))
    assert recipe.published["full"].seconds == full
    assert recipe.published["grant-b"].seconds == whole_batches
    is_ogb = name.startswith("ogbg")
    assert config.norm == ("batch_norm" if is_ogb else "none")
    assert config.lr_schedule == ("plateau" if is_ogb else "constant")
    assert (config.lr_restart is not None) == is_ogb
    assert recipe.name == name and any("at random" in line for line in recipe.differences)


@pytest.mark.parametrize("name", NAMES)
def test_each_recipe_says_what_is_selected_otherwise_than_in_the_published_code(name):
    recipe = load_recipe(name)
    epochs, start_ratio = recipe.config.epochs, recipe.config.start_ratio
    theirs = due = 0
    for epoch in range(epochs):
        early = epoch < int(epochs * start_ratio)
        if early or epoch >= due:
            theirs += 1
            due += 0 if early else 5 + 45 * epoch // epochs
    ours = len(selection_epochs(epochs, start_ratio))
    said = " ".join(recipe.differences)
    assert f"{theirs} selections in {epochs} epochs; we make {ours}." in said
    assert ("the raw output" in said) == name.startswith("ogbg")


def test_there_is_a_file_for_each_name_and_no_other():
    folder = files("grant_fast.studies") / "recipes"
    found = sorted(path.name for path in folder.iterdir())
    assert found == sorted(f"{name.lower()}.json" for name in NAMES)


def test_a_recipe_of_ones_own_is_read_from_its_file(tmp_path, values):
    path = tmp_path / "mine.json"
    values["settings"]["lr"] = 0.5
    path.write_text(json.dumps(values))
    assert load_recipe(str(path)).config.lr == 0.5


WRONG = [
    (lambda v: v | {"colour": 1}, "unknown in a recipe: colour"),
    (lambda v: {k: x for k, x in v.items() if k != "unit"}, "missing in a recipe: unit"),
    (lambda v: v | {"settings": v["settings"] | {"lr": -1}}, "lr=-1 cannot be used"),
    (lambda v: v | {"settings": v["settings"] | {"arm": "full"}}, "unknown in a recipe: arm"),
    (lambda v: v | {"settings": {"lr": 1}}, "missing in a recipe: act, batch_size"),
    (lambda v: v | {"convention": "median"}, "convention=median cannot be used"),
    (lambda v: v | {"splits": [1, 2]}, "wrong form"),
    (lambda v: v | {"splits": [1, 2, 0]}, "three whole numbers"),
    (lambda v: v | {"name": 3}, "name=3 cannot be used"),
    (lambda v: v | {"published": {"full": {}}}, "missing in a recipe: grant-b, grant-s"),
    (lambda v: v | {"cited": [{"name": "x", "seconds": "?", "metric": 1}]}, "seconds=?"),
    (lambda v: v | {"cited": [{"seconds": 1}]}, "wrong form"),
    (lambda v: v | {"cited": [{"name": "x", "seconds": 1, "metric": -1}]}, "metric=-1 is not"),
    (lambda v: v | {"cited": [{"name": "x", "seconds": None, "metric": 1}]}, "seconds=None"),
    (
        lambda v: v | {"cited": [{"name": "x", "seconds": 1, "metric": 1, "s": 1}]},
        "cited: unknown in a recipe: s;",
    ),
    (
        lambda v: v | {"published": v["published"] | {"grant-b": {"metric": 1}}},
        "grant-b: missing in a recipe: seconds; correct it",
    ),
    (lambda v: v | {"splits": [1, 2, 3.5]}, "three whole numbers"),
    (lambda v: [v], "not a recipe"),
    (
        lambda v: v | {"settings": v["settings"] | {"metric": "auto"}},
        "metric=auto cannot be used in a recipe",
    ),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[words for _, words in WRONG])
def test_a_recipe_that_is_wrong_is_refused_by_file_and_key(values, change, message):
    with pytest.raises(InputError) as caught:
        parse_recipe(json.dumps(change(values)), "mine.json")
    text = str(caught.value)
    assert text.startswith("mine.json: ") and message in text


def test_unknown_names_and_files_that_are_not_json_are_named(tmp_path):
    with pytest.raises(InputError, match="unknown recipe 'QM8': give one of QM9"):
        load_recipe("QM8")
    with pytest.raises(InputError, match=r"there is no file .*none\.json: .*check the path"):
        load_recipe(str(tmp_path / "none.json"))
    (tmp_path / "mine.JSON").write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"mine\.JSON is not UTF-8 text: save it as JSON"):
        load_recipe(str(tmp_path / "mine.JSON"))
    for text in ("{", "9" * 5000):  # so many digits are too many for Python
        with pytest.raises(InputError, match=r"mine\.json: not JSON"):
            parse_recipe(text, "mine.json")
