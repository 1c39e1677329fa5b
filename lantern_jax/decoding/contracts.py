"""Checks, when a program is traced, that records and arguments fit each other: one clear line where they do not.

Axes: G guidance rows, B batch, N nodes (root included), L = max depth + 1, V codes, D feature width.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from lantern_jax.decoding.protocols import Draft, Drafting, Prefix, Target
from lantern_jax.decoding.topology import check_topology
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError


def check_batch(keys, conditioning, guidance, active) -> int:
    """Returns B, the number of keys; raises LanternError unless everything else has as many rows."""
    shape, dtype = _kind(keys)
    if not jnp.issubdtype(dtype, jax.dtypes.prng_key) or len(shape) != 1:
        legacy = ", and jax.random.wrap_key_data(keys) for those of PRNGKey" if dtype == jnp.uint32 else ""
        given = f"{shape} of {dtype}" if hasattr(keys, "dtype") else errors.quoted(keys, 40)
        raise LanternError(
            f"keys are {given}: give one key per sequence, such as jax.random.split(key, batch){legacy}"
        )
    batch = shape[0]
    check_rows(conditioning, batch)
    for name, values in (("guidance", guidance), ("active", active)):
        if values is not None and jnp.shape(values) != (batch,):
            raise LanternError(f"{name} has shape {jnp.shape(values)} for {batch} keys: give [{batch}]")
    if active is not None and not jnp.issubdtype(jnp.result_type(active), bool):
        raise LanternError(
            f"active is {jnp.result_type(active)}: give bool [{batch}], False at padding sequences"
        )
    return batch


def check_rows(conditioning: Any, batch: int | None = None) -> int:
    """Returns B; raises LanternError unless conditioning is arrays with B >= 1 rows each, as many as there are keys."""
    leaves = [(path, jnp.shape(leaf)) for path, leaf in jax.tree_util.tree_leaves_with_path(conditioning)]
    count = (*(leaves[0][1] if leaves else ()), 0)[0] if batch is None else batch
    for path, shape in leaves:
        name = f"conditioning{jax.tree_util.keystr(path)} has shape {shape}"
        if not shape or shape[0] != count:
            name += "" if batch is None else f" for {batch} keys"
            raise LanternError(
                f"{name}: give conditional rows [{count or 'B'}, ...] alone, as arrays, a key for each"
            )
    if count == 0:
        raise LanternError("conditioning has no sequence: give at least one")
    return count


def check_arrays(tree: Any, name: str = "") -> None:
    """Raises LanternError unless all leaves are arrays or numbers."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        try:
            jax.typeof(leaf)
        except TypeError:
            where = f"{name}{jax.tree_util.keystr(path)}".lstrip(".")
            raise LanternError(
                f"{where} is {type(leaf).__name__}, no array: partition the model first, such as by "
                "equinox.partition(model, equinox.is_array)"
            ) from None


def check_on_no_mesh(inputs: Any) -> None:
    """Raises LanternError if arrays lie on a mesh with explicit axes, unless they lie whole on the context's mesh."""
    context = jax.sharding.get_abstract_mesh()
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs):
        lies = jax.typeof(leaf).sharding
        explicit = AxisType.Explicit in (*lies.mesh.axis_types, *context.axis_types)
        if explicit and not lies.mesh.empty and (lies.mesh != context or any(lies.spec)):
            name = jax.tree_util.keystr(path).lstrip(".")
            raise LanternError(f"{name} lies on a mesh with axes {lies.mesh.axis_names}: give it as mesh=")


def check_mesh(mesh: Mesh | AbstractMesh, mesh_axis: str, batch: int) -> Mesh | AbstractMesh:
    """Returns the mesh; raises LanternError unless it has the axis and the batch divides over it."""
    if mesh_axis not in mesh.shape:
        raise LanternError(
            f"the mesh has no axis {mesh_axis!r}, only {', '.join(map(repr, mesh.shape))}: name one as mesh_axis"
        )
    if batch % mesh.shape[mesh_axis]:
        raise LanternError(
            f"batch {batch} does not divide over {mesh.shape[mesh_axis]} devices: pad it with inactive ones"
        )
    return mesh


