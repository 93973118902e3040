"""Type variables of typed values: what the values of a schema are, and so those of all that use it.

``client.subscribe(topic, name, schema=Job)`` is a ``Consumer[Job]``; without a schema values are `bytes`.
The defaults (PEP 696) are for type checkers alone: Python knows them from 3.13 on.
"""

from __future__ import annotations

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
    """Of functions: solved by the schema that is given."""
    V = TypeVar("V")
    """Of schemas: a `Schema` of which nothing is said is one of any values."""
    T_co = TypeVar("T_co", covariant=True)
    """Of what values come out of: a ``Consumer[Job]`` is a ``Consumer[object]``, too."""
    T_contra = TypeVar("T_contra", contravariant=True)
    """Of what values go into: a ``Producer[object]`` is a ``Producer[Job]``, too."""
