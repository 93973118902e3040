"""Bugs that the simulation must find: ``python -m tests.simulation.mutants`` puts them into the sources.

Each mutant replaces one text of one file, in a copy. Seeds are run until one fails; the table says which, and by which
rule. ``--part 3/8`` runs every eighth mutant from the third.
"""

# ruff: noqa: E501 (the texts are those of the sources)
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]


class Mutant(NamedTuple):
    """A bug: ``old`` becomes ``new`` in ``file``, below ``src/geminga``. ``only``: the workload that meets it."""

    only: str
    name: str
    file: str
    old: str
    new: str


_SHARED, _KEYS, _CURSOR = (f"broker/delivery/{each}.py" for each in ("shared", "key_shared", "cursor"))
_ACTIVE, _SUBSCRIPTION = (f"broker/delivery/{each}.py" for each in ("single_active", "subscription"))
_DEDUP, _COMPACTION = (f"broker/topics/{each}.py" for each in ("dedup", "compaction"))
_JOURNAL, _EXPIRY, _ACCESS = "ledger/journal.py", "broker/topics/expiry.py", "broker/topics/access.py"

MUTANTS: Final = (
    Mutant("refusals", "Shared: entries taken for redelivery and not sent are forgotten", _SHARED,
           "            self._give_back(offset for offset in offsets[at:] if offset not in consumer.pending)\n",
           "            pass\n"),
    Mutant("t", "Shared: a consumer that leaves keeps its entries", _SHARED,
           "        self._returning.append((None, iter(consumer.forget_pending())))\n",
           "        consumer.forget_pending()\n"),
    Mutant("refusals", "acknowledged entries behind open ones are delivered again", "broker/delivery/dispatcher.py",
           "stop = cursor.open_run(offset, min(ledger.confirmed, offset + entries_max))",
           "stop = min(ledger.confirmed, offset + entries_max)"),
    Mutant("t", "Shared: refused entries are not redelivered", _SHARED,
           "                again.append(offset)\n", "                again = again\n"),
    Mutant("t", "Shared: an entry is skipped when permits end", _SHARED,
           "            if not consumer.ready or self.blocked:\n                return True\n            if offset in",
           "            if not consumer.ready or self.blocked:\n                self.read_offset = offset + 1\n"
           "                return True\n            if offset in"),
    Mutant("t", "Shared: chunks go to any consumer", _SHARED, "if head is not None and head.num_chunks > 1:", "if False:"),
    Mutant("refusals", "consumer: a receiver without a queue asks no more after a reconnect", "consumer/flow.py",
           "self._queue_size or int(self._earned > 0 or self._outstanding > 0)", "self._queue_size"),
    Mutant("delayed", "delayed messages come five seconds early", _SHARED,
           "head.deliver_at_time <= self.scheduler.now_ms or", "head.deliver_at_time <= self.scheduler.now_ms + 5000 or"),
    Mutant("delayed", "delayed messages: the timer is two minutes late", "broker/delivery/delayed.py",
           "- scheduler.now_ms) / 1000), LOOK_SECONDS)\n", "- scheduler.now_ms) / 1000), LOOK_SECONDS) + 120.0\n"),
    Mutant("delayed", "delayed messages: only the first due ones are sent", "broker/delivery/delayed.py",
           "        if self._first_span() is not None:\n            self._arm()\n        if due", "        if due"),
    Mutant("t", "Exclusive: an entry is skipped when permits end", _ACTIVE,
           "                return\n            ack_set = cursor.ack_words(offset) if cursor.batches else ()\n"
           "            messages = cursor.open_messages(offset) if ack_set else message_count(entry)\n"
           "            ledger_id, entry_id",
           "                self.read_offset = offset + 1\n                return\n"
           "            ack_set = cursor.ack_words(offset) if cursor.batches else ()\n"
           "            messages = cursor.open_messages(offset) if ack_set else message_count(entry)\n"
           "            ledger_id, entry_id"),
    Mutant("t", "Exclusive: no rewind for a new consumer", _ACTIVE,
           "        self.read_offset = self.cursor.next_open(self.cursor.mark)\n        self._leave", "        self._leave"),
    Mutant("t", "Key_Shared: no wait for another consumer's entries of a key", _KEYS,
           "        if self.out_of_order:\n            return False\n        bound", "        if True:\n            return False\n        bound"),
    Mutant("t", "Key_Shared: the queue of a consumer that leaves is lost", _KEYS,
           "            self._route_all(waiting)\n        for slot", "            pass\n        for slot"),
    Mutant("t", "Key_Shared: waiting entries of a slot are lost", _KEYS,
           "            for waiting in sorted(parked):\n", "            for waiting in sorted(parked)[1:]:\n"),
    Mutant("counts", "cursor: a later acknowledgement acknowledges earlier entries", _CURSOR,
           "        if offset == self.mark:\n            self.mark = offset + 1", "        if offset >= self.mark:\n            self.mark = offset + 1"),
    Mutant("counts", "cursor: earlier acknowledgements in a batch are forgotten", _CURSOR,
           "after = known & bits_from_words(words, messages)", "after = bits_from_words(words, messages)"),
    Mutant("counts", "cursor: the mark of a delta is not recovered", _CURSOR,
           "self.mark = max(self.mark, reader.varint())\n", "reader.varint()\n"),
    Mutant("t", "cursor: of two cumulative acknowledgements in one flush the first is stored", _CURSOR,
           "self._below = max(self._below, offset)", "self._below = offset if self._below < 0 else self._below"),
    Mutant("restarts", "deduplication: deleted ledgers are not covered by a snapshot", "broker/topics/persistent.py",
           "            self.dedup.cover(self.ledger.segments[count - 1].end)\n", "            pass\n"),
    Mutant("counts", "cursor: a recovered range is one entry too long", _CURSOR,
           "self.holes.add_range(max(start, self.mark), start + reader.varint())",
           "self.holes.add_range(max(start, self.mark), start + reader.varint() + 1)"),
    Mutant("counts", "cursor: acknowledgements in batches are not recovered", _CURSOR,
           "                self.batches[offset] = self.batches.get(offset, bits) & bits\n", ""),
    Mutant("counts", "cursor: acknowledged messages of batches are not counted", _CURSOR,
           "messages - self._tally[0] - self._parts)", "messages - self._tally[0])"),
    Mutant("t", "an acknowledgement is confirmed before it is stored", "broker/delivery/cursor_writer.py",
           "            self._store.keys.merge(self._key, delta, self._written)\n",
           "            self._store.keys.merge(self._key, delta, lambda error: None)\n            self._written(None)\n"),
    Mutant("t", "an acknowledgement is confirmed while the write of an unloaded cursor is pending",
           "broker/delivery/cursor_writer.py", "elif self._is_stored or", "elif True or"),
    Mutant("seeking", "a seek is not stored", _SUBSCRIPTION,
           "acknowledge_part(offset, words, _BatchSizes(self.topic.ledger).of(offset))\n        self.write_snapshot(done)",
           "acknowledge_part(offset, words, _BatchSizes(self.topic.ledger).of(offset))\n        done(None)"),
    Mutant("seeking", "a seek goes one entry too far", _SUBSCRIPTION,
           "        self.cursor.reset(offset)\n", "        self.cursor.reset(offset + 1)\n"),
    Mutant("restarts", "deduplication: the newest sequence id is stored twice", _DEDUP,
           "if pushed is not None and sequence_id <= pushed:", "if pushed is not None and sequence_id < pushed:"),
    Mutant("restarts", "deduplication: entries after the snapshot are not read", _DEDUP,
           "        found._replay(max(offset, ledger.start))\n", ""),
    Mutant("restarts", "deduplication: of a batch the first id counts", _DEDUP,
           "        highest = max(head.sequence_id, head.highest_sequence_id)\n", "        highest = head.sequence_id\n"),
    Mutant("restarts", "deduplication: the sequence id of a refused entry stays taken", _DEDUP,
           "        if self._before is None:\n            self._pushed.pop", "        if True:\n            return\n        if self._before is None:\n            self._pushed.pop"),
    Mutant("restarts", "deduplication: a message's first chunk counts as the whole", _DEDUP,
           "        if head.num_chunks and head.chunk_id != head.num_chunks - 1:\n            return\n", ""),
    Mutant("t", "journal: receipts before the sync", _JOURNAL, 'return self._sync == "always"', "return False"),
    Mutant("t", "journal: a group is dropped when the disk is full", _JOURNAL,
           "self._held, self.full = batch, error\n", "self._held, self.full = [], error\n"),
    Mutant("t", "recovery: checksums are not checked", "ledger/recovery.py",
           "    return {index for index, crc in enumerate(directory.crcs) if crc != found[index]}", "    return set()"),
    Mutant("reading", "recovery: the last intact group is dropped", "ledger/recovery.py",
           "            if not self._replay_group(reader, item, synced):\n",
           "            if item is items[-1] or not self._replay_group(reader, item, synced):\n"),
    Mutant("access", "exclusive producers: an old epoch is accepted", _ACCESS,
           "known is not None and self.epoch is not None and known < self.epoch", "False"),
    Mutant("access", "exclusive producers: fenced ones are not removed", _ACCESS,
           "            producer.fenced()\n            producer.removed = True\n", "            pass\n"),
    Mutant("compaction", "compaction: the entry after the last horizon is lost", _COMPACTION,
           "max(old.horizon, topic.ledger.start)", "max(old.horizon + 1, topic.ledger.start)"),
    Mutant("compaction", "compaction: deleted keys are delivered", "broker/latest_per_key.py",
           "self._put(key_bytes(metadata.partition_key), ordinal, has_value=size > 0)",
           "size > 0 and self._put(key_bytes(metadata.partition_key), ordinal, has_value=True)"),
    Mutant("retention", "retention deletes what is not acknowledged", _EXPIRY,
           "gone = ledger.unneeded(deadlines.slowest(topic), expired)", "gone = ledger.unneeded(ledger.confirmed, expired)"),
    Mutant("retention", "retention ends after a tenth of its time", _EXPIRY, "too_old = minutes >= 0 and unused_ms >= minutes * 60_000",
           "too_old = minutes >= 0 and unused_ms >= minutes * 6_000"),
    Mutant("retention", "time to live ends after a tenth of its time", _EXPIRY,
           "topic.scheduler.now_ms - seconds * 1000\n", "topic.scheduler.now_ms - seconds * 100\n"),
    Mutant("retention", "clearing the backlog is not durable", _SUBSCRIPTION,
           "            self.flush()\n            self.when_durable(done)", "            done(None)"),
    Mutant("reading", "offload: a file is read one entry too far", "ledger/tiered.py",
           "            job = self._reader.job(self._path(record), record, first_entry_id, entries_max, bytes_max)\n"
           "            return _taken(job())",
           "            job = self._reader.job(self._path(record), record, first_entry_id + 1, entries_max, bytes_max)\n"
           "            return _taken(job())"),
    Mutant("t", "producer: what is in flight is not sent again", "producer/pending.py",
           "        if repeated:\n            self.unsent = deque(self._queue)\n", "        if repeated:\n            pass\n"),
    Mutant("t", "producer: of a run only the unsent part is sent again", "producer/pending.py",
           "self.unsent = deque(self._queue)", "self.unsent = deque(list(self._queue)[1:] or self._queue)"),
    Mutant("letters", "consumer: after the acknowledgement time-out only the last chunk comes", "consumer/core.py",
           "        keys = list(dict.fromkeys(each for key in keys for each in self.acks.parts.entries_of(key)))\n", ""),
    Mutant("t", "consumer: earlier chunks of a message are not acknowledged", "consumer/acknowledgements.py",
           "        self._pending.update(dict.fromkeys(entry.chunk_ids or ()))\n", ""),
    Mutant("reading", "reader: unread messages are skipped after a reconnect", "consumer/seek.py",
           "        if unread is not None:\n", "        if False:\n"),
    Mutant("reading", "reader: the last message comes again after a reconnect", "consumer/seek.py",
           "self.start, self.inclusive = entry.message_id(index), False", "self.start, self.inclusive = entry.message_id(index), True"),
    Mutant("letters", "dead letters: one redelivery too early", "consumer/dead_letters.py",
           "redelivery_count > policy.max_redeliver_count", "redelivery_count >= policy.max_redeliver_count"),
)  # fmt: skip


