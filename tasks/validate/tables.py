"""The tables of the image database, whose module says what they hold, and how faults are found."""

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
    rank INTEGER GENERATED ALWAYS AS (CASE split WHEN 'test' THEN 2 WHEN 'val' THEN 1 ELSE 0 END),
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
CREATE VIEW near_duplicates AS
    SELECT one.split, one.path, other.split AS other_split, other.path AS other_path
    FROM images AS one JOIN images AS other ON one.near_duplicate = other.image
    WHERE one.image NOT IN (SELECT image FROM bad) ORDER BY one.image;
"""


def _in_later_split(column: str, shared: str, others: str = "TRUE") -> str:
    """SQL that sets a column to the last split (train, val, test) that shares a value."""
    return (
        f"UPDATE images SET {column} = iif(last = 2, 'test', 'val')"
        f" FROM (SELECT {shared} AS value, MAX(rank) AS last FROM images"
        f"  WHERE {shared} IS NOT NULL GROUP BY {shared} HAVING last > MIN(rank))"
        f" WHERE {shared} = value AND rank < last AND {others}"
    )


# The statements that fill the columns about the faults of an image.
FAULTS = {
    "has_no_time": "UPDATE images SET has_no_time = 1 WHERE time IS NULL AND error IS NULL",
    "unknown_label": (
        "UPDATE images SET unknown_label = label WHERE label NOT IN (SELECT label FROM known)"
    ),
    # Another class of an image with the same pixels.
    "other_label": (
        "UPDATE images SET other_label = iif(label = first, last, first)"
        " FROM (SELECT pixels AS shared, MIN(label) AS first, MAX(label) AS last"
        "  FROM images WHERE pixels IS NOT NULL GROUP BY pixels HAVING first <> last)"
        " WHERE pixels = shared AND label IS NOT NULL"
    ),
    # The same pixels in a later split. The copy in the earlier one is set aside: training loses one
    # example of many that way, while `test` would lose a row that this model and the one in
    # production are compared on.
    "also_in": _in_later_split("also_in", "pixels"),
    # One of the same tie in a later split, which can be where the data's names define splits.
    "group_in": _in_later_split("group_in", "tie", "also_in IS NULL"),
}
