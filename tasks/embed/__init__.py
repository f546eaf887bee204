"""The step `embed`, which embeds the images with a pretrained network."""