def run(mutant: Mutant, sources: Path, seeds: str, seconds: float) -> tuple[str, str]:
    """Return the first seed that finds the mutant, and the rule; empty if none does."""
    path = sources / "geminga" / mutant.file
    original = path.read_text()
    if original.count(mutant.old) != 1:
        return "", f"its text is {original.count(mutant.old)} times in {mutant.file}"
    path.write_text(original.replace(mutant.old, mutant.new))
    try:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(sources), str(ROOT), os.environ.get("PYTHONPATH", "")])
        }
        played = ["--seeds", seeds, "--first", str(seconds), "--only", mutant.only]
        command = [sys.executable, "-m", "tests.simulation", *played]
        done = subprocess.run(
            command, env=environment, cwd=sources, capture_output=True, text=True, check=False
        )
    finally:
        path.write_text(original)
    found = re.search(r"^failure: seed (\d+): (.*)$", done.stdout, re.MULTILINE)
    missed = f"not found; {done.stdout.splitlines()[-1:]}{done.stderr[-200:]}"
    return (found[1], found[2]) if found else ("", missed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seeds", metavar="FIRST-LAST", default="0-9999")
    parser.add_argument("--seconds", type=float, default=60, help="CPU seconds for each mutant")
    parser.add_argument("--part", default="1/1", help="which of how many parts of the mutants to run")
    parser.add_argument("--name", default="", help="run the mutants with this in their names")
    arguments = parser.parse_args()
    number, _, parts = arguments.part.partition("/")
    chosen = [mutant for mutant in MUTANTS[int(number) - 1 :: int(parts)] if arguments.name in mutant.name]
    missed = 0
    print("| bug | workload | found at seed | by |\n|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        sources = Path(folder) / "src"
        shutil.copytree(ROOT / "src", sources, ignore=shutil.ignore_patterns("__pycache__"))
        for mutant in chosen:
            seed, rule = run(mutant, sources, arguments.seeds, arguments.seconds)
            missed += not seed
            print(f"| {mutant.name} | {mutant.only} | {seed or 'none'} | {rule} |", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} found")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
