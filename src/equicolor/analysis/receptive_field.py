"""Receptive fields: which pixels a unit can see, exactly, in any network.

They come from one pass of the network, during which every tensor carries along what its elements
depend on (:mod:`equicolor.analysis.dependence`). Arithmetic on a list of layers would need the
network to be a chain. Gradients are zero where a rectifier is zero, and reach only the largest
element of a maximum. Here a dependence is what the operations allow, for any weights and images.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from equicolor._text import brief_repr
from equicolor.analysis.planes import NOMINAL, Planes

Box = tuple[int, int, int, int]  # top, left, bottom, right; the last two just outside
SINGLE = "padding of a single position"


@dataclass(frozen=True, eq=False)
class ReceptiveField:
    """What the units of a layer can see, and the frame to show it in.

    The **field** of a unit at a position is the smallest box that holds every pixel it depends
    on; it is (0, 0, 0, 0) if there are none. The **frame** is the field in an image without
    borders: it has the same size at every position and may reach outside the image. Global
    pooling within a network, as in squeeze-and-excitation or instance norms, makes the field the
    whole image, but not the frame, which follows local operations. The frame is the whole image
    if none of one size moves by equal steps, or if a map of one row or column is padded and the
    distance to the next one is unknown.

    Attributes:
        rows: int64 :math:`[C, H, 2]`: for every channel and row of positions, the first row of
            the image it depends on, and the one after the last.
        columns: int64 :math:`[C, W, 2]`, the same for columns.
        frame_rows: int64 :math:`[C, 3]`: the first row of the frame at the first position, the
            step from one position to the next, and the height of the frame.
        frame_columns: int64 :math:`[C, 3]`, the same for columns.
        unknown: operations before this layer whose dependence was overestimated, and
            :data:`SINGLE` if that is why the frame is the whole image; empty if fields and
            frames are exact.
    """

    rows: Tensor
    columns: Tensor
    frame_rows: Tensor
    frame_columns: Tensor
    unknown: frozenset[str] = frozenset()

    __repr__ = brief_repr

    def box(self, channel: int, position: int) -> Box:
        """The field of a unit.

        Args:
            channel: the number of the channel.
            position: ``row * W + column``.
        """
        row, column = divmod(position, self.columns.shape[1])
        top, bottom = self.rows[channel, row].tolist()
        left, right = self.columns[channel, column].tolist()
        return top, left, bottom, right

    def frame(self, channel: int, position: int) -> Box:
        """The frame of a unit, which may reach outside the image; otherwise as :meth:`box`."""
        row, column = divmod(position, self.columns.shape[1])
        first_row, row_step, height = self.frame_rows[channel].tolist()
        first_column, column_step, width = self.frame_columns[channel].tolist()
        top, left = first_row + row * row_step, first_column + column * column_step
        return top, left, top + height, left + width

    def size(self, channel: int = 0) -> tuple[int, int]:
        """Height and width of the frame."""
        return int(self.frame_rows[channel, 2]), int(self.frame_columns[channel, 2])


def field_from_planes(
    planes: Planes, image: tuple[int, int], unknown: frozenset[str] = frozenset()
) -> ReceptiveField:
    """The fields of features ``[1, C, n, H, W]``, whose rotations see the same pixels."""
    axes = ((0, 2, 4), (0, 2, 4), (0, 2, 3), (0, 2, 3)) * 2
    lows = [plane.amin(axis).cpu() for plane, axis in zip(planes, axes, strict=False)]
    rows, columns, nominal_rows, nominal_columns = (
        torch.stack((first, 1 - last), -1)
        for first, last in zip(lows[::2], lows[1::2], strict=True)
    )
    if any(bool((lows[index] == -torch.inf).any()) for index in NOMINAL):
        unknown = unknown | {SINGLE}
    frames = _frame(nominal_rows, image[0]), _frame(nominal_columns, image[1])
    rows, columns = (ends.nan_to_num(posinf=0, neginf=0).long() for ends in (rows, columns))
    return ReceptiveField(rows, columns, *frames, unknown)


def _frame(interval: Tensor, extent: int) -> Tensor:
    """Start, step and size ``[C, 3]``, from nominal intervals ``[C, positions, 2]``."""
    start, end = interval.unbind(-1)
    sizes = end - start
    step = start[:, 1] - start[:, 0] if start.shape[1] > 1 else torch.zeros_like(start[:, 0])
    places = torch.arange(start.shape[1])
    regular = (
        interval.isfinite().all(-1).all(-1)
        & (sizes == sizes[:, :1]).all(-1)
        & (start == start[:, :1] + places * step[:, None]).all(-1)
        & ((step != 0) | (len(places) == 1))  # a frame must move
    )
    frame = torch.stack((start[:, 0], step, sizes[:, 0]), -1)
    whole = torch.tensor([0.0, 0.0, float(extent)])
    return torch.where(regular[:, None], frame, whole).long()
