"""Type variables of a schema's values, shared by all classes with typed values.

``client.subscribe(topic, name, schema=Job)`` is a ``Consumer[Job]``; without a schema values are
`bytes`. The defaults (PEP 696) are for type checkers only: Python supports them from 3.13 on.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T = TypeVar("T", default=bytes)
    V = TypeVar("V", default=Any)
    T_co = TypeVar("T_co", covariant=True, default=bytes)
    T_contra = TypeVar("T_contra", contravariant=True, default=bytes)
else:
    from typing import TypeVar

    T = TypeVar("T")
    """For functions: inferred from the schema argument."""
    V = TypeVar("V")
    """For schemas: an unspecified `Schema` is one of any values."""
    T_co = TypeVar("T_co", covariant=True)
    """For classes that return values: a ``Consumer[Job]`` is also a ``Consumer[object]``."""
    T_contra = TypeVar("T_contra", contravariant=True)
    """For classes that accept values: a ``Producer[object]`` is also a ``Producer[Job]``."""
