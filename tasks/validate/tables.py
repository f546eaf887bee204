"""The tables of the image database; its module says what they hold."""

from tasks.data import image_table


def _html(column: str) -> str:
    """SQL for a column's text as HTML: Data Docs show the values of a checked column unescaped."""
    for mark, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        column = f"replace({column}, '{mark}', '{entity}')"
    return column


def tables() -> str:
    """SQL that makes the tables, empty."""
    schema = image_table.schema()
    types = ["TEXT" if str(field.type) == "string" else "INTEGER" for field in schema]
    columns = ", ".join(map(" ".join, zip(schema.names, types, strict=True)))
    return f"""
CREATE TABLE images (
    image INTEGER PRIMARY KEY, {columns}, error TEXT, fingerprint INTEGER,
    member INTEGER, time, tie INTEGER, has_no_time INTEGER,
    unknown_label TEXT, other_label TEXT, also_in TEXT, group_in TEXT,
    near_duplicate INTEGER, near_duplicate_in TEXT,
    shorter_side INTEGER GENERATED ALWAYS AS (min(width, height)),
    longer_side INTEGER GENERATED ALWAYS AS (max(width, height)),
    error_html TEXT GENERATED ALWAYS AS ({_html("error")}),
    unknown_label_html TEXT GENERATED ALWAYS AS ({_html("unknown_label")}),
    other_label_html TEXT GENERATED ALWAYS AS ({_html("other_label")})
);
CREATE TABLE known (label TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE bad (image INTEGER, rule INTEGER, PRIMARY KEY (image, rule)) WITHOUT ROWID;
CREATE TABLE classes (
    label TEXT PRIMARY KEY, train INTEGER, val INTEGER, test INTEGER, images INTEGER
) WITHOUT ROWID;
CREATE TABLE splits (split TEXT, images INTEGER);
"""
