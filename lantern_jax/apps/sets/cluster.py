"""Which part of a set a process makes, according to the environment in which a cluster started it.

    SLURM array       SLURM_ARRAY_TASK_ID, _MIN, _MAX, _STEP, _COUNT
    SLURM step        SLURM_PROCID of SLURM_STEP_NUM_TASKS or SLURM_NTASKS; srun sets SLURM_STEP_ID with them
    Kubernetes        JOB_COMPLETION_INDEX of an indexed job; JOB_COMPLETIONS, which the job must set itself
    jax.distributed   process i of n

If each task of an array runs a step of several tasks, these are numbered consecutively through the array.
"""

from collections.abc import Mapping

from lantern_jax.apps.sets.set_plan import Part
from lantern_jax.io import errors
from lantern_jax.io.errors import LanternError

_GIVE = "give --worker i/N"


def assigned(environment: Mapping[str, str], processes: tuple[int, int] | None = None) -> Part | None:
    """Returns the part that the cluster assigns to this process; None outside any cluster.

    Args:
        environment: variables by name.
        processes: index and number of processes of ``jax.distributed``; None if it was not started.

    Raises:
        LanternError: variables that are missing, are not numbers, or do not fit together.
    """
    array, step = _array(environment), _step(environment)
    if processes is not None:
        step = _place("jax.distributed", *processes)
    if array is None or step is None:
        return array or step or _indexed(environment)
    number = (array.number - 1) * step.count + step.number
    return Part(
        number, array.count * step.count, f"{step.why} in {array.why}" if step.count > 1 else array.why
    )


def chosen(
    given: str | None, environment: Mapping[str, str], processes: tuple[int, int] | None = None
) -> Part:
    """Returns the part that a process should make: the given one, or the cluster's for "auto" and None.

    Args:
        given: i/N, "auto" or None; with None a process outside any cluster makes the whole set.
        environment, processes: as ``assigned``.

    Raises:
        LanternError: as ``assigned``; an i/N that is not valid; or "auto" outside any cluster.
    """
    if given not in (None, "auto"):
        return Part.parse(given)
    found = assigned(environment, processes)
    if found is not None or given is None:
        return found or Part()
    if "SLURM_NTASKS" in environment:
        raise LanternError(f"this job of SLURM started no step: put srun before the command, or {_GIVE}")
    raise LanternError(
        "--worker auto found no SLURM array or step, no indexed job of Kubernetes and no jax.distributed here: "
        + _GIVE
    )


def _array(environment: Mapping[str, str]) -> Part | None:
    if not environment.get("SLURM_ARRAY_TASK_ID"):
        return None
    names = ("ID", "COUNT", "MIN", "MAX", "STEP")
    task, count, first, last, step = (_number(environment, f"SLURM_ARRAY_TASK_{name}") for name in names)
    # In a list such as 1,5,7 a task cannot know how many come before it.
    if task not in range(first, last + 1, step) or count != (last - first) // step + 1:
        raise LanternError(
            f"task {task} of a SLURM array of {count} tasks from {first} to {last}, step {step}, has no place in a "
            f"row: submit the array as a range such as 0-{count - 1}, or {_GIVE}"
        )
    shown = f"{first}-{last}" + (f":{step}" if step > 1 else "")
    return Part((task - first) // step + 1, count, f"task {task} of the SLURM array {shown}")


def _step(environment: Mapping[str, str]) -> Part | None:
    # A batch script is process 0 of a job of many tasks; only srun makes a step.
    if not environment.get("SLURM_STEP_ID"):
        return None
    name = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
    return _place("the SLURM step", _number(environment, "SLURM_PROCID"), _number(environment, name))


def _indexed(environment: Mapping[str, str]) -> Part | None:
    if not environment.get("JOB_COMPLETION_INDEX"):
        return None
    names = ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS")
    return _place("the indexed job", *(_number(environment, name) for name in names))


def _place(of: str, index: int, count: int) -> Part:
    return Part(index + 1, count, f"process {index} of {count} of {of}")


def _number(environment: Mapping[str, str], name: str) -> int:
    try:
        return int(environment[name])
    except (KeyError, ValueError):
        given = errors.quoted(environment.get(name))
        raise LanternError(f"{name} is {given}, not a number: set it, or {_GIVE}") from None
