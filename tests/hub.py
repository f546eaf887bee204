"""Small stand-ins for what workloads download: data sets and networks, in the hub's own layouts."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from tests.tasks.toy_data import encoded

BEANS = ("angular_leaf_spot", "bean_rust", "healthy")


def write_beans(folder: Path, side: int = 40) -> Path:
    """The data set `beans`: columns, names of files and metadata as on the hub; other images."""
    random = np.random.default_rng(0)
    feature = {"_type": "ClassLabel", "names": list(BEANS)}
    info = {"info": {"features": {"labels": feature}}}
    image_type = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema(
        {"image_file_path": pa.string(), "image": image_type, "labels": pa.int64()},
        metadata={"huggingface": json.dumps(info)},
    )
    (folder / "data").mkdir(parents=True)
    for split, count in (("train", 36), ("validation", 12), ("test", 12)):
        rows = []
        for number in range(count):
            label = number % len(BEANS)
            pixels = random.integers(0, 120, (side, side, 3), np.uint8)
            pixels[..., label] += 100
            path = f"{split}.{number}.jpg"
            image = {"bytes": encoded(Image.fromarray(pixels), "JPEG"), "path": path}
            rows.append({"image_file_path": path, "image": image, "labels": label})
        table = pa.Table.from_pylist(rows, schema)
        pq.write_table(table, folder / "data" / f"{split}-00000-of-00001.parquet")
    return folder


def write_mnist(folder: Path) -> Path:
    """The data set `mnist`: columns and names of files as on the hub; other images."""
    return _write_tens(folder / "mnist", "image", (28, 28))


def write_cifar10(folder: Path) -> Path:
    """The data set `cifar10`: columns and names of files as on the hub; other images."""
    return _write_tens(folder / "plain_text", "img", (32, 32, 3))


def _write_tens(folder: Path, column: str, shape: tuple[int, ...]) -> Path:
    """Ten classes, each with a bright stripe of its own, split into train and test."""
    random = np.random.default_rng(0)
    image_type = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({column: image_type, "label": pa.int64()})
    folder.mkdir(parents=True)
    for split, count in (("train", 120), ("test", 30)):
        rows = []
        for number in range(count):
            pixels = random.integers(0, 100, shape, np.uint8)
            pixels[:, 2 * (number % 10) : 2 * (number % 10) + 6] += 120
            image = {"bytes": encoded(Image.fromarray(pixels), "PNG"), "path": None}
            rows.append({column: image, "label": number % 10})
        table = pa.Table.from_pylist(rows, schema)
        pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")
    return folder.parent


def write_vit(folder: Path, size: int) -> Path:
    """A pretrained ViT without a head, as `google/vit-base-patch16-224-in21k` is one."""
    from transformers import ViTConfig, ViTImageProcessor, ViTModel

    config = ViTConfig(
        image_size=size, patch_size=8, hidden_size=16, num_hidden_layers=2,
        num_attention_heads=2, intermediate_size=32,
    )  # fmt: skip
    ViTModel(config).save_pretrained(folder)
    ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(folder)
    return folder


def write_doggos(folder: Path, side: int = 40) -> Path:
    """The data set `doggos`: a folder per split and per class; three classes, other images."""
    random = np.random.default_rng(0)
    for split, count in (("train", 36), ("val", 12), ("test", 12)):
        for number in range(count):
            label = number % 3
            pixels = random.integers(0, 120, (side, side, 3), np.uint8)
            pixels[..., label] += 100
            place = folder / split / ("basset", "collie", "pug")[label]
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(place / f"{number}.jpg")
    return folder


def write_clip(folder: Path, size: int) -> Path:
    """A CLIP with both its parts, as `openai/clip-vit-base-patch32` has them; random weights."""
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel

    sizes = {
        "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 32, "projection_dim": 12,
    }  # fmt: skip
    text = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = CLIPConfig(
        vision_config=sizes | {"image_size": size, "patch_size": 8},
        text_config=sizes | text,
        projection_dim=12,
    )
    CLIPModel(config).save_pretrained(folder)
    CLIPImageProcessor(size={"shortest_edge": size}).save_pretrained(folder)
    return folder
