"""An attention mask, and what torch makes of it before the efficient kernel reads it as a bias."""

from __future__ import annotations

from typing import NamedTuple

from .rounding import round_up

#: torch hands the kernel rows that begin at a multiple of so many elements.
_ALIGNED = 8
#: The gradient of a mask has rows padded to a multiple of so many.
_GRADIENT_ALIGNED = 16


class BiasStrides(NamedTuple):
    """Elements between two heads and between two rows of the bias that the kernel reads."""

    head: int
    row: int


class Mask(NamedTuple):
    """A mask as it is given: up to four dimensions, of which batch, heads and rows may be one."""

    shape: tuple[int, ...]
    #: In elements, one for each dimension.
    strides: tuple[int, ...]
    #: A boolean mask is made a new tensor of numbers.
    boolean: bool = False
    requires_grad: bool = False

    def cut(self, dim: int, length: int) -> Mask:
        """The part that goes with a chunk of a call: cut where the mask has the dimension.

        ``dim`` counts from the last dimension.
        """
        if len(self.shape) < -dim or self.shape[dim] == 1:
            return self
        shape = list(self.shape)
        shape[dim] = length
        return self._replace(shape=tuple(shape))

    def bias(self, heads: int, rows: int) -> BiasStrides:
        """The strides of the bias of a call with so many heads and query rows.

        torch makes a new tensor of a boolean mask, and of one with a stride that is no multiple of
        8, with the rows padded (https://github.com/pytorch/pytorch/issues/147585: 46344 needs no
        padding); a row length that is such a multiple already grows by 8. Then it is expanded.
        """
        strides = dense_in_order(self.shape, self.strides) if self.boolean else self.strides
        if strides[-1] != 1 or any(stride % _ALIGNED != 0 for stride in strides[:-1]):
            row = self.shape[-1] + _ALIGNED - self.shape[-1] % _ALIGNED
            strides = dense((*self.shape[:-1], row))
        by_row = strides[-2] if len(strides) > 1 and self.shape[-2] == rows else 0
        if len(strides) > 2:
            return BiasStrides(strides[-3] if self.shape[-3] == heads else 0, by_row)
        # The dimensions that expanding adds have the stride of a whole dimension below, or 0.
        return BiasStrides(rows * by_row if heads == 1 else 0, by_row)

    # Dynamo, in torch 2.9, traces no property of a named tuple.
    def gradient_row(self) -> int:
        """Elements between two rows of the gradient, which is made for the expanded mask."""
        if not self.requires_grad:
            return 0
        return round_up(self.shape[-1], _GRADIENT_ALIGNED)


def plain_mask(rows: int, columns: int, requires_grad: bool = False) -> Mask:
    """A contiguous mask of numbers, broadcast over batch and heads."""
    return Mask((rows, columns), (columns, 1), requires_grad=requires_grad)


def dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a contiguous tensor."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def dense_in_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of a new tensor with the dimensions of another in the same order in memory.

    A dimension that is broadcast (stride 0) stays where its place among the dimensions is.
    """
    order: list[int] = []
    for dim in reversed(range(len(shape))):
        at = len(order)
        while at > 0 and 0 < strides[dim] < strides[order[at - 1]]:
            at -= 1
        order.insert(at, dim)
    made, step = [0] * len(shape), 1
    for dim in order:
        made[dim] = step
        step *= shape[dim]
    return tuple(made)
