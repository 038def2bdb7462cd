"""The team's model registry: who made which model, from which base and which datasets.

The tables are those that the team's Postgres already has. Where they are absent they are made; they
are never altered. An older registry may lack columns or have more: those that it has are written.
"""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.pool import NullPool

from sft.errors import SftError

LOCK_WAIT_S = 60
CONNECT_WAIT_S = 30
TABLES_LOCK = "sft-launch: tables of the registry"


class RegistryError(SftError, ValueError):
    """A registration that is refused, or a registry that cannot be reached."""


class UtcDateTime(sa.TypeDecorator):
    """Aware datetimes in UTC, also on SQLite, which drops the time zone."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value and value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value and (value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC))


# On SQLite an id is compared as the text that stands there, with dashes or without.
ID = sa.Uuid(as_uuid=False).with_variant(sa.String(36), "sqlite")
PARAMETERS = sa.JSON().with_variant(JSONB(), "postgresql")


def _id_column() -> sa.Column:
    return sa.Column("id", ID, primary_key=True, default=lambda: str(uuid4()))


def _columns(kind: Any, *names: str, nullable: bool = True) -> list[sa.Column]:
    return [sa.Column(name, kind, nullable=nullable) for name in names]


def _type_column(name: str, nullable: bool) -> sa.Column:
    allowed = sa.CheckConstraint(f"{name} IN ('SFT', 'RL')")
    return sa.Column(name, sa.Text, allowed, nullable=nullable)


METADATA = sa.MetaData()
DATASETS = sa.Table(
    "datasets",
    METADATA,
    _id_column(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    *_columns(sa.Text, "created_by", "creation_location", "data_location", nullable=False),
    sa.Column("creation_time", UtcDateTime, server_default=sa.func.now()),
    *_columns(UtcDateTime, "generation_start", "generation_end", "last_modified", "updated_at"),
    sa.Column("generation_parameters", PARAMETERS, nullable=False),
    _type_column("dataset_type", nullable=False),
    *_columns(sa.Text, "data_generation_hash", "hf_fingerprint", "hf_commit_hash"),
    sa.Column("generation_status", sa.Text),
    sa.Column("num_tasks", sa.Integer),
)
AGENTS = sa.Table(
    "agents",
    METADATA,
    _id_column(),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("agent_version_hash", sa.CHAR(64)),
    sa.Column("description", sa.Text),
    sa.Column("updated_at", UtcDateTime),
)
MODELS = sa.Table(
    "models",
    METADATA,
    _id_column(),
    *_columns(sa.Text, "name", "created_by", "creation_location", nullable=False),
    sa.Column("weights_location", sa.Text, nullable=False),
    sa.Column("creation_time", UtcDateTime, server_default=sa.func.now()),
    sa.Column("base_model_id", ID, sa.ForeignKey("models.id")),
    sa.Column("dataset_id", ID, sa.ForeignKey("datasets.id")),
    sa.Column("agent_id", ID, sa.ForeignKey("agents.id"), nullable=False),
    sa.Column("is_external", sa.Boolean, nullable=False),
    sa.Column("training_start", UtcDateTime, nullable=False),
    *_columns(UtcDateTime, "training_end", "updated_at"),
    sa.Column("training_parameters", PARAMETERS, nullable=False),
    _type_column("training_type", nullable=True),
    *_columns(sa.Text, "dataset_names", "training_status", "wandb_link", "description"),
    sa.Column("traces_location_s3", sa.Text),
)


@dataclass(frozen=True)
class DatasetRow:
    """A dataset as the registry records it; the hashes say which revision was read."""

    name: str
    data_location: str
    created_by: str
    generation_parameters: dict
    data_generation_hash: str | None
    hf_commit_hash: str | None
    num_tasks: int | None


@dataclass(frozen=True)
class Registration:
    """What a finished run says about its model; RegistryError where that cannot be registered.

    `datasets` are all of the mix, in order. `declare_base` lets a missing base model be added,
    `take_over` lets the model's row be updated though another creator made it.
    """

    name: str
    base_model: str
    declare_base: bool
    datasets: tuple[DatasetRow, ...]
    agent_name: str
    created_by: str
    creation_location: str
    weights_location: str
    training_start: datetime
    training_end: datetime
    training_parameters: dict
    wandb_link: str | None = None
    take_over: bool = False

    def __post_init__(self) -> None:
        if self.base_model == self.name:
            raise RegistryError(f"{self.name}: its base model is itself; name what it started from")
        if not self.datasets:
            raise RegistryError(f"{self.name}: no dataset; name those that it was trained on")
        for name in (dataset.name for dataset in self.datasets if "," in dataset.name):
            raise RegistryError(
                f"{self.name}: dataset {name!r} has a comma, which separates names; rename it"
            )
        for key in ("training_start", "training_end"):
            if getattr(self, key).tzinfo is None:
                raise RegistryError(f"{self.name}: {key} has no time zone; give it in UTC")


def register(url: str, registration: Registration) -> dict:
    """The ids of the model's rows, written in one transaction; a second run writes the same row.

    Returns {"model_id", "base_model_id", "dataset_ids", "agent_id", "created"}: ids as text, and
    whether the model's row is new. A model's row that exists keeps its creator and creation time;
    rows of datasets and agents that exist are used as they are.
    Raises RegistryError where the base model is unknown, a name has two rows or another creator,
    or the registry cannot be reached or refuses.
    """
    with _open_registry(url) as engine:
        if _is_file(engine):
            Path(engine.url.database).parent.mkdir(parents=True, exist_ok=True)
        with _begin_locked(engine, {TABLES_LOCK}) as connection:
            METADATA.create_all(connection)
        names = {registration.name, registration.base_model, registration.agent_name}
        names |= {dataset.name for dataset in registration.datasets}
        with _begin_locked(engine, names) as connection:
            return _write_rows(connection, registration)


def list_models(url: str) -> list[dict]:
    """The rows of `models` by name, with the columns that the registry has; [] without a table.

    Each has two keys more: `base_model`, a name or None, and `datasets`, a list of names.
    """
    with _open_registry(url) as engine:
        if _is_file(engine) and not Path(engine.url.database).exists():
            return []  # to open it would make it
        with engine.connect() as connection:
            if not sa.inspect(connection).has_table(MODELS.name):
                return []
            return list(_named_models(connection))


def _is_file(engine: sa.Engine) -> bool:
    return bool(engine.dialect.name == "sqlite" and engine.url.database)


def _named_models(connection: sa.Connection) -> Iterator[dict]:
    present = _column_names(connection, MODELS)
    columns = [column for column in MODELS.c if column.name in present]
    rows = connection.execute(sa.select(*columns).order_by(MODELS.c.name, MODELS.c.id)).mappings()
    models, datasets = [dict(row) for row in rows], {}
    if sa.inspect(connection).has_table(DATASETS.name):
        found = connection.execute(sa.select(DATASETS.c.id, DATASETS.c.name))
        datasets = {row.id: row.name for row in found}
    names = {row["id"]: row["name"] for row in models}
    for row in models:
        base = names.get(row.get("base_model_id"))
        yield row | {"base_model": base, "datasets": _dataset_names(row, datasets)}


def _dataset_names(row: dict, names: dict[str, str]) -> list[str]:
    """The datasets of a model's row, wherever `_mix_values` put them."""
    if row.get("dataset_id"):
        return [names.get(row["dataset_id"], row["dataset_id"])]
    if row.get("dataset_names"):
        return row["dataset_names"].split(",")
    return (row["training_parameters"] or {}).get("dataset_names", [])


