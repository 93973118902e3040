"""``/admin/v2/{persistent|non-persistent}``: topics."""

from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from geminga.broker.admin import http
from geminga.broker.admin.errors import AdminRefusal
from geminga.broker.admin.messages import ENTRY_ANSWERS
from geminga.broker.admin.namespaces import bundle_of, change_permissions, check_bundle, permissions_of
from geminga.broker.admin.routes import ADMINISTRATOR, CONSUME, LIST, LOOK, route
from geminga.broker.admin.stats import internal_info
from geminga.broker.entries.managed_ledger import ManagedLedger
from geminga.broker.entries.position_lookup import last_position, offset_by_time
from geminga.broker.rules.policies import AUTH_ACTIONS, properties_map, words
from geminga.broker.runtime.background_jobs import JobStatus
from geminga.ids import MessageId, TopicName

DOMAIN = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}"
PATH = DOMAIN + "/{topic}"
_SYSTEM_PREFIXES = ("__change_events", "__transaction_", "__consumer_offsets")


class TopicResourceBase(http.Resource):
    """Base of the resources of topics."""

    def existing(self, request: web.Request) -> TopicName:
        """Return the topic of the path; 404 if it does not exist."""
        topic = http.topic_of(request)
        self.namespaces.policies(topic.tenant, topic.namespace)
        if not self.actions.exists(topic):
            raise AdminRefusal(404, f"Topic {topic} not found")
        return topic

    def stored(self, request: web.Request) -> TopicName:
        """Return an existing persistent topic that is not partitioned: 404, 405 otherwise."""
        topic = self.existing(request)
        if not topic.persistent:
            raise AdminRefusal(405, f"not possible for a non-persistent topic: {topic}")
        if self.actions.partitions(topic):
            raise AdminRefusal(
                405, f"not possible for a partitioned topic, name one partition of it: {topic}"
            )
        return topic

    def parts(self, request: web.Request) -> list[TopicName]:
        """Return the topic of the path, or its partitions if it is partitioned."""
        topic = self.existing(request)
        if not topic.persistent:
            raise AdminRefusal(405, f"not possible for a non-persistent topic: {topic}")
        return self.actions.parts(topic)

    async def entry_at(
        self, request: web.Request, topic: TopicName, find: Callable[[ManagedLedger], int | None]
    ) -> web.StreamResponse:
        """Answer with the entry at the offset that ``find`` returns; 404 if it does not exist."""

        def read() -> tuple[int, int, bytes]:
            ledger = self.actions.topic(topic).ledger
            offset = find(ledger)
            if offset is not None and ledger.start <= offset < ledger.confirmed:
                entry = ledger.read_one(offset)
                if entry is not None:
                    return *ledger.position(offset), entry
            raise AdminRefusal(404, "Message not found")

        return await request.app[ENTRY_ANSWERS].send(request, *await self.looking(read))

    async def asked_stats(self, request: web.Request, topic: TopicName) -> dict[str, Any]:
        """Return statistics of a plain topic, without the lists that the request excludes."""
        no_consumers = http.query_flag(request, "excludeConsumers")
        found = await self.in_steps(self.actions.stats_steps(topic, key_ranges=not no_consumers))
        if http.query_flag(request, "excludePublishers"):
            found["publishers"] = []
        if no_consumers:
            for subscription in found.get("subscriptions", {}).values():
                subscription["consumers"] = []
        return found


