"""Which worker a process is, according to the environment in which a cluster started it.

    SLURM array       SLURM_ARRAY_TASK_ID, _MIN, _MAX, _STEP, _COUNT
    SLURM step        SLURM_PROCID of SLURM_STEP_NUM_TASKS or SLURM_NTASKS; srun sets SLURM_STEP_ID with them
    Kubernetes        JOB_COMPLETION_INDEX of an indexed job; JOB_COMPLETIONS, which the job must set itself
    jax.distributed   process i of n

If each task of an array runs a step of several tasks, these are numbered consecutively through the array.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace

from lantern_jax.apps.sets.plan import Worker
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

_GIVE = "give --worker i/N"
# No cluster gives longer numbers.
_DIGITS = 9


def assigned(environment: Mapping[str, str], processes: tuple[int, int] | None = None) -> Worker | None:
    """Returns the worker that the cluster makes of this process; None if nothing says so.

    Args:
        environment: variables by name.
        processes: index and number of processes of ``jax.distributed``; None if it was not started.

    Raises:
        LanternError: variables that are missing, are not numbers, or do not fit together.
    """
    array, step = _array(environment), _step(environment)
    if processes is not None:
        step = _place("jax.distributed", *processes)
    slurm = _nested(array, step)
    indexed = _indexed(environment) if processes is None else None
    if slurm is not None and indexed is not None and slurm != indexed:
        raise LanternError(f"this is worker {slurm} for {slurm.why}, {indexed} for {indexed.why}: {_GIVE}")
    return slurm or indexed


def chosen(
    given: str | None, environment: Mapping[str, str], processes: tuple[int, int] | None = None
) -> Worker:
    """Returns the worker that a process should be: the given one, or the cluster's for "auto" and None.

    Args:
        given: i/N, "auto" or None; with None a process outside any cluster makes the whole set.
        environment, processes: as ``assigned``.

    Raises:
        LanternError: as ``assigned``; an i/N that is not valid; or "auto" outside any cluster.
    """
    if given not in (None, "auto"):
        worker, found = Worker.parse(given), None
        with contextlib.suppress(ValueError):
            found = assigned(environment, processes)
        if found is None or found == worker:
            return worker
        return replace(worker, why=f"as --worker says, not {found} for {found.why}")
    found = assigned(environment, processes)
    if found is not None or given is None:
        return found or Worker()
    if _number(environment, "SLURM_NTASKS", 1) > 1:
        raise LanternError(
            f"this job of {environment['SLURM_NTASKS']} tasks started one process: put srun before the command, "
            f"or {_GIVE}"
        )
    raise LanternError(
        "--worker auto found no SLURM array or step, no indexed job of Kubernetes and no jax.distributed here: "
        + _GIVE
    )


def _array(environment: Mapping[str, str]) -> Worker | None:
    if not environment.get("SLURM_ARRAY_TASK_ID"):
        return None
    task = _number(environment, "SLURM_ARRAY_TASK_ID")
    count = _number(environment, "SLURM_ARRAY_TASK_COUNT", least=1)
    first = _number(environment, "SLURM_ARRAY_TASK_MIN")
    step = _number(environment, "SLURM_ARRAY_TASK_STEP", 1, least=1)
    last = _number(environment, "SLURM_ARRAY_TASK_MAX", first + (count - 1) * step)
    # In a list such as 1,5,7 a task cannot know how many come before it.
    if last != first + (count - 1) * step or task not in range(first, last + 1, step):
        raise LanternError(
            f"task {task} of a SLURM array of {count} tasks from {first} to {last}, step {step}, has no place in a "
            f"row: submit the array as a range such as 0-{count - 1}, or {_GIVE}"
        )
    shown = f"{first}-{last}" + (f":{step}" if step > 1 else "")
    return Worker((task - first) // step + 1, count, f"task {task} of the SLURM array {shown}")


def _step(environment: Mapping[str, str]) -> Worker | None:
    if not environment.get("SLURM_PROCID"):
        return None
    task = _number(environment, "SLURM_PROCID")
    # A batch script is process 0 of a job of many tasks; only srun makes a step.
    if task == 0 and not (environment.get("SLURM_STEP_ID") or environment.get("SLURM_STEPID")):
        return None
    name = "SLURM_STEP_NUM_TASKS" if environment.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS"
    return _place("the SLURM step", task, _number(environment, name, least=1))


def _indexed(environment: Mapping[str, str]) -> Worker | None:
    if not environment.get("JOB_COMPLETION_INDEX"):
        return None
    index = _number(environment, "JOB_COMPLETION_INDEX")
    if not environment.get("JOB_COMPLETIONS"):
        raise LanternError(
            f"JOB_COMPLETION_INDEX is {index} and JOB_COMPLETIONS is not set: set it to the job's completions in the "
            f"container's env, or {_GIVE}"
        )
    count = _number(environment, "JOB_COMPLETIONS", least=1)
    return _place("the indexed job", index, count, "index")


def _place(of: str, index: int, count: int, name: str = "process") -> Worker:
    if not 0 <= index < count:
        raise LanternError(f"{name} {index} of {of} is not one of its {count}, counted from 0: {_GIVE}")
    return Worker(index + 1, count, f"{name} {index} of {count} of {of}")


def _nested(outer: Worker | None, inner: Worker | None) -> Worker | None:
    """Returns worker j of M inside worker i of N; a step of one process says nothing."""
    if outer is None or inner is None:
        return outer or inner
    if inner.count == 1:
        return outer
    number = (outer.number - 1) * inner.count + inner.number
    return Worker(number, outer.count * inner.count, f"{inner.why} in {outer.why}")


def _number(environment: Mapping[str, str], name: str, default: int | None = None, least: int = 0) -> int:
    text = environment.get(name)
    if not text:
        if default is None:
            raise LanternError(f"{name} is not set, so this worker does not know its place: {_GIVE}")
        return default
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS and int(text) >= least):
        raise LanternError(f"{name} is {errors.quoted(text)}, not a whole number from {least} on: {_GIVE}")
    return int(text)
