"""ResNet-50's parameters (He et al. 2015; torchvision's variant, 25,557,032 numbers in 161 tensors)."""

from __future__ import annotations

__all__ = ["resnet50_shapes"]


def resnet50_shapes() -> list[tuple[int, ...]]:
    """Return the shape of every parameter, in the order of the forward pass."""
    shapes: list[tuple[int, ...]] = []

    def convolution(channels_in: int, channels_out: int, width: int) -> None:
        shapes.extend([(channels_out, channels_in, width, width), (channels_out,), (channels_out,)])  # and its norm's

    convolution(3, 64, 7)
    channels = 64
    for inner, n_blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(n_blocks):
            convolution(channels, inner, 1)
            convolution(inner, inner, 3)
            convolution(inner, 4 * inner, 1)
            if block == 0:
                convolution(channels, 4 * inner, 1)
            channels = 4 * inner
    return [*shapes, (1000, 2048), (1000,)]
