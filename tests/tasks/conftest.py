"""What the tests of several steps share."""

import pytest


@pytest.fixture
def steps(monkeypatch):
    """The optimizer steps that trainings in this process have taken, by number, as they go."""
    from tasks.train.loops import torch as torch_loop

    taken = []
    learning_rate = torch_loop.learning_rate

    def recorded(step, *others):
        taken.append(step)
        return learning_rate(step, *others)

    monkeypatch.setattr(torch_loop, "learning_rate", recorded)
    return taken
