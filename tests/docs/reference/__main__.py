"""`python -m tests.docs.reference`: write the pages of docs/reference, and the tables of docs/checks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs.reference import checks, config, errors, metrics

FOLDER = Path(__file__).parents[3] / "docs" / "reference"
PAGES: dict[str, Callable[[], str]] = {
    "config.md": config.page,
    "metrics.md": metrics.page,
    "troubleshooting.md": errors.page,
}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
        print(FOLDER / name)
    for name in (checks.DESIGN, *checks.FAMILIES):
        (checks.FOLDER / name).write_text(checks.page(name))
        print(checks.FOLDER / name)


if __name__ == "__main__":
    main()