class TopicsResource(TopicResourceBase):
    """Plain topics, and single partitions."""

    # --- life ---
    @route("GET", DOMAIN, needs=LIST)
    async def names(
        self, request: web.Request, tenant: str, namespace: str, domain: str
    ) -> web.StreamResponse:
        """Names of the topics, partitions included; with ``?includeSystemTopic=true`` system topics, too."""
        self.namespaces.policies(tenant, namespace)
        all_topics = http.query_flag(request, "includeSystemTopic")
        names = self.walk_names(self.topics.walk(f"{tenant}/{namespace}", persistent=domain == "persistent"))
        shown = (
            name
            async for name in names
            if all_topics or not name.split("/", 4)[-1].startswith(_SYSTEM_PREFIXES)
        )
        return await http.answer_names(request, shown)

    @route("GET", DOMAIN + "/{bundle:0x[0-9a-fA-F]+_0x[0-9a-fA-F]+}", needs=LIST)
    async def names_in_bundle(
        self, request: web.Request, tenant: str, namespace: str, domain: str, bundle: str
    ) -> web.StreamResponse:
        """Topics of one bundle, as Apache Pulsar's tools ask for non-persistent ones."""
        boundaries = self.namespaces.document(tenant, namespace)["bundles"]["boundaries"]
        check_bundle(boundaries, bundle)
        names = self.walk_names(self.topics.walk(f"{tenant}/{namespace}", persistent=domain == "persistent"))
        inside = (name async for name in names if bundle_of(boundaries, TopicName.parse(name)) == bundle)
        return await http.answer_names(request, inside)

    @route("PUT", PATH, needs=ADMINISTRATOR)
    async def create(self, request: web.Request) -> None:
        """Make a topic. Body: its properties, or nothing."""
        topic = http.topic_of(request)
        properties = properties_map("properties", await http.object_body(request, optional=True))
        await http.when_done(self.server, partial(self.topics.loader.when_counted, topic))
        await self.durable(lambda done: self.actions.create(topic, done, properties=properties))

    @route("DELETE", PATH, needs=ADMINISTRATOR)
    async def delete(self, request: web.Request) -> None:
        """Delete it; with ``?force=true`` also while clients are connected."""
        topic, force = self.existing(request), http.query_flag(request, "force")
        if self.actions.partitions(topic):
            raise AdminRefusal(409, f"{topic} is partitioned; delete it with .../partitions")
        await self.durable(lambda done: self.actions.delete(topic, force, done))

    @route("POST", PATH + "/terminate", needs=ADMINISTRATOR)
    async def terminate(self, request: web.Request) -> object:
        """Terminate it: publishing to it is refused. Answers with the last message's id."""
        topic = self.stored(request)
        await self.durable(lambda done: self.actions.topic(topic).terminate(done))
        return http.message_id_json(self.now(lambda: self.actions.last_message_id(topic)))

    @route("DELETE", PATH + "/truncate", needs=ADMINISTRATOR)
    async def truncate(self, request: web.Request) -> None:
        """Delete all its messages; subscriptions stay."""
        for topic in self.parts(request):
            await self.durable(self.actions.topic(topic).truncate)

    @route("PUT", PATH + "/unload", needs=ADMINISTRATOR)
    async def unload(self, request: web.Request) -> None:
        """Unload it from memory; clients reconnect automatically."""
        for name in self.actions.parts(self.existing(request)):
            self.now(partial(self.actions.unload, name))

    @route("POST", PATH + "/trim", needs=ADMINISTRATOR)
    async def trim(self, request: web.Request) -> web.Response:
        """Delete unneeded ledgers now instead of at the next check."""
        for topic in self.parts(request):
            self.now(partial(self.actions.trim, topic))
        return http.done_answer(200)

    # --- statistics, positions and entries ---
    @route("GET", PATH + "/stats", needs=LOOK)
    async def stats(self, request: web.Request) -> web.StreamResponse:
        """Rates, sizes, producers, subscriptions and consumers. ``?excludePublishers=true`` and
        ``?excludeConsumers=true`` leave those out."""
        return await http.answer_long(request, await self.asked_stats(request, self._plain(request)))

    @route("GET", PATH + "/internalStats", needs=LOOK)
    async def internal_stats(self, request: web.Request) -> web.StreamResponse:
        """Ledgers and cursors."""
        topic = self._plain(request)
        return await http.answer_long(request, await self.in_steps(self.actions.internal_stats(topic)))

    @route("GET", PATH + "/internal-info", needs=LOOK)
    async def internal_info(self, request: web.Request) -> web.StreamResponse:
        """Ledgers and cursors as they are stored."""
        topic = self.stored(request)
        return await http.answer_long(request, await self.in_steps(internal_info(self.actions.topic(topic))))

    def _plain(self, request: web.Request) -> TopicName:
        topic = self.existing(request)
        if self.actions.partitions(topic):
            raise AdminRefusal(
                404, f"Topic {topic} is partitioned; ask for its partitioned-stats or a partition"
            )
        return topic

    @route("GET", PATH + "/lastMessageId", needs=CONSUME)
    async def last_message_id(self, request: web.Request) -> object:
        """The last message's id."""
        return http.message_id_json(self.actions.last_message_id(self.stored(request)))

    @route("GET", PATH + "/messageid/{timestamp}", needs=CONSUME)
    async def message_id_at(self, request: web.Request, timestamp: int) -> object:
        """The first message published at a time (ms since 1970) or later."""
        topic = self.stored(request)

        def find() -> MessageId:
            ledger = self.actions.topic(topic).ledger
            offset = offset_by_time(ledger, timestamp, self.server.broker.scheduler.now_ms)
            position = ledger.position(offset) if offset < ledger.confirmed else last_position(ledger)
            return MessageId(topic.partition, *position)

        return http.message_id_json(await self.looking(find))

    @route("GET", PATH + "/ledger/{ledger}/entry/{entry}", needs=CONSUME)
    async def entry(self, request: web.Request, ledger: int, entry: int) -> web.StreamResponse:
        """One entry: payload as body, metadata as headers."""
        topic = self.stored(request)
        return await self.entry_at(request, topic, lambda found: found.offset(ledger, entry))

    @route("GET", PATH + "/examinemessage", needs=CONSUME)
    async def examine(self, request: web.Request) -> web.StreamResponse:
        """The nth entry from ``?initialPosition=`` ``earliest`` or ``latest``, in the same form."""
        topic = self.stored(request)
        start = (request.query.get("initialPosition") or "latest").lower()
        if start not in ("earliest", "latest"):
            raise AdminRefusal(412, f"initialPosition={start!r} is not allowed; allowed: earliest, latest")
        nth = http.whole_number(request.query.get("messagePosition") or 1, "messagePosition", 1)
        if start == "earliest":
            return await self.entry_at(request, topic, lambda ledger: ledger.start + nth - 1)
        return await self.entry_at(request, topic, lambda ledger: ledger.confirmed - nth)

    @route("PUT", PATH + "/backlogSize", needs=CONSUME)
    async def backlog_size(self, request: web.Request) -> object:
        """Bytes behind a message id (body)."""
        topic = self.stored(request)
        position = http.message_id_of(await http.body(request))
        ledger = self.actions.topic(topic).ledger
        return ledger.size_from(ledger.offset_from(position.ledger_id, position.entry_id))

    @route("GET", PATH + "/backlog", needs=CONSUME)
    async def backlog(self, request: web.Request) -> object:
        """Figures of a backlog estimate, without scheduling one."""
        found = await self.in_steps(self.actions.stats_steps(self.stored(request), key_ranges=False))
        backlogs = {name: s.get("backlogSize", 0) for name, s in found["subscriptions"].items()}
        return {"storageSize": found["storageSize"], "backlogSizes": backlogs}

    # --- compaction ---
    @route("GET", PATH + "/compaction", needs=ADMINISTRATOR)
    async def compaction_status(self, request: web.Request) -> object:
        """Status of the last compaction."""
        topic = self.existing(request)
        if self.actions.partitions(topic):
            raise AdminRefusal(404, f"Topic {topic} is partitioned; ask for the compaction of a partition")
        return self.actions.compaction_status(topic)

    @route("PUT", PATH + "/compaction", needs=ADMINISTRATOR)
    async def compact(self, request: web.Request) -> None:
        """Compact it now."""
        for topic in self.parts(request):
            self.now(partial(self.actions.compact, topic))

    # --- offloading ---
    @route("GET", PATH + "/offload", needs=ADMINISTRATOR)
    async def offload_status(self, request: web.Request) -> object:
        """Status of offloading."""
        last = self.actions.topic(self.stored(request)).offload
        first = (-1, -1)
        if last is not None and last.status is JobStatus.SUCCESS:
            first = last.first_unoffloaded
        return {
            "status": JobStatus.NOT_RUN if last is None else last.status,
            "lastError": "" if last is None else last.last_error,
            "firstUnoffloadedMessage": http.message_id_json(MessageId(-1, *first)),
        }

    @route("PUT", PATH + "/offload", needs=ADMINISTRATOR)
    async def trigger_offload(self, request: web.Request) -> None:
        """Move ledgers before a message id (body) to offload storage; 409 while an offload is running."""
        topic = self.stored(request)
        position = http.message_id_of(await http.body(request))
        offload = self.actions.topic(topic).offload
        if offload is None:
            raise AdminRefusal(
                501,
                "This broker has nowhere to offload to: start it with --offload-location "
                "(a folder, or a URL such as s3://bucket/path)",
            )
        self.now(partial(offload.start, position.ledger_id))

    # --- requests for what one broker lacks, with the answers that tools expect ---

    @route("GET", PATH + "/shadowTopics", needs=ADMINISTRATOR)
    async def existing_empty(self, request: web.Request) -> web.Response:
        """Always empty: there are no shadow topics."""
        self.existing(request)
        return http.bare_text("")


