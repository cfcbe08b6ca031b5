"""Print the tables of docs/configuration.md."""

from settings.reference import reference

for title, table in reference().items():
    print(f"<!-- {title} -->\n{table}\n<!-- end -->\n")
