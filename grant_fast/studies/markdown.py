"""Tables and lists as Markdown, and the two files that a study leaves."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..files import atomic_write_text
from ..training.config import RunConfig
from ..training.folder import PAGE_FILE, RESULTS_FILE


def counted(sizes: Sequence[int]) -> str:
    """Numbers of graphs side by side."""
    return " / ".join(f"{size:,}" for size in sizes)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]], left: int = 1) -> str:
    """A Markdown table: the first `left` columns are aligned to the left, the others right."""
    rules = [*["---"] * left, *["---:"] * (len(head) - left)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rules, *body))


def bullets(sentences: Sequence[str]) -> str:
    """A Markdown list."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def write_results(
    out: Path, title: str, command: str, config: RunConfig, found: dict[str, Any], page: str
) -> None:
    """Write results.json, null where a number is not finite, and the Markdown page results.md into
    `out`; both begin with the title and the command, the former also with what it ran on and the
    settings that all runs share."""
    made_on = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    made = {"title": title, "command": command, **made_on, "config": config.to_dict()}
    text = json.dumps(_finite({**made, **found}), indent=2, ensure_ascii=False)
    atomic_write_text(out / RESULTS_FILE, text + "\n")
    atomic_write_text(out / PAGE_FILE, f"# {title}\n\n    {command}\n\n{page}\n")


def _finite(value: object) -> object:
    """JSON has no NaN and no infinity: what could not be measured becomes null."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
