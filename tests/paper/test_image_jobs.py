"""Small networks and made-up images of quick runs."""

from pathlib import Path

import pytest

from equicolor.paper.image_jobs import narrow
from equicolor.paper.quick_images import quick_note, write_images
from equicolor.training.recipes import find_recipe


def test_narrow_networks_keep_the_parameters_about_equal() -> None:
    sizes = []
    for name in ("baseline", "ce-4", "hsv-6"):
        network = narrow(find_recipe(name, "flowers102"), 16).build(10)
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
