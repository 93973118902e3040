"""Statuses for what the broker refuses."""

import pickle

from geminga.broker.admin.errors import STATUS_OF_RULE, AdminRefusal, admin_error
from geminga.broker.rules.policies import InvalidRequest, RuleViolation


def test_every_broken_rule_has_a_status():
    assert set(STATUS_OF_RULE) == set(InvalidRequest)
    assert admin_error(RuleViolation(InvalidRequest.MISSING, "gone")).status == 404


def test_refusals_keep_status_and_text_when_pickled():
    error = pickle.loads(pickle.dumps(AdminRefusal(409, "exists")))
    assert (error.status, str(error)) == (409, "exists")
