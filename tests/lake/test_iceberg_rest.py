"""Tables of Iceberg in a REST catalog, the server of Iceberg's own tests: `make iceberg-rest` gets it by Maven."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg", reason="pip install 'pgdecode[iceberg]'")

from lake.test_iceberg import ID, NAME, ORDERS, load_catalog, rows_of, upserts
from pyiceberg.catalog import Catalog

from pgdecode.datasets.errors import RunError
from pgdecode.lake.applied import Applied
from pgdecode.lake.target import ColumnSource
from pgdecode.lake.targets import lake_target
from support.emulators import free_port, server

CLASSPATH = Path(__file__).parents[2] / "build" / "iceberg-rest" / "classpath"
pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a catalog, and return its properties."""
    if not CLASSPATH.exists() or shutil.which("java") is None:
        pytest.skip("no server: make iceberg-rest")
    port = free_port()
    source = Path(__file__).with_name("rest") / "Catalog.java"
    folder = tmp_path_factory.mktemp("rest")
    with server(["java", "-cp", CLASSPATH.read_text(), str(source), str(port), str(folder)], port):
        yield {"type": "rest", "uri": f"http://127.0.0.1:{port}"}


def rows_in(catalog: Catalog, identifier: tuple[str, ...]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = catalog.load_table(identifier).scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


@pytest.mark.parametrize("location", ["iceberg:shop", "iceberg:shop/lake"])
def test_tables_in_a_rest_catalog_are_created_changed_and_made_anew(location: str, options: dict[str, str]) -> None:
    identifier = (*location.split("/")[1:], *NAME.split("."))
    target, catalog = lake_target(location, storage_options=options), load_catalog("other", **options)
    with target.opened():
        target.table(NAME).create(ORDERS)
        target.table(NAME).apply(upserts(ORDERS, rows_of(1, 2)))
        target.commit({NAME: Applied(1, 2)})
    with target.opened():
        target.table(NAME).apply(upserts(ORDERS, rows_of(2, n=5), before=True, unknown=("note",)))
        target.commit({NAME: Applied(2, 3)})
        target.commit({NAME: Applied(3, 4)})
    assert rows_in(catalog, identifier) == [*rows_of(1), *rows_of(2, n=5, note="note 2")]

    with target.opened():
        target.table(NAME).apply(upserts(ORDERS, rows_of(1, n=9), before=True))
        other = catalog.load_table(identifier)
        other.append(pa.table([[9], [9], ["foreign"]], schema=other.schema().as_arrow()))
        with pytest.raises(RunError, match=r"table public\.orders: another writer has committed meanwhile"):
            target.commit({NAME: Applied(4, 5)})

    wider = pa.schema([ID, pa.field("more", pa.string()), pa.field("n", pa.int64())])
    more = ColumnSource(None, pa.scalar(None, pa.string()))
    with target.opened():
        assert target.applied[NAME] == Applied(3, 4)
        target.table(NAME).evolve(wider, {"id": ColumnSource("id"), "more": more, "n": ColumnSource("n")})
        target.table(NAME).apply(upserts(wider, [{"id": 1, "more": "x", "n": 2**40}], before=True))
        target.commit({NAME: Applied(4, 5)})
    expected = [{"id": 1, "more": "x", "n": 2**40}, {"id": 2, "more": None, "n": 5}, {"id": 9, "more": None, "n": 9}]
    assert rows_in(catalog, identifier) == expected
    with target.opened():
        target.table(NAME).create(ORDERS)
        target.table(NAME).apply(upserts(ORDERS, rows_of(3)))
        target.commit({NAME: Applied(5, 6)})
    assert rows_in(catalog, identifier) == rows_of(3)
