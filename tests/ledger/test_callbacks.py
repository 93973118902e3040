import pytest
from doubles import raising

from geminga.errors import StoreError, StoreStopped
from geminga.ledger.callbacks import run_callbacks


def test_all_callbacks_run_in_order_even_if_some_raise(caplog):
    seen: list[object] = []

    def fail(error: StoreError | None) -> None:
        seen.append("fail")
        raise KeyError("mine")

    error = StoreStopped("no more")
    assert run_callbacks([seen.append, None, fail, fail, seen.append], error) == 4
    assert seen == [error, "fail", "fail", error]
    assert caplog.text.count("KeyError: 'mine'") == 2


def test_a_power_loss_or_an_interrupt_is_not_swallowed():
    with pytest.raises(KeyboardInterrupt):
        run_callbacks([raising(KeyboardInterrupt)], None)
