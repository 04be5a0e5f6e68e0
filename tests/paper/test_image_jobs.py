"""Names of recipes: what they mean, and that equal recipes have one name; made-up images."""

from pathlib import Path

import pytest

from equicolor.paper.image_jobs import named_recipe, narrow
from equicolor.paper.quick_images import quick_note, write_images
from equicolor.training.recipes import find_recipe, recipes


def test_names_of_the_tables_keep_their_recipes() -> None:
    for name, recipe in recipes("flowers102").items():
        found = named_recipe(name.partition("/")[2], "flowers102")
        assert found == (name.partition("/")[2], recipe)


@pytest.mark.parametrize(
    ("name", "dataset", "canonical"),
    [
        ("rgb-3", "flowers102", "ce-4"),
        ("rgb-3", "cifar10", "ce-3"),
        ("hsv-1", "cifar10", "baseline"),
        ("rgb-1+jitter-0.5", "flowers102", "baseline+jitter"),
        ("baseline+jitter-0", "flowers102", "baseline"),
        ("rgb-3+jitter-0.20", "flowers102", "ce-4+jitter-0.2"),
        ("rgb-3+jitter+flatten", "flowers102", "ce-4+flatten+jitter"),
        ("hsv-5+augmix", "flowers102", "hsv-5+augmix"),
        ("hsv-24+augmix+jitter", "flowers102", "hsv-24+jitter+augmix"),
    ],
)
def test_equal_recipes_have_one_name(name: str, dataset: str, canonical: str) -> None:
    found = named_recipe(name, dataset)
    assert found[0] == canonical
    assert named_recipe(canonical, dataset) == found


def test_what_a_name_changes() -> None:
    plain = find_recipe("baseline", "flowers102")
    ten = named_recipe("rgb-10", "flowers102")[1]
    assert plain.differences(ten) == [
        "model ce_resnet18 instead of resnet18",
        "options {'rotations': 10, 'lifting': 'rgb'} instead of {}",
    ]
    flat = named_recipe("ce-4+flatten+jitter-0.1", "flowers102")[1]
    assert flat.options == {"rotations": 3, "ce_stages": 4, "coset_pool": None}
    assert flat.jitter == 0.1
    both = named_recipe("ce-4+jitter+augmix", "flowers102")[1]
    assert (both.jitter, both.augmix) == (0.5, "original")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hvs-12", "unknown recipe 'flowers102/hvs-12'; did you mean"),
        ("ce-4+jiter", "unknown recipe 'flowers102/ce-4\\+jiter'; did you mean"),
        ("ce-4+jitter+jitter-0.1", "unknown recipe"),
        ("baseline+flatten", "baseline has no rotations to pool"),
        ("gray+avg", "gray has no rotations to pool"),
    ],
)
def test_bad_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_recipe(name, "flowers102")


def test_narrow_networks_keep_the_parameters_about_equal() -> None:
    sizes = []
    for name in ("baseline", "ce-4", "hsv-6"):
        network = narrow(named_recipe(name, "flowers102")[1], 16).build(10)
        sizes.append(sum(parameter.numel() for parameter in network.parameters()))
    assert max(sizes) / min(sizes) < 1.15


@pytest.mark.slow
def test_made_up_images_are_written_once(tmp_path: Path) -> None:
    place = write_images("coloured-digits", tmp_path)
    assert place == tmp_path / "coloured-digits"
    counts = [len(list(place.glob(f"{split}/*/*.png"))) for split in ("train", "test")]
    assert counts == [600, 200]
    written = place.stat().st_mtime_ns
    assert write_images("coloured-digits", tmp_path).stat().st_mtime_ns == written


def test_made_up_images_are_named() -> None:
    assert quick_note(["flowers102"]) == ""
    assert quick_note(["any-hue-digits"]).startswith("A quick run, on made-up images: digits of an")
