"""Claim on a storage location, overwritten in the existing file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from geminga.ledger.filesystem import RealFileSystem
from geminga.ledger.offload_folder import FolderStorage
from geminga.offload import claim as claims
from geminga.offload.claim import CLAIM, Claim

SECTOR = 512


@pytest.mark.parametrize("size", [*range(200, 500, 7), 1500])
def test_a_crash_between_two_blocks_leaves_the_old_or_the_new_claim(tmp_path: Path, size: int) -> None:
    """Holds for a folder name of any length in the claim."""
    place, path = FolderStorage(RealFileSystem(), str(tmp_path)), tmp_path / CLAIM
    before = Claim("a" * 32, "b" * 32, "c" * 32, "d" * 32, 9, True, "host:/" + "x" * size, 1_700_000_000_000)
    for after in (replace(before, beats=10), replace(before, open=False), replace(before, session="e" * 32)):
        claims.save(place, before)
        old = path.read_bytes()
        claims.save_in_place(place, after)
        new = path.read_bytes()
        assert claims.load(place) == after
        assert len(new) == len(old)
        for cut in range(SECTOR, len(new), SECTOR):
            for torn in (new[:cut] + old[cut:], old[:cut] + new[cut:]):
                path.write_bytes(torn)
                assert claims.load(place) in (before, after)
