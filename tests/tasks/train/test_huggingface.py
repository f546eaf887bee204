"""The loop with the `Trainer` of `transformers`."""

import pytest
import torch
from safetensors.torch import load

import models
from retrain.project import Project
from retrain.workload import Augment, Best, Data, EarlyStopping, Lora, Scale, Train, Workload
from tasks.train import checkpoint, folders
from tasks.train.step import check, check_slowly
from tests.tasks.train.helpers import SMALL, run, validated

BASE = Train(loop="huggingface", epochs=6, batch_size=16, lr=0.01, augment=Augment(shift=1))
DROPOUT = SMALL.model_copy(update={"dropout": 0.1})
PER_EPOCH = 6
OFTEN = Scale(checkpoint_seconds=1e-9)  # after every step
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 4, "max_steps": 10}


def having(**changes):
    return BASE.model_copy(update=changes)


class InterruptedTrainingError(Exception):
    pass


@pytest.fixture
def calls(monkeypatch):
    """The numbers of the batches that trainings in this process take; one of them may fail."""
    from tasks.train.augment import Augmentation

    taken, original = [], Augmentation.__call__

    def recorded(self, images, labels, number):
        if number == getattr(recorded, "failing", None):
            raise InterruptedTrainingError
        taken.append(number)
        return original(self, images, labels, number)

    monkeypatch.setattr(Augmentation, "__call__", recorded)
    recorded.taken = taken
    return recorded


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    return run(tmp_path_factory.mktemp("trained"), images, BASE, model=DROPOUT)


def test_it_learns_and_the_best_epoch_is_the_model(trained, images):
    assert [epoch["epoch"] for epoch in trained.history] == list(range(1, 7))
    best = max(trained.history, key=lambda epoch: (epoch["val_accuracy"], -epoch["val_loss"]))
    assert best["val_accuracy"] > 0.7
    assert trained.facts["best_epoch"] == best["epoch"]
    loss, accuracy = validated(trained, images)
    assert accuracy == pytest.approx(best["val_accuracy"])
    assert trained.facts["val_loss"] == pytest.approx(loss, rel=1e-4)
    assert trained.facts["numerics"]["attention"] == "sdpa"


def test_the_same_training_gives_the_same_bytes(trained, images, tmp_path):
    again = run(tmp_path, images, BASE, model=DROPOUT, scale=Scale(data_cpus=2))
    assert again.facts == trained.facts
    assert again.model_files() == trained.model_files()


@pytest.mark.parametrize(
    "changes",
    [
        {"micro_batch": 4, "label_smoothing": 0.1},
        {"arguments": BY_STEPS, "lora": Lora(r=2, dropout=0.1)},
    ],
    ids=["epochs, in parts", "steps, lora"],
)
def test_it_resumes_in_the_middle_of_an_epoch_to_the_bit(images, tmp_path, calls, changes):
    hyperparameters = having(epochs=2, **changes)
    parts = 16 // (hyperparameters.micro_batch or 16)
    whole = run(tmp_path / "whole", images, hyperparameters, model=DROPOUT)
    calls.failing = 8 * parts
    often = OFTEN.model_copy(update={"keep_checkpoints": 3})
    with pytest.raises(InterruptedTrainingError):
        run(tmp_path, images, hyperparameters, model=DROPOUT, scale=often, output="interrupted")
    assert len(folders.sealed(tmp_path / "scratch" / checkpoint.FOLDER)) == 3
    calls.taken.clear()
    calls.failing = None
    resumed = run(tmp_path, images, hyperparameters, model=DROPOUT)
    assert calls.taken[0] == 8 * parts
    assert resumed.facts == whole.facts
    assert resumed.model_files() == whole.model_files()
    for one, other in zip(resumed.history, whole.history, strict=True):
        assert one["train_loss"] == pytest.approx(other["train_loss"], rel=1e-6)


def test_a_training_that_was_over_is_not_repeated(trained, images, calls):
    again = run(trained.project.root, images, BASE, model=DROPOUT, output="again")
    assert calls.taken == []
    assert again.facts == trained.facts


