"""Names that commands give to what they write."""

from pathlib import Path

import pytest

from equicolor.cli.options import slug


@pytest.mark.parametrize(
    ("network", "data", "name"),
    [
        (".", None, "first"),
        ("..", None, "runs"),
        ("../second/..", None, "runs"),
        ("model.safetensors", None, "first"),
        ("../model.safetensors", None, "runs"),
        ("net.safetensors", ".", "net.safetensors-first"),
        (".", "..", "first-runs"),
        ("../latest", None, "latest"),
        ("timm:resnet18.a1_in1k", "flowers102", "timm_resnet18.a1_in1k-flowers102"),
        ("/model.safetensors", None, "root"),
    ],
)
def test_what_is_written_is_named_after_folders(
    network: str, data: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("first")
    monkeypatch.chdir(tmp_path / "runs" / "first")
    assert slug(network, data) == name
