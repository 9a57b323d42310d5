"""GraNT: the teacher that picks the graphs which the learner gets most wrong."""

from .residuals import graph_losses, graph_residuals, loss, residual
from .sampler import GraNTSampler
from .schedules import ratio_at, selection_epochs
from .scoring import score_graphs
from .selection import sample_graphs, select_graphs

__all__ = [
    "GraNTSampler",
    "graph_losses",
    "graph_residuals",
    "loss",
    "ratio_at",
    "residual",
    "sample_graphs",
    "score_graphs",
    "select_graphs",
    "selection_epochs",
]
