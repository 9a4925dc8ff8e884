from pgdecode.protocol.messages import Message
from pgdecode.protocol.wire import Form, WireField

WIDTHS: dict[Form, int]

class Plan:
    labels: tuple[str, ...]

def class_of(message: type[Message]) -> int: ...
def labels_of(kind: str, item: WireField) -> list[str]: ...
def check_agreement() -> None: ...
