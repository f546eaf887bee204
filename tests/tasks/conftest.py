"""What the tests of several steps share."""

from contextlib import contextmanager

import pytest


class InterruptedTrainingError(Exception):
    """Ends a training in the middle."""


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


@pytest.fixture
def ending_before(monkeypatch, steps):
    """A block in which a training ends before a step; afterwards `steps` is empty."""
    from tasks.train.loops import torch as torch_loop

    @contextmanager
    def ending(end):
        recorded = torch_loop.learning_rate

        def failing(step, *others):
            if step == end:
                raise InterruptedTrainingError
            return recorded(step, *others)

        with monkeypatch.context() as patched, pytest.raises(InterruptedTrainingError):
            patched.setattr(torch_loop, "learning_rate", failing)
            yield
        steps.clear()

    return ending
