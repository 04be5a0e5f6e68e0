"""Vision transformers on the interactive page: their tokens as maps."""

import json
import re

import pytest
from PIL import Image
from typer.testing import CliRunner

from equicolor.cli.app import app

for library in ("torchvision", "timm"):
    pytest.importorskip(library, reason="torchvision or timm is missing; 'make vision' has both")

OWN = """
from timm.models.vision_transformer import VisionTransformer
from torchvision.models.vision_transformer import VisionTransformer as Other


def of_timm():
    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=16, depth=3, num_heads=2, num_classes=2, reg_tokens=4
    )


def of_torchvision():
    return Other(
        image_size=32, patch_size=4, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32,
        num_classes=2,
    )
"""


def test_transformers_side_by_side(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for label, colour in {"apple": (200, 40, 30), "banana": (220, 200, 40)}.items():
        (tmp_path / "fruit" / "test" / label).mkdir(parents=True)
        (tmp_path / "fruit" / "train" / label).mkdir(parents=True)
        for index in range(3):
            picture = Image.new("RGB", (40, 40), tuple(index * 10 + value for value in colour))
            for split in ("test", "train"):
                picture.save(tmp_path / "fruit" / split / label / f"{index}.png")
    (tmp_path / "mine.py").write_text(OWN)
    options = "--data fruit --size 32 --device cpu --shifts 4 --top 2 --examples 2 -o page.html"
    arguments = ["inspect", "mine.py:of_timm", "--compare", "mine.py:of_torchvision"]
    result = CliRunner().invoke(app, [*arguments, *options.split()], prog_name="equicolor")
    assert result.exit_code == 0, result.stderr
    page = (tmp_path / "page-interactive.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    sizes = [
        {layer["name"]: (layer["height"], layer["width"]) for layer in network["layers"]}
        for network in data["networks"]
    ]
    first, second = sizes
    assert first["network.blocks.2.mlp.act"] == (4, 4)  # 16 of 21 tokens
    last = [name for name in second if "encoder_layer_1" in name]
    assert [second[name] for name in last] == [(8, 8)]  # 64 of 65
    assert all(len(network["curve"]) == 4 for network in data["networks"])
