import pytest
from small_checkpoints import Bare, make_checkpointer, save_steps


@pytest.fixture
def saved(tmp_path):
    """A run folder with checkpoints of steps 2 and 5, and what made them."""
    run = Bare()
    checkpointer = make_checkpointer(tmp_path, run)
    save_steps(checkpointer, run, [2, 5])
    return tmp_path, run, checkpointer
