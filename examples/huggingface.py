"""A training function with the Trainer of transformers, as Ray Train's documentation has it.

train: {function: examples.huggingface:train, best: {metric: eval_accuracy}}
model: of any family, such as {family: vit, pretrained: google/vit-base-patch16-224-in21k}
"""

import tempfile
from pathlib import Path

import ray.train
import torch
from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments


class WithLoss(nn.Module):
    """A network that also mirrors its images and returns its loss, as the Trainer wants it.

    It is a plain module: given a ViT of its own library, the Trainer of transformers 5.23 restores
    only a part of the weights when it resumes.
    """

    def __init__(self, network, flip):
        super().__init__()
        self.module = network
        self.flip = flip

    def forward(self, pixels, labels):
        """The loss and the logits (N, classes) of images (N, C, H, W) with labels (N,)."""
        if self.training and self.flip:
            mirrored = torch.rand(len(pixels), device=pixels.device) < 0.5
            pixels[mirrored] = pixels[mirrored].flip(3)
        output = self.module(pixels)
        logits = getattr(output, "logits", output)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def collate(examples):
    """A batch of images and their labels."""
    pixels, labels = zip(*examples, strict=True)
    return {"pixels": torch.stack(pixels), "labels": torch.tensor(labels)}


def accuracy(prediction):
    """The fraction of images whose class was found."""
    classes = prediction.predictions.argmax(1)
    return {"accuracy": float((classes == prediction.label_ids).mean())}


def train(config):
    """Trains, and reports each epoch."""
    share = config["batch_size"] // ray.train.get_context().get_world_size()
    with tempfile.TemporaryDirectory() as folder:  # of each worker its own
        arguments = TrainingArguments(
            output_dir=folder,
            num_train_epochs=config["epochs"],
            per_device_train_batch_size=share,
            per_device_eval_batch_size=share,
            learning_rate=config["lr"],
            weight_decay=config["weight_decay"],
            use_cpu=not torch.cuda.is_available(),  # else bf16 is refused there
            bf16=config["precision"] == "bf16",
            seed=config["seed"] % 2**32,
            eval_strategy="epoch",
            save_strategy="epoch",
            logging_strategy="epoch",
            save_total_limit=1,
            dataloader_pin_memory=torch.cuda.is_available(),
            remove_unused_columns=False,
            report_to="none",
            disable_tqdm=True,
            **config.get("trainer", {}),
        )
        trainer = Trainer(
            WithLoss(config["model"], config.get("flip", False)),
            arguments,
            data_collator=collate,
            train_dataset=config["train"],
            eval_dataset=config["val"],
            compute_metrics=accuracy,
            callbacks=[RayTrainReportCallback()],
        )
        trainer = prepare_trainer(trainer)
        trainer.remove_callback(PrinterCallback)
        if checkpoint := ray.train.get_checkpoint():
            with checkpoint.as_directory() as last:
                path = Path(last, RayTrainReportCallback.CHECKPOINT_NAME)
                trainer.train(resume_from_checkpoint=str(path))
        else:
            trainer.train()
