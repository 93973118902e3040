"""Settings check themselves; `pulsar-admin`'s files are understood, and what is not understood is said."""

import pytest
from cases import cases

from geminga.errors import InvalidConfiguration
from geminga.functions import FunctionSettings, from_config
from geminga.functions.settings import read_config
from tests.functions import relayed

YAML = """
tenant: shop
namespace: orders
name: totals
className: tests.functions.relayed.Everything
inputs: [persistent://public/default/in]
output: out
subName: mine
userConfig: {side: elsewhere}
processingGuarantees: EFFECTIVELY_ONCE
autoAck: true
timeoutMs: 30000
maxMessageRetries: 3
deadLetterTopic: dead
parallelism: 2
logTopic: log
subscriptionPosition: Latest
resources: {cpu: 1}
"""


def test_files_with_pulsar_admins_names_are_read(tmp_path):
    file = tmp_path / "function.yaml"
    file.write_text(YAML)
    settings = from_config(read_config(file), parallelism=4)
    assert settings.full_name == "shop/orders/totals"
    assert (settings.subscription_name, settings.subscription_position) == ("mine", "latest")
    assert settings.inputs == ("persistent://public/default/in",)
    assert settings.output == "persistent://public/default/out"
    assert (settings.guarantee, settings.timeout_ms, settings.max_message_retries) == (
        "EFFECTIVELY_ONCE",
        30000,
        3,
    )
    assert (settings.parallelism, settings.user_config) == (4, {"side": "elsewhere"})
    assert FunctionSettings.from_json(settings.to_json()) == settings


def test_schemas_accept_pulsars_names():
    specs = {"a": {"schemaType": "STRING", "schemaProperties": {}, "serdeClassName": ""}}
    settings = from_config({"className": "a.B", "inputSpecs": specs, "outputSchemaType": "string"})
    assert settings.input_schema == settings.output_schema == "geminga.schema:StringSchema"
    assert (
        from_config({"className": "a.B", "inputSpecs": {"a": {"schemaType": "bytes"}}}).input_schema is None
    )


def test_a_class_name_is_resolved_in_the_given_file(tmp_path):
    settings = from_config({"py": "code.py", "className": "code.Shout", "inputs": ["a"], "autoAck": False})
    assert (settings.function, settings.guarantee, settings.name) == ("code.py:Shout", "MANUAL", "Shout")


@pytest.mark.parametrize(("config", "said"), cases("function_settings_refused"))
def test_invalid_settings_are_named(config, said):
    with pytest.raises(InvalidConfiguration, match=said):
        from_config(config)


def test_callables_are_passed_to_other_processes_by_name():
    settings = FunctionSettings(function=relayed.shout, inputs=("a",))
    assert FunctionSettings.from_json(settings.to_json()).function == "tests.functions.relayed:shout"
    with pytest.raises(InvalidConfiguration, match="module:name"):
        FunctionSettings(function=lambda value: value, inputs=("a",), name="x").to_json()
