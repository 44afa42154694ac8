"""Check what scales make of families."""

import itertools
import math

import pytest
import torch

from evenstep.errors import InputError
from evenstep_research.study.transfer.benchmark import BenchmarkResources
from evenstep_research.study.transfer.families import Architecture, families, graph_of, maker
from evenstep_research.study.transfer.measure import METHODS, predictions
from evenstep_research.study.transfer.scales import CPU, FULL, SCALES, SMOKE, families_at, scale_named, scaled, spread


def test_full_is_the_families_as_they_are() -> None:
    assert families_at(FULL) == families()
    assert len({family.name for family in families()}) == len(families())


def test_every_architecture_of_a_family_is_another() -> None:
    for scale in SCALES.values():
        for family in families_at(scale):
            assert len(set(family.architectures)) == len(family.architectures)
            assert len({(a.code, a.kernel_size, a.width) for a in family.architectures}) == len(family.architectures)


@pytest.mark.parametrize("scale", [SMOKE, CPU], ids=lambda scale: scale.name)
def test_small_scales_are_small(scale: object) -> None:
    assert isinstance(scale, type(SMOKE))
    assert scale.most is not None
    for family in families():
        small = scaled(family, scale)
        assert small.setting.image[1:] == (8, 8)
        assert small.setting.width <= 64
        assert 1 <= len(small.architectures) <= scale.most
        assert small.architectures[0].shape == family.architectures[0].shape
        varied = {one.width for one in small.architectures} != {None}
        assert varied == family.name.startswith("width-")
        if varied:  # every shape at every width
            shapes = {one.shape for one in small.architectures}
            assert len(shapes) * len(scale.over_width) == len(small.architectures)
            assert small.title.startswith(f"widths {scale.over_width[0]} to {scale.over_width[-1]}")
        else:
            assert set(small.architectures) <= set(family.architectures)


def test_smoke_has_the_kinds_that_differ() -> None:
    found = families_at(SMOKE)
    assert len(found) == 6
    assert {family.setting.optimizer for family in found} == {"sgd", "momentum", "adam"}
    assert {family.setting.kind for family in found} == {"mlp", "cnn"}
    assert "batch" in {family.setting.norm for family in found}


def test_networks_are_picked_by_their_names() -> None:
    every, (some,) = families_at(FULL, ("mlp-pre", "cnn")), families_at(FULL, ("mlp-pre",), ("chain ?", "dense [23]"))
    assert [one.name for one in some.architectures] == [
        *(f"chain {depth}" for depth in (1, 2, 3, 4, 6, 8)),
        "dense 2",
        "dense 3",
    ]
    assert set(some.architectures) < set(every[0].architectures)
    assert [f.name for f in families_at(FULL, ("mlp-pre", "cnn"), ("*kernel 7",))] == ["cnn"]  # the other has none
    with pytest.raises(InputError, match=r"no network's name matches 'chian \*'.*'chain 1'"):
        families_at(FULL, ("mlp-pre",), ("chain *", "chian *"))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 10, 31, 40])
def test_a_spread_keeps_the_first_and_the_ends(count: int) -> None:
    every = tuple(Architecture(str(n), "2") for n in range(31))
    found = spread(every, count)
    assert len(found) == min(count, 31)
    assert found[0] == every[0]
    assert list(found) == sorted(found, key=lambda one: int(one.name))
    if count > 1:
        assert found[-1] == every[-1]
        places = [int(one.name) for one in found]
        gaps = {after - before for before, after in itertools.pairwise(places)}
        assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize("family", families_at(CPU), ids=lambda family: family.name)
def test_every_network_of_the_cpu_scale_reads_its_data_and_every_method_has_a_rate(family: object) -> None:
    assert isinstance(family, type(families()[0]))
    images = BenchmarkResources().load(family.setting.image)[0][:2]
    for architecture in (family.base, family.architectures[-1]):
        assert maker(family.setting, architecture)()(images).shape == (2, 10)
        assert graph_of(family.setting, architecture)
        picked = predictions(family.setting, architecture, family.base, 0.1)
        assert set(picked) == set(METHODS)
        assert all(0 < rate < math.inf for rate in picked.values())
    assert predictions(family.setting, family.base, family.base, 0.1) == pytest.approx(dict.fromkeys(METHODS, 0.1))


def test_grey_digits_fill_three_channels() -> None:
    grey, colour = BenchmarkResources().load((1, 8, 8)), BenchmarkResources().load((3, 8, 8))
    assert torch.equal(colour[0], grey[0].repeat(1, 3, 1, 1))
    assert torch.equal(colour[1], grey[1])
    with pytest.raises(InputError, match="the digits are 8 x 8"):
        BenchmarkResources().load((3, 32, 32))


def test_names_that_do_not_exist() -> None:
    with pytest.raises(InputError, match="scale is 'huge'; choose one of smoke, cpu, full"):
        scale_named("huge")
    with pytest.raises(InputError, match="no family 'mlp'; choose from chains, mlp-pre"):
        families_at(SMOKE, ("mlp",))
    assert [family.name for family in families_at(SMOKE, ("mlp-layer", "chains"))] == ["chains", "mlp-layer"]
