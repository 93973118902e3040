"""Every call of a context is there to be implemented, with pulsar-client's arguments."""

import inspect

import pytest

from geminga.functions.context import Context


def test_methods_have_the_signatures_of_pulsar_client():
    theirs = pytest.importorskip("pulsar").Context
    names = [name for name in vars(theirs) if not name.startswith("_")]
    assert len(names) > 25
    for name in names:
        ours = inspect.signature(getattr(Context, name)).parameters.values()
        expected = inspect.signature(getattr(theirs, name)).parameters.values()
        assert [(p.name, p.default) for p in ours] == [(p.name, p.default) for p in expected], name