def _write_rows(connection: sa.Connection, registration: Registration) -> dict:
    agent_id = _agent_id(connection, registration.agent_name)
    base_model_id = _base_model_id(connection, registration, agent_id)
    dataset_ids = [_dataset_id(connection, registration, each) for each in registration.datasets]
    values = vars(registration) | {
        "is_external": False,
        "training_status": "completed",
        "training_type": "SFT",
        "base_model_id": base_model_id,
        "agent_id": agent_id,
        **_mix_values(connection, registration, dataset_ids),
    }
    row = _find_model(connection, registration.name)
    if row is None:
        model_id = _insert(connection, MODELS, values)
    elif row.created_by == registration.created_by or registration.take_over:
        model_id = row.id
        values |= {"created_by": row.created_by, "updated_at": sa.func.now()}
        update = MODELS.update().where(MODELS.c.id == model_id)
        connection.execute(update.values(_known_values(connection, MODELS, values)))
    else:
        raise RegistryError(
            f"{registration.name} was registered by {row.created_by!r}, not by "
            f"{registration.created_by!r}; choose another hub id, or say take_over in the row"
        )
    return {
        "model_id": model_id,
        "base_model_id": base_model_id,
        "dataset_ids": dataset_ids,
        "agent_id": agent_id,
        "created": row is None,
    }