def test_a_damaged_checkpoint_is_passed_over(images, tmp_path, calls):
    calls.failing = 8
    with pytest.raises(InterruptedTrainingError):
        run(tmp_path, images, having(epochs=2), scale=OFTEN, output="interrupted")
    newest = folders.sealed(tmp_path / "scratch" / checkpoint.FOLDER)[-1]
    (newest / "optimizer.pt").write_bytes(b"damaged")
    calls.taken.clear()
    calls.failing = None
    run(tmp_path, images, having(epochs=2))
    assert calls.taken == list(range(7, 2 * PER_EPOCH))


def test_it_evaluates_by_steps_and_at_the_end(images, tmp_path):
    trained = run(tmp_path, images, having(arguments=BY_STEPS))
    assert [entry["step"] for entry in trained.history] == [4, 8, 10]


def test_it_ends_early_and_is_then_over(images, tmp_path, calls):
    rule = EarlyStopping(patience=2, min_delta=0.5)
    hyperparameters = having(epochs=50, best=Best(metric="val_loss"), early_stopping=rule)
    trained = run(tmp_path, images, hyperparameters)
    assert len(trained.history) == 3
    calls.taken.clear()
    again = run(tmp_path, images, hyperparameters, output="again")
    assert calls.taken == []
    assert again.facts == trained.facts


def test_norms_and_biases_do_not_decay():
    from tasks.train.trainer_record import NetworkTrainer

    network = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    network.bn1 = torch.nn.BatchNorm2d(2)
    trainer = object.__new__(NetworkTrainer)
    assert trainer.get_decay_parameter_names(network) == ["0.weight"]


def test_a_training_that_diverges_says_so(images, tmp_path):
    with pytest.raises(ValueError, match=r"diverged .* Lower train\.lr"):
        run(tmp_path, images, having(lr=1e30))


def workload(scale=None, **changes):
    return Workload(
        name="sides",
        data=Data(path="data/sides"),
        model=SMALL,
        train=having(**changes),
        scale=scale or Scale(),
    )


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"ema": 0.9}, "train.ema: the loop huggingface does not use it."),
        (
            {"batch_size": 32, "micro_batch": 12},
            "train.batch_size: the loop huggingface takes equal parts only; 32 is no multiple of "
            "12, micro_batch times the workers.",
        ),
        (
            {"scale": Scale(workers=2, strategy="fsdp")},
            "scale.strategy: the loop huggingface has ddp.",
        ),
        (
            {"arguments": {"learning_rate": 1}},
            "train.arguments.learning_rate: set train.lr instead.",
        ),
        (
            {"arguments": {"output_dir": "x"}},
            "train.arguments.output_dir: this project decides it.",
        ),
        (
            {"schedule": "one_cycle"},
            "train.schedule: the loop huggingface has cosine and constant; others by "
            "train.arguments.lr_scheduler_type.",
        ),
    ],
)
def test_what_the_trainer_would_not_follow_is_found_before_anything_runs(tmp_path, changes, fault):
    assert list(check(workload(**changes), Project(tmp_path))) == [fault]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"max_step": 4}, "train.arguments.max_step: no such argument. Did you mean 'max_steps'?"),
        ({"eval_strategy": "sometimes"}, "train.arguments: sometimes is not a valid"),
    ],
)
def test_arguments_that_the_trainer_does_not_take_are_found(tmp_path, arguments, fault):
    [found] = check_slowly(workload(arguments=arguments), Project(tmp_path))
    assert fault in found
    assert list(check_slowly(workload(arguments=BY_STEPS), Project(tmp_path))) == []


def test_two_workers_train_as_one_process_does(ray_session, images, tmp_path):
    hyperparameters = having(epochs=2, augment=Augment())
    two = run(tmp_path / "two", images, hyperparameters, scale=Scale(workers=2))
    one = run(tmp_path / "one", images, hyperparameters)
    for entry, other in zip(two.history, one.history, strict=True):
        assert entry["train_loss"] == pytest.approx(other["train_loss"], rel=1e-3)
        assert entry["val_loss"] == pytest.approx(other["val_loss"], rel=1e-3)
    by_two, by_one = (load(each.model_files()[models.WEIGHTS]) for each in (two, one))
    for name, value in by_two.items():
        # Softmax does not see the keys' bias: its gradient is rounding error.
        if not name.endswith("k_proj.bias"):
            assert torch.allclose(value, by_one[name], atol=1e-3), name
