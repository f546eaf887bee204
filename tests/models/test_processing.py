"""What a person is told of a pretrained network's image processor: files as they are published."""

import json

import pytest

from models.processing import difference

MEAN = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
VIT = {"do_resize": True, "size": {"height": 224, "width": 224}, "resample": 2}
OLD_VIT = {"do_resize": True, "size": 224, "resample": 2}
CLIP = {
    "size": {"shortest_edge": 224}, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, "resample": 3,
}  # fmt: skip
OLD_CLIP = {"size": 224, "do_center_crop": True, "crop_size": 224, "resample": 3}
DEIT = {
    "size": {"height": 256, "width": 256}, "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224}, "resample": 3,
}  # fmt: skip
RESNET = {"size": {"shortest_edge": 224}, "crop_pct": 0.875, "resample": 3}
CONVNEXT = {"size": {"shortest_edge": 384}, "crop_pct": 0.875, "resample": 3}
CROPPED = {"size": 224, "channels": 3, "resize": "crop"}
STRETCHED = CROPPED | {"resize": "stretch"}
BILINEAR = "bilinear resampling (here bicubic)"


@pytest.mark.parametrize(
    ("processor", "images", "found"),
    [
        (VIT, CROPPED, f"resize stretch (here crop), {BILINEAR}"),
        (OLD_VIT, STRETCHED, BILINEAR),
        (VIT, STRETCHED | {"size": 64}, f"size 224 (here 64), {BILINEAR}"),
        (CLIP, CROPPED, None),
        (OLD_CLIP, CROPPED, None),
        (DEIT, STRETCHED, "the middle 224 of 256 pixels (here all)"),
        (RESNET, CROPPED, "the middle 224 of 256 pixels (here all)"),
        (CONVNEXT, CROPPED | {"size": 384}, "resize stretch (here crop)"),
        ({"do_resize": False, "size": 7}, CROPPED, None),
        ({}, CROPPED, None),
    ],
)
def test_what_a_processor_has_that_the_workload_has_not_is_said(tmp_path, processor, images, found):
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(MEAN | processor))
    said = difference(str(tmp_path), None, images)
    if found is None:
        assert said is None
    else:
        assert said is not None and f"own image processor has {found}. Images are" in said


def test_a_network_without_a_processor_is_not_mentioned(tmp_path):
    assert difference(str(tmp_path), None, CROPPED) is None
