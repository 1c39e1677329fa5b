"""A tree of arrays in a folder, as orbax lays it out: written compactly, inspected and read with one-line errors.

What is being written stands in memory, so a large tree is written in *packs*: numbered folders, each an orbax
checkpoint of some of the leaves in three files.

Orbax itself is not asked to write: it makes as many files as its threads happen to finish arrays apart from each other,
and on a full disk these threads print tracebacks. Nor is it asked to read: where a file is damaged it leaves reads
behind that do so later.
"""

import contextlib
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorstore
from jaxtyping import PyTree

from lantern_jax import errors
from lantern_jax.models.sizes import is_size
from lantern_jax.partition import Where, put, sharding_at
from lantern_jax.quantization import is_fixed

# The file in which orbax describes the tree. Its others are marks of a finished write, with paths and times of the
# machine that wrote: the caller's rename takes their place.
_DESCRIPTION = "_METADATA"
# What it calls the keys of a dict there.
_DICT = 2
# How orbax has tensorstore lay out its key-value stores: the arrays' small descriptions lie beside the keys, all keys
# in one node, and a file of data may have any size.
_STORE = {
    "driver": "ocdbt",
    "config": {
        "max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000, "manifest_kind": "single",
    },
    "assume_config": True,
    "target_data_file_size": 0,
}  # fmt: skip

# How orbax has tensorstore describe an array beside its shape; other layouts are not ours.
_ARRAY = {"zarr_format": 2, "filters": None, "fill_value": None, "order": "C", "dimension_separator": "."}
_DESCRIBED = "/.zarray"

# Bytes of leaves written or read at once.
PACK_BYTES = 1 << 29


def write_arrays(
    directory: Path,
    arrays: PyTree,
    report: Callable[[int], None] = lambda _: None,
    pack_bytes: int = PACK_BYTES,
) -> None:
    """Writes a nested dict of arrays into a new folder, then reads it back and compares.

    Args:
        directory: new.
        arrays: nested dicts of NumPy or JAX arrays.
        report: called with the number of bytes done since the last call.
        pack_bytes: trees larger than this are written in packs of about this size.

    Raises:
        OSError: what was read back is not what was written.
    """
    packs = list(_packs(arrays, pack_bytes))
    for number, pack in enumerate(packs):
        folder = directory if len(packs) == 1 else directory / str(number)
        _write_pack(folder, pack)
        back = _read_pack(folder, pack, {}, None, {})
        same = jax.tree.map(lambda ours, theirs: np.asarray(ours).tobytes() == theirs.tobytes(), pack, back)
        if not all(jax.tree.leaves(same)):
            raise OSError(f"{folder} does not hold what was written to it: the disk may be full or failing")
        report(sum(leaf.nbytes for leaf in jax.tree.leaves(pack)))


def _write_pack(folder: Path, pack: PyTree) -> None:
    folder.mkdir(parents=True)
    context, leaves = tensorstore.Context(), jax.tree_util.tree_flatten_with_path(pack)[0]
    for path, leaf in leaves:
        leaf = np.asarray(leaf)
        chunks = [max(size, 1) for size in leaf.shape]
        spec = {
            "driver": "zarr",
            "kvstore": {"driver": "memory", "path": f"{_name(path)}/"},
            "metadata": {"chunks": chunks, "compressor": {"id": "zstd", "level": 1}},
            "store_data_equal_to_fill_value": True,
        }
        array = tensorstore.open(
            spec, context=context, create=True, dtype=leaf.dtype, shape=leaf.shape
        ).result()
        array.write(leaf).result()
    # In one transaction, which makes one file of data.
    read = tensorstore.KvStore.open({"driver": "memory"}, context=context).result()
    try:
        write = tensorstore.KvStore.open(_STORE | _store(folder)).result()
        with tensorstore.Transaction(atomic=True) as transaction:
            copy = write.with_transaction(transaction)
            for key in read.list().result():
                copy[key] = read[key]
    except ValueError as error:
        # Tensorstore's own line names a file that is gone by now; the system's reason is the last of it.
        why = str(error).partition(" [")[0].rpartition(": ")[2]
        raise OSError(errors.unwritable(str(folder), OSError(why), "folder")) from None
    (folder / _DESCRIPTION).write_text(json.dumps(_description([path for path, _ in leaves])))


