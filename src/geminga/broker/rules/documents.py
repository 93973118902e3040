"""JSON documents of the rules, one per key of the store's key-value map."""

import json
import logging
from typing import Any, Final

from geminga.broker.rules.policies import InvalidRequest, RuleViolation
from geminga.errors import StoreDamaged
from geminga.ledger.api import Done, EntryStore, StoredValue

log = logging.getLogger("geminga.broker")

Json = dict[str, Any]
DOCUMENT_BYTES_MAX: Final = 1024 * 1024
"""Largest policies of a namespace or a topic, as they are stored: each change writes them as a whole."""


class RuleDocuments:
    """Reads and writes the documents. ``damaged``: keys that lost their values and were not set again."""

    def __init__(self, store: EntryStore) -> None:
        self._keys = store.keys
        self.damaged: set[str] = set()

    def load(self, prefix: str) -> dict[str, Json]:
        """Return the documents whose keys begin with ``prefix``, by the rest of their keys."""
        return {key[len(prefix) :]: self._decode(key, value) for key, value in self._keys.scan(prefix)}

    def has(self, key: str) -> bool:
        """Return whether there is such a document."""
        return self._keys.get(key) is not None

    def read(self, key: str) -> Json | None:
        """Return a new copy of a document; None if it does not exist."""
        value = self._keys.get(key)
        return None if value is None else self._decode(key, value)

    def _decode(self, key: str, value: StoredValue) -> Json:
        if value.lost is not None and key not in self.damaged:
            log.error(
                "%s was lost to damage in the store: %s, and nothing is deleted by its rules until they "
                "are set again",
                key,
                "what it was before is in force" if value.base else "defaults are in force",
            )
            self.damaged.add(key)
        try:
            document = json.loads(value.base) if value.base or value.lost is None else {}
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise StoreDamaged(f"the store's value under {key!r} is no JSON object: {value.base[:80]!r}")
        return document

    def write(
        self, prefix: str, documents: dict[str, Json], name: str, document: Json, done: Done | None
    ) -> None:
        """Store a document, then put it into ``documents``, which stay as they are when the store refuses."""
        encoded = json.dumps(document, separators=(",", ":")).encode()
        if len(encoded) > DOCUMENT_BYTES_MAX:
            raise RuleViolation(
                InvalidRequest.NOT_ALLOWED, f"all policies of {name} would take {len(encoded)} bytes; "
                f"at most {DOCUMENT_BYTES_MAX} are allowed"
            )  # fmt: skip
        self._keys.put(prefix + name, encoded, done)
        documents[name] = document
        self.damaged.discard(prefix + name)

    def remove(self, prefix: str, documents: dict[str, Json], name: str, done: Done | None) -> None:
        """Delete a document, then take it out of ``documents``."""
        self._keys.delete(prefix + name, done)
        documents.pop(name, None)
        self.damaged.discard(prefix + name)
