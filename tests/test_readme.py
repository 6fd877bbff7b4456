"""The README's tables say what the code says. ``python tests/test_readme.py`` prints them anew."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from test_routes import table as routes_table

from sdpa_guard import LIMITS, check

README = Path(__file__).parent.parent / "README.md"


def limits_table() -> list[str]:
    """One row a limit, in the registry's order."""
    columns = "id, limit, backend and pass, counts, bound, torch, past the bound, cure, known by"
    rows = [f"| {columns.replace(', ', ' | ')} |", "|---" * 9 + "|"]
    for limit in LIMITS:
        cure = ", ".join(limit.cures) or "none"
        known = f"[{', '.join(limit.evidence)}]({limit.source})"
        rows.append(
            f"| {limit.id} | {limit.name} | {limit.backend}, {limit.pass_} | {limit.formula} "
            f"| {limit.bound} | {limit.releases} | {limit.effect} | {cure} | {known} |"
        )
    return rows


def test_the_readme_has_the_registry():
    assert "\n".join(limits_table()) in README.read_text()


def test_the_readme_has_the_table_of_routes():
    assert "\n".join(routes_table()) in README.read_text()


def test_the_rehearsal_prints_what_the_readme_shows(tmp_path):
    section = README.read_text().split("### Rehearse on meta tensors")[1]
    code, shown = re.findall(r"```(?:python)?\n(.*?)```", section, re.DOTALL)[:2]
    script = tmp_path / "train.py"
    script.write_text(code)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert result.stdout == shown, result.stderr


def test_the_verdict_is_what_the_readme_shows():
    section = README.read_text().split("### Ask before you pay")[1]
    shown = re.search(r"^>>> print\((check.*?\))\)\n(.*?)```", section, re.DOTALL | re.MULTILINE)
    assert str(eval(shown[1], {"check": check})) + "\n" == shown[2]


if __name__ == "__main__":
    print("\n".join([*routes_table(), "", *limits_table()]))