def _description(paths: Iterable[tuple]) -> dict[str, Any]:
    """What orbax has to know of arrays that stand in nested dicts."""
    value = {"value_type": "np.ndarray", "skip_deserialize": False}
    tree = {
        str(tuple(key.key for key in path)): {
            "key_metadata": [{"key": key.key, "key_type": _DICT} for key in path],
            "value_metadata": value,
        }
        for path in paths
    }
    return {
        "tree_metadata": tree,
        "use_ocdbt": True,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }


def _name(path: tuple) -> str:
    """An array's in the store."""
    return ".".join(key.key for key in path)


def _packs(arrays: PyTree, pack_bytes: int) -> Iterator[PyTree]:
    """The tree cut into trees of at most ``pack_bytes``, or of one leaf."""
    pack, size = {}, 0
    for path, leaf in jax.tree_util.tree_flatten_with_path(arrays)[0]:
        if pack and size + leaf.nbytes > pack_bytes:
            yield pack
            pack, size = {}, 0
        parent = pack
        for key in path[:-1]:
            parent = parent.setdefault(key.key, {})
        parent[path[-1].key] = leaf
        size += leaf.nbytes
    yield pack


def _pack_folders(directory: Path) -> list[Path]:
    numbered = [path for path in directory.iterdir() if path.is_dir() and path.name.isdecimal()]
    return sorted(numbered, key=lambda path: int(path.name)) or [directory]


def _merged(trees: list[PyTree]) -> PyTree:
    """Nested dicts with different leaves, as one."""
    if not all(isinstance(tree, Mapping) for tree in trees):
        return trees[-1]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    return {key: _merged([tree[key] for tree in trees if key in tree]) for key in keys}


