"""Training and generation by libraries above torch, under both doors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from helpers.library_routes import LIBRARIES
from helpers.route import DOORS

pytestmark = [
    pytest.mark.demo,
    # The names that older releases know, too, and what Lightning asks of newer ones.
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*LeafSpec"),
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """The models are too small to share between threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Trainers write where they run."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library.name)
def test_the_library_is_split_with_the_unguarded_results(library, door):
    expected = library.run()
    with door() as report:
        actual = library.run()
    assert report.split == report.calls == library.split
    torch.testing.assert_close(actual, expected)
