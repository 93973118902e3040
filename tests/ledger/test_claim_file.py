"""Claim on a storage location, replaced or overwritten in the existing file."""

import errno
import json
from dataclasses import asdict, replace

import pytest
from doubles import raising

from geminga.ledger.files.filesystem import RealFileSystem
from geminga.ledger.tier import claim_file as claims
from geminga.ledger.tier.claim_file import CLAIM, Claim
from geminga.ledger.tier.folder_storage import FolderStorage

BLOCK = 512
CLAIM_OF_A_STORE = Claim("a" * 32, "b" * 32, "c" * 32, "d" * 32, 9, True, "host:/data", 1_700_000_000_000)


@pytest.mark.parametrize("size", [0, 100, 900])
def test_a_claim_fits_in_a_block_with_a_folder_name_of_any_length(tmp_path, size):
    storage = FolderStorage(RealFileSystem(), str(tmp_path))
    claims.save(storage, replace(CLAIM_OF_A_STORE, who="host:/" + "x" * size))
    assert (tmp_path / CLAIM).stat().st_size == BLOCK
    found = claims.load(storage)
    assert found is not None
    assert replace(found, who="host:/data") == CLAIM_OF_A_STORE
    assert found.who.endswith("x" * min(size, 50))


@pytest.mark.parametrize("size", [BLOCK, 3 * BLOCK])
def test_an_earlier_claim_of_any_size_is_read_and_overwritten_in_full_storage(tmp_path, size, monkeypatch):
    storage, path = FolderStorage(RealFileSystem(), str(tmp_path)), tmp_path / CLAIM
    path.write_bytes(json.dumps({"version": 1, **asdict(CLAIM_OF_A_STORE)}, indent=1).encode().ljust(size))
    assert claims.load(storage) == CLAIM_OF_A_STORE
    monkeypatch.setattr(storage, "replace", raising(OSError(errno.ENOSPC, "full")))
    claims.save(storage, replace(CLAIM_OF_A_STORE, beats=10))
    assert claims.load(storage) == replace(CLAIM_OF_A_STORE, beats=10)
    assert path.stat().st_size == size


@pytest.mark.parametrize(("field", "value"), [("since_ms", "now"), ("since_ms", 1e30), ("place", "p" * 600)])
def test_a_claim_with_impossible_values_is_unreadable(tmp_path, field, value):
    """Its time could not be shown, and an id that is kept would never fit in a block."""
    fields = {"version": 1, **asdict(CLAIM_OF_A_STORE), field: value}
    (tmp_path / CLAIM).write_text(json.dumps(fields))
    with pytest.raises(claims.ClaimUnreadable, match=r"another type or range|not supported between"):
        claims.load(FolderStorage(RealFileSystem(), str(tmp_path)))
