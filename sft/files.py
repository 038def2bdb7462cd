"""Files that are whole or absent: atomic writes, folders that appear at once, content hashes."""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from sft.errors import SftError
from sft.process import parse_process_id, this_process

HASH_BLOCK_BYTES = 4 << 20
FICLONE = 0x40049409  # linux/fs.h: XFS and btrfs let two files share their blocks


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
    """YAML as the trainers' own loader (OmegaConf) reads it: `1e-5` is a number, no key twice."""


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back: the text '1e-5' gets quotes."""


# PyYAML follows YAML 1.1, where a float needs a dot and its exponent a sign: 1e-5 and 1.5e5 would
# arrive as strings.
for _class in (_Loader, _Dumper):
    _class.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
        list("-+0123456789"),
    )


def _mapping_without_twins(loader: _Loader, node: yaml.MappingNode) -> dict:
    seen: list[Any] = []
    for key_node, _ in node.value:
        if key_node.tag == "tag:yaml.org,2002:merge":
            continue
        key = loader.construct_object(key_node)
        if key in seen:
            mark = key_node.start_mark
            raise SftError(
                f"{mark.name}, line {mark.line + 1}: {key!r} stands twice; keep one of them"
            )
        seen.append(key)
    return SafeConstructor.construct_mapping(loader, node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping_without_twins)


def parse_value(text: str) -> Any:
    """The value that `text` spells, by the rules of `read_yaml`; the text itself if it is none."""
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError:
        return text


def read_yaml(path: Path) -> dict:
    """The mapping in a YAML or JSON file; an empty file is an empty mapping.

    Raises SftError that names the file (and line) when it is missing, is not YAML, holds a key
    twice or is not a mapping.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = yaml.load(file, Loader=_Loader)  # a SafeLoader
    except FileNotFoundError:
        raise SftError(f"{path}: no such file") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SftError(f"{path}: not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise SftError(f"{path}: expected `key: value` lines, found a {type(content).__name__}")
    return content


def read_json(path: Path) -> Any:
    """The content of a JSON file; SftError where it is missing or cut short."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SftError(f"{path}: no such file") from None
    except ValueError as error:
        raise SftError(f"{path}: not JSON: {error}") from error


def write_text(path: Path, text: str) -> None:
    """Write `text` so that a reader sees the old file or the new one, never a part."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path)
    partial = _beside(path, "partial")
    try:
        with open(partial, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write `content` as indented JSON, atomically."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def write_yaml(path: Path, content: dict, header: str = "") -> None:
    """Write a mapping as YAML in its own order, atomically; `header` becomes comment lines."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    write_text(path, comment + body)


@contextmanager
def new_folder(final: Path, keep: bool = False) -> Iterator[Path]:
    """A fresh sibling folder to fill; it takes the name `final` when the block ends well.

    A folder of that name is replaced; it is whole at every moment but the one between two renames.
    With `keep`, one that another writer finished meanwhile stays, and the new one goes: for content
    that the name decides. A killed writer leaves only dot-folders (see `remove_abandoned`).
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(final)
    partial = _beside(final, "partial")
    partial.mkdir()
    try:
        yield partial
        retired = _beside(final, "retired")
        if not keep:
            with suppress(FileNotFoundError):
                final.rename(retired)
        try:
            partial.rename(final)
        except OSError:
            if not (keep and final.exists()):
                raise
            shutil.rmtree(partial)
        if retired.exists():
            shutil.rmtree(retired)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _beside(final: Path, kind: str) -> Path:
    """A name next to `final` that only this process uses, and that tells whether it is dead."""
    return final.parent / f".{final.name}.{kind}-{this_process()}"


def remove_abandoned(final: Path) -> None:
    """Remove what killed writers of `final` on this host left, be it a file or a folder.

    Live writers keep theirs, and so do those of other hosts, of which nothing can be known. Where a
    writer was killed between its two renames, the folder of before gets its name back.
    """
    pattern = re.compile(rf"\.{re.escape(final.name)}\.(partial|retired)-(.+)")
    for path in final.parent.iterdir():
        match = pattern.fullmatch(path.name)
        writer = match and parse_process_id(match[2])
        if not writer or not writer.is_here or writer.runs():
            continue
        if match[1] == "retired" and not final.exists():
            with suppress(FileNotFoundError):  # another writer gave it back
                path.rename(final)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def hash_json(content: Any) -> str:
    """SHA-256 (64 hex digits) of a JSON value, whatever the order of its keys."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def hash_file(path: Path) -> str:
    """SHA-256 (64 hex digits) of a file's bytes."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(HASH_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def list_files(folder: Path) -> list[str]:
    """The relative paths of all files below `folder`, sorted; hidden files and folders stay out."""
    paths = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(
        path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)
    )


def manifest(folder: Path, names: Iterable[str] | None = None) -> list[dict]:
    """One `{"path", "size", "sha256"}` a file of `folder`, sorted by path; `size` in bytes."""
    chosen = sorted(list_files(folder) if names is None else names)
    with ThreadPoolExecutor(max_workers=4) as pool:  # hashlib lets go of the interpreter lock
        hashes = list(pool.map(lambda name: hash_file(folder / name), chosen))
    return [
        {"path": name, "size": (folder / name).stat().st_size, "sha256": sha256}
        for name, sha256 in zip(chosen, hashes, strict=True)
    ]


def size_text(size: float) -> str:
    """Bytes as people count them: 1.2 TB."""
    for unit, factor in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def link_or_copy(source: Path, target: Path) -> str:
    """Make `target` a file with the content of `source`, and say how: linked, cloned or copied.

    Linked, it is the same file; cloned, it shares its blocks on the disk.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
        return "linked"
    except OSError:  # another file system, or another subvolume of the same
        how = "cloned" if _clone(source, target) else "copied"
    if how == "copied":
        shutil.copyfile(source, target)
    shutil.copystat(source, target)
    return how


def _clone(source: Path, target: Path) -> bool:
    with open(source, "rb") as reader, open(target, "wb") as writer:
        try:
            fcntl.ioctl(writer, FICLONE, reader.fileno())
        except OSError:
            return False
    return True
