"""The base of records of arrays."""

from ast import literal_eval

from flax.struct import PyTreeNode
from jax import export


class Record(PyTreeNode):
    """A frozen pytree of arrays with a ``replace`` that type checkers know; programs that use it can be serialized.

    Static fields are strings, numbers and tuples of them.
    """

    def __init_subclass__(cls):
        super().__init_subclass__()
        export.register_pytree_node_serialization(
            cls,
            serialized_name=f"{cls.__module__.partition('.')[0]}.{cls.__qualname__}",
            serialize_auxdata=lambda static: repr(static).encode(),
            deserialize_auxdata=lambda written: literal_eval(written.decode()),
        )