def run(name: str, function: Callable, *arguments) -> Any:
    """Calls a record's ``function``; any error other than a LanternError becomes one line that names the function."""
    try:
        return function(*arguments)
    except LanternError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        raise LanternError(
            f"{name} fails on what it was given ({type(error).__name__}: {lines[0][:160]}): "
            "compare its arguments and the parameters with what the record promises"
        ) from error


def run_prefill(target: Target, params, conditioning, guidance, slots: int, batch: int):
    """Runs ``target.prefill`` and checks its results."""
    name = "target.prefill"
    results = run(name, target.prefill, params, conditioning, guidance, slots)
    cache, logits, prefix = _parts(name, results, "cache, logits, prefix")
    _check(name, "logits", logits, (batch, target.vocab_size), jnp.float32)
    if not isinstance(prefix, Prefix):
        raise LanternError(f"{name} returns {type(prefix).__name__} as its prefix: return a Prefix")
    rows, (shape, _) = 1 if guidance is None else 2, _kind(prefix.features)
    if len(shape) != 4 or shape[:2] != (rows, batch):
        raise LanternError(
            f"{name} returns features {shape}: return [{rows}, {batch}, P, D], "
            f"{'the conditional rows' if rows == 1 else 'conditional, then unconditional rows'}"
        )
    return cache, logits, prefix


def run_score(target: Target, params, cache, tokens, depth, ancestors, *visible):
    """Runs ``target.score`` and checks its results."""
    results = run("target.score", target.score, params, cache, tokens, depth, ancestors, *visible)
    logits, features, block = _parts("target.score", results, "logits, features, block")
    _check("target.score", "logits", logits, (*tokens.shape, target.vocab_size), jnp.float32)
    shape, _ = _kind(features)
    if len(shape) != 4 or shape[1:3] != tokens.shape:
        raise LanternError(f"target.score returns features {shape}: return [G, {tokens.shape}, D]")
    return logits, features, block


def run_propose(drafting: Drafting, params, state, pending, draws, sampling) -> tuple[Draft, Any]:
    """Runs ``drafting.propose`` and checks its draft."""
    name = "drafting.propose"
    results = run(name, drafting.propose, params, state, pending, draws, sampling)
    draft, state = _parts(name, results, "draft, state")
    if not isinstance(draft, Draft):
        raise LanternError(f"{name} returns {type(draft).__name__}: return a Draft and its state")
    check_topology(draft.topology)
    if draft.topology.max_depth != drafting.max_depth:
        raise LanternError(
            f"{name} returns a topology of depth {draft.topology.max_depth}: its record says "
            f"max_depth {drafting.max_depth}"
        )
    _check(name, "tokens", draft.tokens, (len(pending.tokens), draft.topology.num_nodes), jnp.int32)
    # NumPy arrays would stand for what all sequences share.
    return jax.tree.map(jnp.asarray, draft), state


def check_unchanged(before: Any, after: Any) -> None:
    """Raises LanternError unless a round kept the shapes and dtypes of the loop's state."""
    for name, record in (("cache", "target.commit"), ("drafting", "drafting.propose and observe")):
        was, now = (
            {
                jax.tree_util.keystr(path): "{} of {}".format(*_kind(leaf))
                for path, leaf in jax.tree_util.tree_leaves_with_path(getattr(state, name))
            }
            for state in (before, after)
        )
        for leaf in {**was, **now}:
            if was.get(leaf) != now.get(leaf):
                raise LanternError(
                    f"{record} turn the state's {leaf or 'value'} from {was.get(leaf)} into {now.get(leaf)}: "
                    "a state keeps its shapes and dtypes"
                )


def _parts(name: str, results: Any, wanted: str) -> tuple:
    if not isinstance(results, tuple) or len(results) != len(wanted.split(",")):
        raise LanternError(f"{name} returns {type(results).__name__}: return ({wanted})")
    return results


def _check(name: str, what: str, values: Any, shape: tuple[int, ...], dtype: Any) -> None:
    if _kind(values) != (shape, dtype):
        given = "{} of {}".format(*_kind(values))
        raise LanternError(f"{name} returns {what} {given}: return {jnp.dtype(dtype)} {shape}")


def _kind(values: Any) -> tuple[tuple[int, ...] | str, Any]:
    """Returns an array's shape and dtype; for anything else, the name of its type and the dtype object."""
    return getattr(values, "shape", type(values).__name__), getattr(values, "dtype", np.dtype(object))
