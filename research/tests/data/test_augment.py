"""Check random flip and crop against one image at a time, padded, cut out and flipped."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from evenstep.errors import InputError
from evenstep_research.data import Moves, augment, draw_moves, moved

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def one_by_one(images: Tensor, moves: Moves) -> Tensor:
    height, width = images.shape[2:]
    results = []
    for image, row, column, flip in zip(images, moves.rows, moves.columns, moves.flips, strict=True):
        padded = functional.pad(image, [moves.padding] * 4)
        crop = padded[:, int(row) : int(row) + height, int(column) : int(column) + width]
        results.append(crop.flip(2) if flip else crop)
    return torch.stack(results)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("shape", "padding"),
    [((50, 3, 8, 8), 4), ((9, 1, 5, 7), 2), ((6, 4, 3, 2), 5), ((4, 2, 6, 6), 0), ((1, 3, 4, 4), 1)],
)
def test_moves_are_those_of_one_image_at_a_time(shape: tuple[int, ...], padding: int, last: bool, device: str) -> None:
    generator = torch.Generator(device).manual_seed(3)
    images = torch.randn(shape, generator=generator, device=device)
    if last:
        images = images.contiguous(memory_format=torch.channels_last)
    moves = draw_moves(len(images), generator=generator, padding=padding)
    found = moved(images, moves)
    assert torch.equal(found, one_by_one(images, moves))
    assert found.is_contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def test_images_of_any_stride_and_kind_are_moved() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(256, (12, 3, 10, 20), generator=generator, dtype=torch.uint8)
    images = whole[::2, :, :, 3:13].transpose(2, 3)
    moves = draw_moves(6, generator=generator, padding=3)
    assert torch.equal(moved(images, moves), one_by_one(images, moves))


def test_every_place_and_both_sides_are_drawn() -> None:
    moves = draw_moves(4000, generator=torch.Generator().manual_seed(0), padding=2)
    for places in (moves.rows, moves.columns):
        counts = torch.bincount(places, minlength=5)
        assert counts.shape == (5,)
        assert counts.min() > 650  # 800 on average, 25 of spread
    assert 0.45 < moves.flips.double().mean() < 0.55
    both = torch.stack([moves.rows.double(), moves.columns.double(), moves.flips.double()])
    assert (torch.corrcoef(both) - torch.eye(3)).abs().max() < 0.07
    assert not draw_moves(100, generator=torch.Generator().manual_seed(0), flip=False).flips.any()


def test_the_generator_decides_and_the_global_one_is_left_alone() -> None:
    before = torch.random.get_rng_state()
    images = torch.randn((16, 3, 8, 8), generator=torch.Generator().manual_seed(1))
    one, same, other = (augment(images, generator=torch.Generator().manual_seed(seed)) for seed in (5, 5, 6))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert torch.equal(before, torch.random.get_rng_state())
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(one, augment(images, generator=generator))
    assert not torch.equal(one, augment(images, generator=generator))


def test_without_padding_and_flip_nothing_moves() -> None:
    images = torch.randn((5, 3, 8, 8), generator=torch.Generator().manual_seed(1))
    found = augment(images, generator=torch.Generator().manual_seed(0), padding=0, flip=False)
    assert torch.equal(found, images)


def test_wrong_input_is_refused() -> None:
    generator = torch.Generator()
    with pytest.raises(InputError, match="padding is -1"):
        draw_moves(3, generator=generator, padding=-1)
    with pytest.raises(InputError, match=r"images are \[4, 3, 8\] and moves are for 4"):
        augment(torch.zeros(4, 3, 8), generator=generator)
    with pytest.raises(InputError, match=r"images are \[4, 3, 8, 8\] and moves are for 3"):
        moved(torch.zeros(4, 3, 8, 8), draw_moves(3, generator=generator))
    with pytest.raises(InputError, match=r"the generator is of cpu and the images of meta"):
        augment(torch.zeros(4, 3, 8, 8, device="meta"), generator=generator)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_gpu() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    images = torch.randn((64, 3, 32, 32), device="cuda")
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        augment(images, generator=generator)
        augment(images.contiguous(memory_format=torch.channels_last), generator=generator)
    finally:
        torch.cuda.set_sync_debug_mode(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("last", [False, True])
def test_a_recorded_graph_moves_by_what_was_drawn_since(last: bool) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    form = torch.channels_last if last else torch.contiguous_format
    images = torch.randn((64, 3, 32, 32), device="cuda").contiguous(memory_format=form)
    moves = draw_moves(64, generator=generator)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        moved(images, moves)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = moved(images, moves)
    for _ in range(3):
        drawn = draw_moves(64, generator=generator)
        moves.rows.copy_(drawn.rows)
        moves.columns.copy_(drawn.columns)
        moves.flips.copy_(drawn.flips)
        graph.replay()
        assert torch.equal(found, one_by_one(images, drawn))
