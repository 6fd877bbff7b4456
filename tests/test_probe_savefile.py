"""``probe``'s save file: what was measured is not measured again."""

from __future__ import annotations

import pytest
from helpers.child import HANGS
from helpers.inside_probe import FAILS, FITS, SaveFileError, Shapes
from helpers.standin_child import StandinChild, work


@pytest.fixture
def child(tmp_path) -> StandinChild:
    return StandinChild(tmp_path)


def test_what_was_measured_is_not_measured_again(child, tmp_path):
    save = tmp_path / "saved.json"
    first = child.run(work(2, 4), save=save)
    assert len(child.starts()) == 4
    assert child.run(work(2, 4), save=save) == first
    assert len(child.starts()) == 4
    # Another GPU, or more shapes: only what is missing.
    child.run(work(1, 2), save=save)
    assert len(child.starts()) == 6
    child.run(work(2), save=save, gpu="Other GPU")
    assert len(child.starts()) == 8
    assert sorted(path.name for path in tmp_path.glob("saved*")) == ["saved.json"]


def test_the_registry_may_predict_otherwise_later(child, tmp_path):
    save = tmp_path / "saved.json"
    assert len(child.run(work(4, predicted=FAILS), save=save).disagreements) == 1
    assert len(child.run(work(4, predicted=FITS), save=save).disagreements) == 2
    assert len(child.starts()) == 2


@pytest.mark.parametrize("batch", [5, 8, 9, 10])
def test_what_told_nothing_is_tried_again(child, tmp_path, batch):
    for _ in range(2):
        child.run(work(batch), save=tmp_path / "saved.json")
    assert len(child.starts()) == 4


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is damaged"),
        ('{"format": "sdpa_guard probe 1", "rows": [{"gpu"', "is damaged"),
        ("\udcff", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("[1, 2]", "is no file of probe's"),
        ('{"format": "another", "rows": []}', "is no file of probe's"),
        ('{"format": "sdpa_guard probe 1", "rows": [{"gpu": "A"}]}', "is damaged"),
        ('{"format": "sdpa_guard probe 1"}', "is damaged"),
    ],
)
def test_a_damaged_or_foreign_save_file_is_named_and_left_alone(child, tmp_path, text, complaint):
    save = tmp_path / "saved.json"
    save.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(SaveFileError, match=rf"saved\.json' {complaint}"):
        child.run(work(1), save=save)
    assert save.read_bytes() == text.encode(errors="surrogateescape")
    assert child.starts() == []


def test_a_save_file_that_cannot_be_written_is_named_before_anything_is_measured(child, tmp_path):
    with pytest.raises(SaveFileError, match=r"cannot write .*saved\.json"):
        child.run(work(1), save=tmp_path / "missing" / "saved.json")
    with pytest.raises(SaveFileError, match="cannot read"):
        child.run(work(1), save=tmp_path)
    assert child.starts() == []


def test_a_time_limit_may_be_higher_the_next_time(child, tmp_path):
    (unguarded, _) = work(3).planned
    save = tmp_path / "saved.json"
    for _ in range(2):
        child.run(Shapes((unguarded,), ()), save=save, timeout=1)
    child.run(work(1), save=save, timeout=HANGS)
    assert "timed out" not in save.read_text()
    assert save.read_text().count("measured") == 2


def test_nothing_is_written_before_something_is_measured(child, tmp_path):
    child.run(work(), save=tmp_path / "saved.json")
    assert list(tmp_path.glob("saved*")) == []
