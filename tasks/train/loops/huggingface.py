"""Trains with the `Trainer` of `transformers`, in each worker of Ray Train.

The Trainer gets a plain module around the network, and not the network of `transformers`: given
that, transformers 5.23 restores only a part of the weights when it resumes a ViT. Its checkpoints
go to the scratch folder, which all workers see; Ray Train need not copy them.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrain.faults import did_you_mean
from retrain.workload import Train, Workload
from tasks.data.shards import Prepared, open_prepared
from tasks.train import checkpoint, device
from tasks.train.adapters import add_adapters, merge_adapters
from tasks.train.job import TrainingJob
from tasks.train.sampler import BatchSampler

if TYPE_CHECKING:
    from torch import Tensor

    from models.network import Network

NAME = "the loop huggingface"
METRICS = ("train_loss", "val_loss", "val_accuracy")
STRATEGIES = ("ddp",)
INGESTS = ("auto", "dataloader")
USED = (
    *("loop", "arguments", "epochs", "batch_size", "lr", "weight_decay", "warmup", "schedule"),
    *("clip_norm", "label_smoothing", "micro_batch", "precision", "augment", "seed", "best"),
    *("early_stopping", "lora", "init"),
)
SCHEDULES = {"cosine": "cosine", "constant": "constant_with_warmup"}

# Arguments of the Trainer that have a key of their own in the workload.
KEYS = {
    "num_train_epochs": "train.epochs",
    "per_device_train_batch_size": "train.batch_size",
    "gradient_accumulation_steps": "train.micro_batch",
    "learning_rate": "train.lr",
    "weight_decay": "train.weight_decay",
    "warmup_steps": "train.warmup",
    "max_grad_norm": "train.clip_norm",
    "label_smoothing_factor": "train.label_smoothing",
    "bf16": "train.precision",
    "fp16": "train.precision",
    "seed": "train.seed",
    "data_seed": "train.seed",
    "metric_for_best_model": "train.best.metric",
    "save_total_limit": "scale.keep_checkpoints",
    "greater_is_better": "train.best.mode",
}
# And those that say where it runs and what it writes, which this project decides.
DECIDED = (
    *("auto_find_batch_size", "ddp_backend", "deepspeed", "disable_tqdm", "do_eval", "do_predict"),
    *("do_train", "enable_jit_checkpoint", "fsdp", "fsdp_config", "hub_always_push"),
    *("hub_model_id", "hub_private_repo", "hub_revision", "hub_strategy", "hub_token"),
    *("ignore_data_skip", "label_names", "load_best_model_at_end", "local_rank", "output_dir"),
    *("parallelism_config", "prediction_loss_only", "push_to_hub", "remove_unused_columns"),
    *("report_to", "restore_callback_states_from_checkpoint", "resume_from_checkpoint"),
    *("run_name", "save_on_each_node", "save_only_model", "save_steps", "save_strategy"),
    "use_cpu",
)


def faults(workload: Workload) -> Iterator[str]:
    """A sentence for each setting that the Trainer could not follow."""
    hyperparameters = workload.train
    if hyperparameters.schedule not in SCHEDULES:
        yield (
            f"train.schedule: {NAME} has {' and '.join(SCHEDULES)}; others by "
            "train.arguments.lr_scheduler_type."
        )
    workers, parts = max(workload.scale.workers, 1), hyperparameters.micro_batch or 1
    if hyperparameters.batch_size % (workers * parts):
        yield (
            f"train.batch_size: {NAME} takes equal parts only; {hyperparameters.batch_size} is no "
            f"multiple of {workers * parts}, micro_batch times the workers."
        )
    for name in hyperparameters.arguments:
        if name in KEYS:
            yield f"train.arguments.{name}: set {KEYS[name]} instead."
        elif name in DECIDED:
            yield f"train.arguments.{name}: this project decides it."


def slow_faults(hyperparameters: Train, root: Path) -> Iterator[str]:
    """A sentence for each argument that the Trainer does not know or does not take."""
    from dataclasses import fields

    from transformers import TrainingArguments

    known = {field.name for field in fields(TrainingArguments)}
    unknown = [name for name in hyperparameters.arguments if name not in known]
    for name in unknown:
        yield f"train.arguments.{name}: no such argument.{did_you_mean(name, known)}"
    if unknown:
        return
    try:
        TrainingArguments(**_arguments(hyperparameters, 1, Path("unused"), 0, on_cpu=True))
    except (TypeError, ValueError) as error:
        yield f"train.arguments: {str(error).splitlines()[0]}"


def work(config: Mapping[str, TrainingJob]) -> dict[str, Any]:
    """Trains, as one of the workers: from its last checkpoint if there is one.

    Args:
        config: The job, under `job`.

    Returns:
        As the loop `torch` does.

    Raises:
        PrunedError: The training is a trial of a search, which ends it.
        ValueError: The network does not fit the images, or the training diverged.
    """
    import torch
    from ray.train import get_context
    from ray.train.torch import get_device

    job, on_cpu = config["job"], get_device().type == "cpu"
    device.make_repeatable(get_device())
    data = open_prepared(job.images)
    threads = device.set_threads(get_device(), job.threads)
    torch.manual_seed(job.hyperparameters.seed)
    network = job.build(data)
    if job.hyperparameters.lora:
        add_adapters(network, job.hyperparameters.lora)
    precision = job.hyperparameters.precision
    attention = network.prefer_attention(get_device().type, precision)
    with device.known_to_accelerate(on_cpu):
        record = _train(job, data, network, on_cpu)
    if get_context().get_world_rank():
        return {}
    assert record.best is not None
    network.cpu().load_state_dict(record.best["weights"])
    if job.hyperparameters.lora:
        merge_adapters(network)
    job.save(network, data)
    return {
        "history": record.history,
        "best": record.best["epoch"],
        "parameters": sum(each.numel() for each in network.parameters()),
        "numerics": {
            "precision": precision,
            "attention": attention,
            "compiled": bool(job.hyperparameters.arguments.get("torch_compile")),
            "threads": threads,
        },
    }


def _train(job: TrainingJob, data: Prepared, network: "Network", on_cpu: bool) -> Any:
    """Runs the Trainer; returns its record."""
    from ray.train import get_context
    from ray.train.huggingface.transformers import prepare_trainer
    from transformers import PrinterCallback, TrainingArguments

    from tasks.train.datasets import SplitDataset
    from tasks.train.trainer_record import LabelledNetwork, NetworkTrainer, Record

    context = get_context()
    workers = context.get_world_size()
    share = job.hyperparameters.batch_size // workers
    folder = job.scratch / checkpoint.FOLDER
    chosen = _arguments(job.hyperparameters, share, folder, job.data_cpus, on_cpu=on_cpu)
    arguments = TrainingArguments(**chosen)
    arguments._n_gpu = min(arguments.n_gpu, 1)  # it would spread over all that it sees
    batches = BatchSampler(
        rows=len(data.split("train")),
        size=arguments.per_device_train_batch_size * workers,
        seed=job.hyperparameters.seed,
        rank=context.get_world_rank(),
        workers=workers,
    )
    labelled = LabelledNetwork(network, job.hyperparameters, batches, data.images["size"])
    record = Record(job, labelled, batches)
    trainer = prepare_trainer(
        NetworkTrainer(
            labelled,
            arguments,
            data_collator=_collate,
            train_dataset=SplitDataset(job.images, "train", job.memory_gb).loaded(),
            eval_dataset=SplitDataset(job.images, "val", job.memory_gb).loaded(),
            compute_metrics=_metrics,
            preprocess_logits_for_metrics=_classes_and_losses,
            callbacks=[record],
        )
    )
    trainer.remove_callback(PrinterCallback)
    last = record.restore()
    if not record.is_over:
        trainer.train(resume_from_checkpoint=str(last) if last else None)
        if not record.history or record.history[-1]["step"] < trainer.state.global_step:
            trainer.evaluate()
    job.check_pruned(record.history)
    record.finish()
    return record


def _arguments(
    hyperparameters: Train, share: int, folder: Path, data_cpus: int, *, on_cpu: bool
) -> dict[str, Any]:
    """The arguments of the Trainer.

    Args:
        hyperparameters: How the network is trained.
        share: Images of a batch for each worker.
        folder: Of the checkpoints.
        data_cpus: Processes that load images.
        on_cpu: Whether it trains on CPUs.
    """
    at_once = hyperparameters.micro_batch or share
    return {
        "per_device_train_batch_size": at_once,
        "per_device_eval_batch_size": at_once,
        "gradient_accumulation_steps": max(share // at_once, 1),
        "num_train_epochs": hyperparameters.epochs,
        "learning_rate": hyperparameters.lr,
        "lr_scheduler_type": SCHEDULES.get(hyperparameters.schedule, "cosine"),
        "warmup_steps": hyperparameters.warmup,  # a fraction of all steps, if below 1
        "weight_decay": hyperparameters.weight_decay,
        "max_grad_norm": hyperparameters.clip_norm,
        "bf16": hyperparameters.precision == "bf16",
        "seed": hyperparameters.seed % (1 << 32),
        "eval_strategy": "epoch",
        "logging_strategy": "no",  # the history has what is evaluated
        "dataloader_pin_memory": not on_cpu,
        "dataloader_num_workers": data_cpus,
        **hyperparameters.arguments,
        "output_dir": str(folder),
        "save_strategy": "no",  # the record says when
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": on_cpu,
    }


def _collate(examples: "list[tuple[Tensor, int]]") -> "dict[str, Tensor]":
    """A batch: uint8 images (N, H, W, C) and int64 labels (N,)."""
    import torch

    images, labels = zip(*examples, strict=True)
    return {"images": torch.stack(images), "labels": torch.tensor(labels)}


def _classes_and_losses(logits: "Tensor", labels: "Tensor") -> "tuple[Tensor, Tensor]":
    """The class that is found for each image, and its cross-entropy.

    The Trainer's own mean counts images twice with which it fills the last batches of workers.
    """
    import torch

    losses = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
    return logits.argmax(1), losses


def _metrics(prediction: Any) -> dict[str, float]:
    """The fraction of images whose class was found, and the mean cross-entropy (nats)."""
    classes, losses = prediction.predictions
    return {
        "accuracy": float((classes == prediction.label_ids).mean()),
        "cross_entropy": float(losses.mean(dtype="float64")),
    }
