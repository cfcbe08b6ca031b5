"""Print the tables of docs/configuration.md."""

from __future__ import annotations

import console
from settings.reference import reference


def main() -> int:
    for title, table in reference().items():
        print(f"<!-- {title} -->\n{table}\n<!-- end -->\n")
    return 0


if __name__ == "__main__":
    console.run(main)