def _mix_values(connection: sa.Connection, registration: Registration, ids: list[str]) -> dict:
    """The datasets of a model's row: one stands as its id, several as their names."""
    if len(ids) == 1:
        return {"dataset_id": ids[0], "dataset_names": None}
    names = [dataset.name for dataset in registration.datasets]
    if "dataset_names" in _column_names(connection, MODELS):
        return {"dataset_id": None, "dataset_names": ",".join(names)}
    parameters = registration.training_parameters | {"dataset_names": names}
    return {"dataset_id": None, "training_parameters": parameters}


def _agent_id(connection: sa.Connection, name: str) -> str:
    found = sa.select(AGENTS.c.id).where(AGENTS.c.name == name).order_by(AGENTS.c.id).limit(1)
    return connection.scalar(found) or _insert(connection, AGENTS, {"name": name})


def _dataset_id(connection: sa.Connection, registration: Registration, dataset: DatasetRow) -> str:
    # A row that exists is never changed: models that were trained earlier point to it.
    found = connection.scalar(sa.select(DATASETS.c.id).where(DATASETS.c.name == dataset.name))
    made = {"creation_location": registration.creation_location, "dataset_type": "SFT"}
    return found or _insert(connection, DATASETS, vars(dataset) | made)


def _base_model_id(connection: sa.Connection, registration: Registration, agent_id: str) -> str:
    base = registration.base_model
    if row := _find_model(connection, base):
        return row.id
    if not registration.declare_base:
        names = connection.scalars(sa.select(MODELS.c.name).distinct()).all()
        near = ", ".join(get_close_matches(base, names, n=5, cutoff=0.5)) or "none"
        raise RegistryError(
            f"{registration.name}: base model {base!r} is not registered (near names: {near}); "
            "correct its registry_name in models.yaml, or say declare: true there to add it"
        )
    values = {
        "name": base,
        "created_by": base.rpartition("/")[0] or registration.created_by,
        "creation_location": "external",
        "is_external": True,
        "weights_location": base,
        "training_start": registration.training_start,
        "training_parameters": {},
        "agent_id": agent_id,
        "description": "Trained elsewhere. agent_id and training_start, which no row may lack, are "
        f"those of {registration.name}, the first model made from it here.",
    }
    return _insert(connection, MODELS, values)


def _find_model(connection: sa.Connection, name: str) -> sa.Row | None:
    found = sa.select(MODELS.c.id, MODELS.c.created_by).where(MODELS.c.name == name)
    rows = connection.execute(found.order_by(MODELS.c.id)).all()
    if len(rows) > 1:
        twins = " and ".join(f"{row.id} (by {row.created_by})" for row in rows)
        raise RegistryError(
            f"{len(rows)} rows of models are named {name!r}: {twins}; point what refers to them "
            "to one, delete the others, then register again"
        )
    return rows[0] if rows else None