def file_sizes(directory: Path) -> dict[str, int]:
    """{name relative to the folder: bytes} of all files in it."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.stat().st_size for path in files}


def check_files(directory: Path, sizes: Any) -> None:
    """Raises ValueError, one line, unless the folder has every file of ``sizes`` in its whole length."""
    if not isinstance(sizes, Mapping) or not sizes:
        raise ValueError(
            f"{directory}: config.json does not list its files: fetch or convert the checkpoint again"
        )
    if not directory.is_dir():
        raise ValueError(f"{directory} is missing: fetch or convert the checkpoint again")
    found = file_sizes(directory)
    wrong = [f"{name} is missing" for name in sizes if name not in found]
    wrong += [
        f"{name} has {found[name]} bytes, expected {size!r}"
        for name, size in sizes.items()
        if name in found and found[name] != size
    ]
    if wrong:
        raise errors.damaged(directory, "; ".join(wrong))


def stored_shapes(directory: Path) -> PyTree:
    """The tree with its shape and dtype in place of every array.

    Raises:
        ValueError: the folder is damaged.
    """
    return _merged([_pack_shapes(folder) for folder in _pack_folders(directory)])


def read_arrays(
    directory: Path,
    dtypes: Mapping[str, Any],
    sharding: Where | None = None,
    shapes: PyTree | None = None,
    check: Callable[[Path], None] = lambda _: None,
) -> PyTree:
    """The arrays of a folder.

    Args:
        dtypes: dtype of the arrays under a top-level key; those of other keys are as stored, and so are weights in
            eight bits with their scales.
        sharding: where JAX arrays go, straight from the files; None for NumPy arrays.
        shapes: the tree with something that has a ``shape`` in place of every array that is wanted; no other is
            read. One stored in another shape, of as many elements, is reshaped on its way, on the host. None is all
            arrays in their stored shapes.
        check: called with the folder of each pack just before arrays of it are read; raises ValueError where its files
            are damaged. What it read is still in the system's memory then, not fetched twice.

    Raises:
        ValueError: the folder is damaged.
    """
    packs = {folder: _pack_shapes(folder) for folder in _pack_folders(directory)}
    shape_of = {}
    if shapes is not None:
        shape_of = {path: tuple(leaf.shape) for path, leaf in jax.tree_util.tree_flatten_with_path(shapes)[0]}
        packs = {folder: _only(pack, shapes) for folder, pack in packs.items()}
    trees = []
    for folder, pack in packs.items():
        if pack:
            check(folder)
            trees.append(_read_pack(folder, pack, dtypes, sharding, shape_of))
    return _merged(trees)


def _only(tree: PyTree, wanted: PyTree) -> PyTree:
    """What is in both of two nested dicts, as the first has it."""
    if not isinstance(tree, Mapping):
        return tree
    both = {name: _only(tree[name], wanted[name]) for name in tree if name in wanted}
    return {name: branch for name, branch in both.items() if branch is not None and branch != {}}


def _store(folder: Path) -> dict[str, Any]:
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder.absolute()}/"}}


def _pack_shapes(folder: Path) -> PyTree:
    """Nested dicts: the names of a path stand in a key one after the other, with points between them."""
    tree: dict[str, Any] = {}
    with _guarded(folder):
        store = tensorstore.KvStore.open(_store(folder)).result()
        for key in store.list().result():
            name = key.decode().removesuffix(_DESCRIBED)
            if key.endswith(_DESCRIBED.encode()):
                *parents, last = name.split(".")
                branch = tree
                for parent in parents:
                    branch = branch.setdefault(parent, {})
                branch[last] = _shape(name, json.loads(store[key]))
    return tree


def _shape(name: str, described: Mapping[str, Any]) -> jax.ShapeDtypeStruct:
    """Of an array as its store describes it."""
    shape, chunks = described["shape"], described["chunks"]
    other = [entry for entry, value in _ARRAY.items() if described.get(entry) != value]
    sizes = all(is_size(size, 0) for size in shape) and all(is_size(chunk) for chunk in chunks)
    small = all(chunk <= max(size, 1) for chunk, size in zip(chunks, shape, strict=True))
    dtype = jnp.dtype(described["dtype"])
    numbers = jnp.issubdtype(dtype, jnp.number) and described["compressor"]["id"] == "zstd"
    if other or not (sizes and small and numbers):
        raise ValueError(f"{name} is laid out otherwise than those of this library")
    return jax.ShapeDtypeStruct(tuple(shape), dtype)


def _read_pack(
    folder: Path,
    tree: PyTree,
    dtypes: Mapping[str, Any],
    sharding: Where | None,
    shape_of: Mapping[Any, tuple[int, ...]],
) -> PyTree:
    def start(path, leaf):
        spec = {"driver": "zarr", "kvstore": _store(folder) | {"path": f"{_name(path)}/"}}
        array = tensorstore.open(spec, open=True, read=True).result()
        dtype = None if is_fixed(path, leaf.dtype) else dtypes.get(path[0].key)
        return (array if dtype is None else tensorstore.cast(array, jnp.dtype(dtype))).read()

    def finish(path, leaf, reading):
        array = reading.result().reshape(shape_of.get(path, leaf.shape))
        return array if sharding is None else put(array, sharding_at(sharding, path, array.shape))

    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    done, started, size = [], deque(), 0
    with _guarded(folder):
        for path, leaf in leaves:
            # What is being read stands in memory beside what was put in its place.
            while started and size + _bytes(leaf) > PACK_BYTES:
                size -= _bytes(started[0][1])
                done.append(finish(*started.popleft()))
            started.append((path, leaf, start(path, leaf)))
            size += _bytes(leaf)
        while started:
            done.append(finish(*started.popleft()))
    return jax.tree.unflatten(structure, done)


def _bytes(leaf: Any) -> int:
    return leaf.size * leaf.dtype.itemsize


@contextlib.contextmanager
def _guarded(directory: Path) -> Iterator[None]:
    try:
        yield
    # Tensorstore raises many kinds of errors on damaged files, none of them its own.
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise errors.damaged(directory, errors.printable(lines[0], 160)) from error
