"""A function written against the interfaces runs without a worker."""

from typing import Any

from geminga import Context, Function, IdentitySerDe


class Exclaim(Function):
    def process(self, input: Any, context: Any) -> Any:
        context.publish("log", input)
        return f"{input}{context.get_user_config_value('mark')}"


class Worker(Context):
    def __init__(self) -> None:
        self.published: list[tuple[str, Any]] = []

    def get_user_config_value(self, key: str) -> Any:
        return {"mark": "!"}.get(key)

    def publish(self, topic_name: str, message: Any, *arguments: Any, **options: Any) -> None:
        self.published.append((topic_name, message))


def test_a_function_can_be_tested_with_a_custom_context():
    worker, codec = Worker(), IdentitySerDe()
    result = Exclaim().process(codec.deserialize(b"hello"), worker)
    assert codec.serialize(result) == b"hello!"
    assert worker.published == [("log", "hello")]
