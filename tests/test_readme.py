"""The README's tables say what the code says. ``python tests/test_readme.py`` prints them anew."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from helpers.child import ended
from helpers.inside import (
    as_markdown,
    main,
)
from helpers.routes_table import table as routes_table

from sdpa_guard import LIMITS

README = Path(__file__).parent.parent / "README.md"


def test_the_readme_has_the_registry():
    assert as_markdown(LIMITS) in README.read_text()


def test_the_readme_has_the_table_of_routes():
    assert "\n".join(routes_table()) in README.read_text()


def shown_under(title: str) -> list[str]:
    """The code blocks of a section."""
    section = README.read_text().split(f"### {title}\n")[1]
    return re.findall(r"```(?:python|console)?\n(.*?)```", section, re.DOTALL)


@pytest.mark.parametrize(
    "title",
    [
        "Rehearse a whole model",
        "Rehearse your own code on meta tensors",
        "See a split without a GPU",
    ],
)
def test_a_program_prints_what_the_readme_shows(tmp_path, title):
    code, shown = shown_under(title)[:2]
    script = tmp_path / "train.py"
    script.write_text(code)
    result = ended(sys.executable, script)
    assert result.stdout == shown, result.stderr


def test_check_prints_what_the_readme_shows(capsys):
    examples = [block for block in shown_under("Ask before you pay") if block.startswith("$ ")]
    assert len(examples) >= 3
    for example in examples[:3]:
        first, shown = example.split("\n", 1)
        assert main(first.split()[2:]) == 1
        assert capsys.readouterr().out.strip() == shown.strip()


if __name__ == "__main__":
    print("\n".join([*routes_table(), "", as_markdown(LIMITS)]))