def _column_names(connection: sa.Connection, table: sa.Table) -> set[str]:
    """The columns that we know and that the registry's own table has."""
    present = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    return present & set(table.c.keys())


def _known_values(connection: sa.Connection, table: sa.Table, values: dict) -> dict:
    return {key: values[key] for key in values.keys() & _column_names(connection, table)}


def _insert(connection: sa.Connection, table: sa.Table, values: dict) -> str:
    insert = table.insert().values(_known_values(connection, table, values))
    return connection.execute(insert).inserted_primary_key.id


@contextmanager
def _begin_locked(engine: sa.Engine, names: Collection[str]) -> Iterator[sa.Connection]:
    """A transaction in which no other writer of ours reads or writes rows of these names."""
    with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # locks the whole file
        else:
            _lock_names_in_postgres(connection, names)
        yield connection


def _lock_names_in_postgres(connection: sa.Connection, names: Collection[str]) -> None:
    """Hold the advisory lock of each name until the transaction ends: a name is not unique there.

    All writers take them in the same order, so that no two wait for each other.
    """
    connection.execute(sa.text(f"SET LOCAL lock_timeout = '{LOCK_WAIT_S}s'"))
    lock = sa.text("SELECT pg_advisory_xact_lock(hashtext(:name))")
    for name in sorted(names):
        connection.execute(lock, {"name": name})


@contextmanager
def _open_registry(url: str) -> Iterator[sa.Engine]:
    """An engine for the registry; errors name it, and its password is never among their words."""
    parsed = _parse_url(url)
    place = parsed.set(query={}).render_as_string(hide_password=True)
    try:
        yield _make_engine(parsed)
    except RegistryError as error:
        raise RegistryError(f"{place}: {error}") from None
    except ModuleNotFoundError as error:
        raise RegistryError(f"{place}: {error}; install it beside SQLAlchemy") from error
    except sa.exc.SQLAlchemyError as error:
        answer = str(getattr(error, "orig", None) or error).strip()
        if parsed.password:
            answer = answer.replace(parsed.password, "***")
        # Without its cause, whose text nobody has cleared of the password.
        raise RegistryError(
            f"{place}: {answer}; remove the cause and run it again: that doubles no row"
        ) from None


def _parse_url(url: str) -> sa.URL:
    with suppress(sa.exc.ArgumentError, ValueError):
        parsed = sa.make_url(url)
        if parsed.drivername.startswith("sqlite"):
            return parsed
        # With a second @ a part of the password would be read as the host, and shown.
        if parsed.drivername.startswith("postgres") and url.count("@") < 2:
            return parsed.set(drivername="postgresql+psycopg")
    raise RegistryError(
        "registry URL: not readable (not shown, it may hold a password); expected "
        "sqlite:///folder/registry.db or postgresql://user:password@host:5432/database, with %40 "
        "for an @ in the password"
    )


def _make_engine(url: sa.URL) -> sa.Engine:
    if url.get_backend_name() != "sqlite":
        # A pooler between us and the server loses prepared statements.
        arguments = {"connect_timeout": CONNECT_WAIT_S, "prepare_threshold": None}
        return sa.create_engine(url, connect_args=arguments, poolclass=NullPool)
    # Without an isolation level the driver begins nothing by itself: _begin_locked does.
    arguments = {"timeout": LOCK_WAIT_S, "isolation_level": None}
    engine = sa.create_engine(url, connect_args=arguments, poolclass=NullPool)
    sa.event.listen(engine, "connect", _use_write_ahead_log)
    return engine


def _use_write_ahead_log(connection: sqlite3.Connection, _record: Any) -> None:
    # A file that is busy or read-only keeps its mode: readers may have to wait, nothing else.
    with suppress(sqlite3.OperationalError):
        connection.execute("PRAGMA journal_mode = WAL").close()
