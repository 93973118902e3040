"""The advisor's word: from figures to one sentence."""

import pytest

from geminga.broker.admin.errors import AdminRefusal
from geminga.console.advice import advice
from geminga.errors import InvalidConfiguration


def test_small_batches_get_advised_settings():
    found = advice({"rate": "5000", "bytes": "200", "fill": "1", "producers": "2"})
    assert found["verdict"] == "improve"
    assert "an entry holds 1 message; with a publish delay of 40 ms it would hold about 101" in found["text"]
    assert {each["field"] for each in found["settings"]} >= {"batching_max_messages", "max_pending_messages"}


def test_full_batches_get_no_advice():
    assert advice({"rate": "5000", "bytes": "200", "fill": "150"})["verdict"] == "good"


def test_a_topic_without_traffic_gets_no_advice():
    assert advice({"rate": "0.2", "bytes": "200", "fill": "1"})["verdict"] == "quiet"


@pytest.mark.parametrize(
    "query", [{}, {"rate": "x"}, {"rate": "nan"}, {"rate": "-1"}, {"rate": "5", "fill": "inf"}]
)
def test_figures_that_are_no_numbers_are_refused(query):
    with pytest.raises(AdminRefusal, match="give a number from 0 on"):
        advice(query)


def test_figures_out_of_range_are_refused():
    with pytest.raises(InvalidConfiguration, match="producers"):
        advice({"rate": "5", "bytes": "5", "fill": "1", "producers": "1e14"})
