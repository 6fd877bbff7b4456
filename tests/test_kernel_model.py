"""The model of the kernels agrees with what was measured, reported and worked out by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from helpers.kernel_model import (
    Launch,
    Line,
    Mask,
    Strides,
    contiguous,
    dense,
    faults,
    line_of,
    sequence_first,
)

DATA = Path(__file__).parent / "data"
SEEDS = list(csv.DictReader((DATA / "seed_table.csv").open()))
CASES = list(csv.DictReader((DATA / "cases.csv").open()))
V2_7, V2_9 = Line.V2_5, Line.V2_8
#: musubi-tuner#1089: the value was a view of a packed tensor with this row stride.
PACKED_ROW = 21504


def rules(launch: Launch, backend: str, line: Line) -> set[str]:
    return {fault.rule for fault in faults(launch, backend, line)}


def details(launch: Launch, line: Line) -> set[str]:
    """What goes wrong on the one-row path."""
    found = faults(launch, "efficient", line)
    return {fault.detail.split(":")[0] for fault in found if fault.rule == "E12"}


def square_mask(length: int, *, boolean: bool = True) -> Mask:
    return Mask((length, length), (length, 1), boolean)


def masked(length: int, dim: int = 64, heads: int = 1, *, requires_grad: bool = False) -> Launch:
    mask = square_mask(length)
    return dense(1, heads, length, dim, requires_grad=requires_grad, mask=mask)


def shared_head(heads: int, seq_q: int, seq_k: int, dim: int = 64, **others: object) -> Launch:
    """One key/value head, expanded over the query's, without gradients."""
    kv = Strides(seq_k * dim, 0, dim)
    return dense(1, heads, seq_q, dim, seq_k=seq_k, key=kv, value=kv, **others)


@pytest.mark.parametrize("seed", SEEDS, ids=lambda s: "x".join(list(s.values())[:4]))
def test_it_agrees_with_the_measured_table(seed: dict[str, str]) -> None:
    shape = (int(seed[name]) for name in ("batch", "heads", "seq_q", "head_dim"))
    fails = "F1" in rules(dense(*shape, requires_grad=True), "flash", V2_9)
    assert fails == (seed["backward"] == "fails")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c["id"])
def test_it_has_the_reported_faults(case: dict[str, str]) -> None:
    batch, heads, seq_q, seq_k, dim = (
        int(case[k]) for k in ("batch", "heads", "seq_q", "seq_k", "head_dim")
    )
    value = contiguous(heads, seq_k, dim)
    if case["id"] == "musubi-1089":
        # At the reported length itself no block begins past the limit: see the next test.
        seq_q = seq_k = 99969
        value = Strides(0, dim, PACKED_ROW)
    launch = dense(
        batch,
        heads,
        seq_q,
        dim,
        seq_k=seq_k,
        value=value,
        itemsize=4 if case["dtype"] == "float32" else 2,
        requires_grad=case["pass"] == "backward",
        mask=None if case["mask"] == "no" else square_mask(seq_k),
    )
    line = V2_7 if case["expected_limit"] in ("E1", "E5") else V2_9
    assert case["expected_limit"] in rules(launch, case["backend"], line)


@pytest.mark.parametrize(("length", "fails"), [(99865, False), (99968, False), (99969, True)])
def test_packed_values_go_wrong_where_a_block_begins_past_the_limit(
    length: int, fails: bool
) -> None:
    launch = dense(1, 24, length, 128, value=Strides(0, 128, PACKED_ROW))
    assert ("E8" in rules(launch, "efficient", V2_9)) == fails


def test_the_cures_of_the_reports_cure() -> None:
    assert not rules(dense(400, 4, 10496, 128, requires_grad=True), "flash", Line.V2_12)
    assert not rules(dense(1, 24, 99969, 128), "efficient", V2_9)
    assert "E1" not in rules(dense(65536, 8, 4, 64), "efficient", V2_9)


