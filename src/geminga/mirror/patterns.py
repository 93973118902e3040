"""Selection of topics by patterns of tenants, namespaces and names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from geminga.errors import InvalidTopicName
from geminga.ids import TopicName

_PLAIN = re.compile(r"[\w.\-=:% ]*", re.ASCII)
_DEFAULTS = ("public", "default")


@dataclass(frozen=True, slots=True)
class MirrorPattern:
    """``[persistent://][tenant/namespace/]topic``: three regular expressions, each for a whole part."""

    tenant: str
    namespace: str
    topic: str

    @staticmethod
    def parse(text: str) -> MirrorPattern:
        """Parse a pattern. Raises `InvalidTopicName`."""
        domain, separator, rest = text.partition("://")
        if separator and domain != "persistent":
            raise InvalidTopicName(f"topics={text!r}: only persistent topics are mirrored, not {domain}://")
        parts = (rest if separator else text).split("/")
        if len(parts) == 1:
            parts = [*_DEFAULTS, *parts]
        if len(parts) != 3 or not all(parts):
            raise InvalidTopicName(f"topics={text!r}: [persistent://][tenant/namespace/]topic is expected")
        for part in parts:
            try:
                re.compile(part)
            except re.error as error:
                raise InvalidTopicName(
                    f"topics={text!r}: {part!r} is no regular expression: {error}"
                ) from None
        return MirrorPattern(*parts)

    def plain(self, part: str) -> str | None:
        """Return whether a part is a plain name. A point counts as plain: it is usual in names."""
        return part if _PLAIN.fullmatch(part) and "." not in part else None

    @property
    def is_plain(self) -> bool:
        """Return whether the pattern can match only one topic."""
        return None not in [self.plain(part) for part in (self.tenant, self.namespace, self.topic)]

    def matches_namespace(self, namespace: str) -> bool:
        """Return whether the pattern can match topics of ``namespace``, a ``tenant/namespace``."""
        tenant, _, local = namespace.partition("/")
        return bool(re.fullmatch(self.tenant, tenant) and re.fullmatch(self.namespace, local))

    def matches(self, topic: TopicName) -> bool:
        """Return whether a topic matches; brokers' system topics (``__...``) never match."""
        return (
            self.matches_namespace(f"{topic.tenant}/{topic.namespace}")
            and not topic.base.local.startswith("__")
            and re.fullmatch(self.topic, topic.base.local) is not None
        )
