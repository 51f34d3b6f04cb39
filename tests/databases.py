"""Makes databases for tests: what takes long to fill is filled once, and then copied."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from uuid import uuid4

import psycopg
from sqlalchemy import make_url

from tuner.store.engine import upgrade_store

Fill = Callable[[str], object]
"""Writes to the database of a URL, and leaves no connection open."""


class Databases(Protocol):
    """Makes databases of one kind, each of which one test has for itself."""

    def bare(self) -> str:
        """The URL of a database without any table; a SQLite file is not there yet."""

    def like(self, name: str, fill: Fill) -> str:
        """The URL of a database that holds what `fill` wrote to another, which is called `name`."""


def empty(databases: Databases) -> str:
    """The URL of a database at the newest revision, without a row."""
    return databases.like("empty", upgrade_store)


@dataclass(frozen=True)
class SqliteFiles:
    """SQLite files in `folder`; those to copy are in `masters`, and tests share them."""

    folder: Path
    masters: Path

    def bare(self) -> str:
        return f"sqlite:///{self.folder / f'{uuid4().hex}.db'}"

    def like(self, name: str, fill: Fill) -> str:
        master = self.masters / f"{name}.db"
        if not master.exists():
            fill(f"sqlite:///{master}")
        url = self.bare()
        shutil.copy(master, url.removeprefix("sqlite:///"))
        return url


@dataclass(frozen=True)
class PostgresServer:
    """A server by the URL of its administrative database, and what it has to copy."""

    url: str
    masters: set[str] = field(default_factory=set)

    def create(self, name: str, like: str = "template1") -> str:
        # Copying files is quicker than logging what is in them.
        self._execute(f"CREATE DATABASE {name} TEMPLATE {like} STRATEGY file_copy")
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def drop(self, name: str) -> None:
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as admin:
            admin.execute(statement.encode())


@dataclass(frozen=True)
class PostgresDatabases:
    """Databases of a server, all dropped by `drop`."""

    server: PostgresServer
    made: list[str] = field(default_factory=list)

    def bare(self) -> str:
        return self._create("template1")

    def like(self, name: str, fill: Fill) -> str:
        master = f"master_{name}"
        if master not in self.server.masters:
            fill(self.server.create(master))
            self.server.masters.add(master)
        return self._create(master)

    def drop(self) -> None:
        for name in self.made:
            self.server.drop(name)

    def _create(self, like: str) -> str:
        self.made.append(f"tuner_{uuid4().hex}")
        return self.server.create(self.made[-1], like)