class TopicAttributesResource(TopicResourceBase):
    """Properties of topics, and the permissions of roles on them."""

    @route("GET", PATH + "/properties", needs=LOOK)
    async def properties(self, request: web.Request) -> object:
        """Properties of the topic."""
        return self.actions.properties(self.existing(request))

    @route("PUT", PATH + "/properties", needs=ADMINISTRATOR)
    async def add_properties(self, request: web.Request) -> None:
        """Add properties, or replace single ones."""
        topic = self.existing(request)
        added = properties_map("properties", await http.object_body(request))
        merged = properties_map("properties", {**self.actions.properties(topic), **added})
        await self.durable(lambda done: self.actions.set_properties(topic, merged, done))

    @route("DELETE", PATH + "/properties", needs=ADMINISTRATOR)
    async def remove_property(self, request: web.Request) -> None:
        """Remove the property that ``?key=`` names."""
        topic = self.existing(request)
        left = dict(self.actions.properties(topic))
        left.pop(request.query.get("key", ""), None)
        await self.durable(lambda done: self.actions.set_properties(topic, left, done))

    @route("GET", PATH + "/permissions", needs=ADMINISTRATOR)
    async def permissions(self, request: web.Request) -> object:
        """Permissions of roles on the topic: its own and the namespace's."""
        topic = self.existing(request)
        auth = permissions_of(self, topic.tenant, topic.namespace)
        return {**auth["namespace_auth"], **auth["destination_auth"].get(str(topic), {})}

    @route("POST", PATH + "/permissions/{role}", needs=ADMINISTRATOR)
    async def grant(self, request: web.Request, role: str) -> None:
        """Allow a role actions on it. Body: as for namespaces."""
        topic = self.existing(request)
        actions = words(AUTH_ACTIONS)("actions", await http.body(request))

        def add(auth: dict[str, Any]) -> None:
            auth["destination_auth"].setdefault(str(topic), {})[role] = actions

        await change_permissions(self, topic.tenant, topic.namespace, add)

    @route("DELETE", PATH + "/permissions/{role}", needs=ADMINISTRATOR)
    async def revoke(self, request: web.Request, role: str) -> None:
        """Revoke a role's permissions on the topic itself."""
        topic = self.existing(request)

        def take(auth: dict[str, Any]) -> None:
            auth["destination_auth"].get(str(topic), {}).pop(role, None)

        await change_permissions(self, topic.tenant, topic.namespace, take)