@pytest.mark.parametrize(("length", "fails"), [(46336, False), (46344, False), (46345, True)])
def test_the_old_backward_reads_masks_up_to_46344(length: int, fails: bool) -> None:
    launch = masked(length, requires_grad=True)
    assert ("E5" in rules(launch, "efficient", V2_7)) == fails
    assert "E5" not in rules(launch, "efficient", V2_9)


@pytest.mark.parametrize(("length", "fails"), [(65536, False), (65537, True)])
def test_the_forward_reads_masks_up_to_65536(length: int, fails: bool) -> None:
    launch = masked(length)
    assert ("E6" in rules(launch, "efficient", V2_9)) == fails
    assert ("E6" in rules(launch, "efficient", Line.V2_12)) == fails
    assert "E6" not in rules(launch, "efficient", Line.V2_13)


def test_masks_become_what_torch_makes_of_them() -> None:
    # Expanded over the rows, with strides that are no multiple of 8: torch materialises it.
    length = 70001
    mask = Mask((1, 1, length, length), (length, length, 0, 1))
    assert "E6" in rules(dense(1, 1, length, 64, mask=mask), "efficient", V2_9)
    # Expanded and aligned: it stays a broadcast.
    length = 70000
    mask = Mask((1, 1, length, length), (length, length, 0, 1))
    assert "E6" not in rules(dense(1, 1, length, 64, mask=mask), "efficient", V2_9)
    # An unaligned view whose width is a multiple of 8 grows by 8.
    for row, fails in ((65528, False), (65529, True)):
        view = Mask((65537, 65528), (row, 1))
        launch = dense(1, 1, 65537, 64, seq_k=65528, mask=view)
        assert ("E6" in rules(launch, "efficient", V2_9)) == fails


def test_a_mask_gradient_has_rows_though_the_mask_has_none() -> None:
    mask = Mask((1, 1, 1, 60000), (60000, 60000, 60000, 1), requires_grad=True)
    launch = dense(1, 1, 60000, 64, requires_grad=True, mask=mask)
    assert "E5" in rules(launch, "efficient", V2_7)


