"""Fixtures that several packages share; loads nothing heavy unless a test asks for it."""

from __future__ import annotations

import gc
import shutil
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

    from gatekeeper.store.database import Database

pytest_plugins = ["postgres", "live", "reported", "chromium"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what thousands of test files load out of the search for garbage: a tenth of a run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: whatever starts last keeps one core busy and leaves the others."""
    first = ("long", "package", "model")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in first])


BOTH = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database: each test runs on both kinds."""
    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite:///{tmp_path / 'store.sqlite'}"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with today's schema, to copy from: migrating for each test takes longer than it."""
    from gatekeeper.config import data_dir
    from gatekeeper.store.database import open_database
    from gatekeeper.store.migrate import upgrade

    path = tmp_path_factory.mktemp("template") / "store.sqlite"
    migrated = open_database(f"sqlite:///{path}")
    upgrade(migrated, data_dir("migrations"))
    migrated.close()  # the last connection moves the write-ahead log into the file
    return path


@pytest.fixture(params=BOTH)
def db(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """Empty database with today's schema: each test runs on both kinds."""
    from gatekeeper.store.database import open_database

    if request.param == "postgres":
        url: str = request.getfixturevalue("postgres_migrated_url")
    else:
        path = tmp_path / "store.sqlite"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        url = f"sqlite:///{path}"
    database = open_database(url)
    yield database
    database.close()
