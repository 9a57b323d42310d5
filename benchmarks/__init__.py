"""Speed, measured beside the best peers on the same data in the same process."""

from importlib.util import find_spec
from pathlib import Path

import grant_fast

# A checkout that was never installed has the kernels one folder up; see pyproject.toml.
if find_spec("grant_fast.kernels") is None:
    grant_fast.__path__.append(str(Path(__file__).parents[1]))
