"""The tests of studies run tiny trainings, as those of training do."""

from tests.training.conftest import config, figures, unthreaded

__all__ = ["config", "figures", "unthreaded"]
