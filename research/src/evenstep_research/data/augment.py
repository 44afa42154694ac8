"""Random flip and padded crop of a batch, on the device where it lies.

Drawing and moving are apart: a CUDA graph records `moved` once, and `draw_moves` fills its tensors before each replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from evenstep.errors import InputError


@dataclass(frozen=True)
class Moves:
    """Where each image's crop starts in the padded image, and whether it is mirrored: three tensors [n]."""

    rows: Tensor
    columns: Tensor
    flips: Tensor
    padding: int


def augment(
    images: Tensor,
    *,
    generator: torch.Generator,
    padding: int = 4,
    flip: bool = True,
    fill: Sequence[float] | float = 0.0,
) -> Tensor:
    """Return images [n, channels, height, width], each cropped at random out of its padded self and mirrored.

    A crop is as large as the image; every second image is mirrored, on average. The padding is `fill`, one number or
    one for each channel. The generator must be of the images' device. Nothing waits for the device, and channels-last
    images stay so.
    """
    if generator.device.type != images.device.type:
        raise InputError(
            f"the generator is of {generator.device} and the images of {images.device}; "
            f"give torch.Generator('{images.device.type}')"
        )
    return moved(images, draw_moves(len(images), generator=generator, padding=padding, flip=flip), fill=fill)


def draw_moves(count: int, *, generator: torch.Generator, padding: int = 4, flip: bool = True) -> Moves:
    """Draw the moves of `count` images, on the generator's device."""
    if padding < 0:
        raise InputError(f"padding is {padding}; give a whole number of pixels, 0 or above")
    device = generator.device
    rows, columns = torch.randint(2 * padding + 1, (2, count), generator=generator, device=device).unbind()
    flips = torch.randint(2 if flip else 1, (count,), generator=generator, device=device)
    return Moves(rows, columns, flips.bool(), padding)


def moved(images: Tensor, moves: Moves, *, fill: Sequence[float] | float = 0.0) -> Tensor:
    """Apply moves to images [n, channels, height, width], padded with one number or one for each channel."""
    if images.ndim != 4 or len(images) != len(moves.rows):
        raise InputError(
            f"images are {list(images.shape)} and moves are for {len(moves.rows)}; give [n, channels, height, width] "
            "and as many moves"
        )
    numbers = torch.arange(len(images), device=images.device)
    return taken(padded(images, moves.padding, fill=fill), numbers, moves)


def padded(images: Tensor, padding: int, *, fill: Sequence[float] | float = 0.0) -> Tensor:
    """Return images [n, channels, height, width] with a margin of one number, or of one for each channel."""
    if isinstance(fill, float | int):
        return functional.pad(images, [padding] * 4, value=fill)
    if len(fill) != images.shape[1]:
        raise InputError(f"fill has {len(fill)} numbers and images {images.shape[1]} channels; give one for each")
    wide = functional.pad(images, [padding] * 4)
    height, width = images.shape[2:]
    for channel, value in enumerate(fill):
        whole = wide[:, channel]
        whole[:, :padding] = whole[:, padding + height :] = value
        whole[:, :, :padding] = whole[:, :, padding + width :] = value
    return wide


def taken(whole: Tensor, numbers: Tensor, moves: Moves) -> Tensor:
    """Return the crops of the images at `numbers` [n] out of images that are padded already, moved as drawn.

    A training that pads its data once takes every batch so, in a single gather.
    """
    height, width = (length - 2 * moves.padding for length in whole.shape[2:])
    device = whole.device
    steps = torch.arange(width, device=device)
    columns = torch.where(moves.flips[:, None], width - 1 - steps, steps) + moves.columns[:, None]
    rows = torch.arange(height, device=device) + moves.rows[:, None]
    if whole.is_contiguous(memory_format=torch.channels_last) and not whole.is_contiguous():
        last = whole.permute(0, 2, 3, 1)
        return last[numbers[:, None, None], rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
    channels = torch.arange(whole.shape[1], device=device)[:, None, None]
    return whole[numbers[:, None, None, None], channels, rows[:, None, :, None], columns[:, None, None, :]]
