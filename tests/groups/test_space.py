"""Quarter turns and mirror images form a group, and act as one on images and features."""

import itertools

import pytest
import torch

from equicolor.groups import SpatialGroup

each_group = pytest.mark.parametrize("group", [SpatialGroup("p4"), SpatialGroup("p4m")], ids=str)


def product(group, s, t):
    """The element that does what t and then s do, found by trying all."""
    image = torch.arange(12.0).view(3, 4)
    result = group.transform(group.transform(image, t), s)
    (element,) = [e for e in range(group.order) if torch.equal(group.transform(image, e), result)]
    return element


@each_group
def test_every_product_is_an_element_and_every_element_has_an_inverse(group):
    table = [[product(group, s, t) for t in range(group.order)] for s in range(group.order)]
    assert all(sorted(row) == list(range(group.order)) for row in table)
    assert table[0] == list(range(group.order))


@each_group
def test_entries_move_by_the_group_law(group):
    for s in range(group.order):
        moved = group.permute(torch.arange(group.order), s, 0)
        for t in range(group.order):
            assert moved[product(group, s, t)] == t


@each_group
def test_features_follow_products(group):
    x = torch.rand(2, 3 * group.order, 2, 4, 5)
    for s, t in itertools.product(range(group.order), repeat=2):
        twice = group.transform_features(group.transform_features(x, t), s)
        assert torch.equal(twice, group.transform_features(x, product(group, s, t)))


def test_p4_is_the_first_half_of_p4m():
    image = torch.rand(4, 5)
    for s in range(4):
        turned = SpatialGroup("p4").transform(image, s)
        assert torch.equal(turned, SpatialGroup("p4m").transform(image, s))
        assert torch.equal(turned, torch.rot90(image, s))
    assert torch.equal(SpatialGroup("p4m").transform(image, 4), image.flip(1))


def test_p1_does_nothing():
    x = torch.rand(2, 3, 2, 4, 5)
    assert torch.equal(SpatialGroup().transform_features(x, 0), x)


def test_errors_say_what_came():
    with pytest.raises(ValueError, match="spatial must be one of 'p1', 'p4', 'p4m'; got 'p6'"):
        SpatialGroup("p6")
    with pytest.raises(ValueError, match="p4 has the elements 0 to 3, got element 4"):
        SpatialGroup("p4").transform(torch.rand(2, 2), 4)
    with pytest.raises(ValueError, match=r"in groups of 4, got 6: \[1, 6, 3, 5, 5\]"):
        SpatialGroup("p4").transform_features(torch.rand(1, 6, 3, 5, 5), 1)
    with pytest.raises(ValueError, match=r"permutes 4 entries, got 8 in dimension -1 of \[2, 8\]"):
        SpatialGroup("p4").permute(torch.rand(2, 8), 1, -1)
