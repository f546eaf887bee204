"""What a person is told of a pretrained network's image processor: files as they are published."""

import json

import pytest

from models.processing import difference

VIT = {"image_processor_type": "ViTImageProcessor", "size": 224}
CLIP = {"image_processor_type": "CLIPImageProcessor", "size": 224, "crop_size": 224}
DEIT = {"image_processor_type": "DeiTImageProcessor"}
CROPPED = {"size": 224, "channels": 3, "resize": "crop"}
STRETCHED = CROPPED | {"resize": "stretch"}
BILINEAR = "bilinear resampling (here bicubic)"


@pytest.mark.parametrize(
    ("processor", "images", "found"),
    [
        (VIT, CROPPED, f"resize stretch (here crop), {BILINEAR}"),
        (VIT, STRETCHED | {"size": 64}, f"size 224 (here 64), {BILINEAR}"),
        (CLIP, CROPPED, None),
        (DEIT, STRETCHED, "the middle 224 of 256 pixels (here all)"),
        (VIT | {"do_resize": False}, CROPPED, None),
        (None, CROPPED, None),
    ],
)
def test_what_a_processor_has_that_the_workload_has_not_is_said(tmp_path, processor, images, found):
    if processor:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    said = difference(str(tmp_path), None, images)
    if found is None:
        assert said is None
    else:
        assert said is not None and f"own image processor has {found}. Images are" in said