def test_the_last_dq_tile_decides() -> None:
    heads, dim = 64, 128
    # 2**31 elements in all, and less than one tile more.
    assert "F1" not in rules(dense(1, heads, 1 << 18, dim, requires_grad=True), "flash", V2_9)
    for rows, fails in (((1 << 18) + 1, True), ((1 << 18) + 64, True)):
        launch = dense(1, heads, rows, dim, requires_grad=True)
        assert ("F1" in rules(launch, "flash", V2_9)) == fails
        # 2.11 cuts only the entry's part.
        assert "F1p" not in rules(launch, "flash", Line.V2_11)
    # An entry of one row reaches only its first.
    entry = 128 * 16 * 128
    for batch, fails in (((1 << 31) // entry, False), ((1 << 31) // entry + 1, True)):
        launch = dense(batch, 16, 1, 128, requires_grad=True)
        assert ("F1" in rules(launch, "flash", V2_9)) == fails
        assert ("F1p" in rules(launch, "flash", Line.V2_11)) == fails


@pytest.mark.parametrize("line", list(Line))
def test_sequence_first_queries_step_too_far(line: Line) -> None:
    rows = sequence_first(40000, 8, 64)
    whole = dense(40000, 8, 200, 64, query=rows, key=rows, value=rows, requires_grad=True)
    chunk = dense(100, 8, 200, 64, query=rows, key=rows, value=rows, requires_grad=True)
    copied = dense(100, 8, 200, 64, requires_grad=True)
    assert "F5" in rules(whole, "flash", line)
    assert "F5" in rules(chunk, "flash", line)
    assert not rules(copied, "flash", line)


@pytest.mark.parametrize(("row", "fails"), [(1 << 24, False), ((1 << 24) + 8, True)])
def test_a_query_step_of_exactly_2_31_is_right(row: int, fails: bool) -> None:
    launch = dense(1, 1, 129, 64, query=Strides(0, 0, row), requires_grad=True)
    assert ("F5" in rules(launch, "flash", Line.V2_14)) == fails
    one_block = dense(1, 1, 64, 64, query=Strides(0, 0, row), requires_grad=True)
    assert "F5" not in rules(one_block, "flash", Line.V2_14)


def test_flash_steps_through_keys_in_old_releases_and_when_it_splits_them() -> None:
    rows = Strides(0, 64, (1 << 24) + 8)
    busy = dense(64, 8, 1024, 64, key=rows, value=rows)
    assert "F5kv" in rules(busy, "flash", Line.V2_4)
    assert not rules(busy, "flash", V2_7)
    idle = dense(1, 1, 1, 64, seq_k=100_000, key=rows, value=rows)
    assert rules(idle, "flash", Line.V2_14) == {"F5s"}
    # Each split has one block of 256 keys: no step.
    few_keys = dense(1, 1, 1, 64, seq_k=512, key=rows, value=rows)
    assert not rules(few_keys, "flash", Line.V2_14)


def test_flash_grids() -> None:
    assert rules(dense(65536, 1, 1, 8), "flash", Line.V2_14) == {"F2b"}
    assert not rules(dense(65535, 1, 1, 8), "flash", Line.V2_14)
    grouped = dense(1, 70000, 1, 8, kv_heads=7)
    assert not rules(grouped, "flash", Line.V2_14)
    trained = dense(1, 70000, 1, 8, kv_heads=7, requires_grad=True)
    assert rules(trained, "flash", Line.V2_14) == {"F2h"}


def test_logsumexp_of_flash() -> None:
    # The first head past 2**31 rows.
    assert "F4a" in rules(dense(1, 1025, 1 << 21, 8), "flash", V2_7)
    assert "F4a" not in rules(dense(1, 1024, 1 << 21, 8), "flash", V2_7)


def test_torch_refuses_in_chunks() -> None:
    batch = 65536
    assert rules(dense(batch, 1, 1, 8, dropout=True), "efficient", V2_9) == {"E2"}
    mask = Mask((1, 1), (8, 1), requires_grad=True)
    masked_ = dense(batch, 1, 1, 8, mask=mask, requires_grad=True)
    assert rules(masked_, "efficient", V2_9) == {"E3"}
    expanded = dense(batch, 1, 1, 8, key=Strides(0, 8, 8), requires_grad=True)
    assert rules(expanded, "efficient", V2_9) == {"E3b"}
    assert not rules(expanded, "efficient", Line.V2_15)


def test_strides_that_torch_refuses() -> None:
    row = (1 << 31) - 1
    launch = dense(1, 1, 1, 8, query=Strides(0, 0, row))
    assert rules(launch, "efficient", V2_9) == {"E11"}
    assert not rules(dense(1, 1, 1, 8, query=Strides(0, 0, row - 1)), "efficient", V2_9)


def test_heads() -> None:
    # Contiguous, 32 heads of 524288 rows of 128: 31 strides of 2**26.
    launch = dense(1, 32, 1 << 19, 128, requires_grad=True)
    assert "E9b" not in rules(launch, "efficient", Line.V2_14)
    launch = dense(1, 33, 1 << 19, 128, requires_grad=True)
    assert rules(launch, "efficient", Line.V2_14) == {"E9b"}
    assert rules(dense(1, 65, 1 << 19, 128), "efficient", Line.V2_14) == {"E9f"}
    assert not rules(dense(1, 64, 1 << 19, 128), "efficient", Line.V2_14)


def test_dropout() -> None:
    small = dense(1, 1, 1 << 15, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert not rules(small, "efficient", V2_7)
    # From 2**31 places on, the old backward wraps; the new one is 64-bit.
    old = dense(1, 1, (1 << 15) + 1, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert "E7a" in rules(old, "efficient", V2_7)
    assert not rules(old, "efficient", V2_9)
    new = dense(1, 1, (1 << 16) + 1, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert rules(new, "efficient", V2_9) == {"E7a"}
    # Entries and heads: 2**32 places in all, or 2**31 in one entry of several.
    whole = dense(4, 1, 1 << 14, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert not rules(whole, "efficient", Line.V2_13)
    more = dense(5, 1, 1 << 14, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert rules(more, "efficient", Line.V2_13) == {"E7b"}
    assert not rules(more, "efficient", Line.V2_14)
    entry = dense(2, 2, 1 << 14, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert rules(entry, "efficient", Line.V2_13) == {"E7b"}
    alone = dense(1, 2, 1 << 14, 64, seq_k=1 << 16, dropout=True, requires_grad=True)
    assert not rules(alone, "efficient", Line.V2_13)


@pytest.mark.parametrize(("rows", "fails"), [(35010, False), (35009, True), (35008, False)])
def test_a_row_chunk_can_be_wrong_where_the_whole_is_right(rows: int, fails: bool) -> None:
    length = 70018
    mask = Mask((rows, length), (length, 1), boolean=True)
    launch = shared_head(8, rows, length, mask=mask)
    assert (details(launch, V2_9) == {"bias"}) == fails
    assert not details(launch, Line.V2_14)


def test_the_one_row_path() -> None:
    padding = Mask((1, 1, 1, 64), (64, 64, 64, 1))
    assert not details(shared_head(8, 65, 64, mask=padding), V2_9)
    assert not details(shared_head(8, 65, 64), V2_9)
    # One head, whose stride is 0 all the same.
    alone = shared_head(1, 65, 64, mask=Mask((65, 64), (64, 1)))
    assert details(alone, Line.V2_12) == {"bias"}
    # Gradients need logsumexp, which keeps the rows as they are.
    trained = shared_head(8, 65, 64, mask=Mask((65, 64), (64, 1)), requires_grad=True)
    assert not details(trained, V2_9)
    assert details(shared_head(65, 1, 8), V2_9) == {"heads"}
    assert not details(shared_head(64, 1, 8), V2_9)
    assert not details(shared_head(128, 1, 8), V2_9)
    assert details(shared_head(8, 1, 9, is_causal=True), V2_9) == {"causal"}
    assert not details(shared_head(8, 65, 65, is_causal=True), V2_9)
    assert details(shared_head(8, 65, 65, dropout=True), V2_9) == {"dropout"}
    assert not details(shared_head(8, 1, 65, dropout=True), V2_9)
    # 2.3 keeps the row stride for the heads.
    one_row = shared_head(8, 1, 64, mask=Mask((1, 64), (64, 1)))
    assert details(one_row, Line.V2_3) == {"bias"}
    assert not details(one_row, Line.V2_4)


def test_a_mask_of_each_head_is_read_elsewhere_past_2_31() -> None:
    mask = Mask((2, 46337, 46400), (46337 * 46400, 46400, 1))
    launch = shared_head(2, 46337, 46400, mask=mask)
    assert details(launch, Line.V2_14) == {"bias"}


def test_old_backward_rows() -> None:
    rows = Strides(0, 128, 64 * 128)
    launch = dense(
        1, 64, 300_000, 128, query=rows, key=rows, value=rows, itemsize=4, requires_grad=True
    )
    assert "E13" in rules(launch, "efficient", V2_7)
    assert "E13" not in rules(launch, "efficient", V2_9)


def test_old_backward_workspace() -> None:
    launch = dense(1, 1, 128, 256, seq_k=42_000, requires_grad=True)
    assert "E15" in rules(launch, "efficient", V2_7)
    assert not rules(dense(1, 1, 128, 256, seq_k=41_000, requires_grad=True), "efficient", V2_7)


def test_output_and_logsumexp_of_the_efficient_forward() -> None:
    # 65535 entries of 2**16 rows: the last begins below 2**32.
    assert not rules(dense(65535, 1, 1 << 16, 8), "efficient", Line.V2_13)
    assert rules(dense(65535, 1, 65539, 8), "efficient", Line.V2_13) == {"E10"}
    trained = dense(1, 65535, 65537, 8, requires_grad=True)
    assert "E10" in rules(trained, "efficient", Line.V2_13)
    assert "E10" not in rules(trained, "efficient", Line.V2_14)


def test_releases_have_lines() -> None:
    assert line_of("2.9.1") is V2_9
    assert line_of("2.7.1") is V2_7
    assert line_of("2.10.0") is V2_9
    assert [minor for line in Line for minor in line.minors] == [f"2.{i}" for i in range(3, 16)]
