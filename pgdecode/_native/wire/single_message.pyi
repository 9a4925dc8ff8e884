from datetime import datetime

from pgdecode._native.arrow.payload_array import Source
from pgdecode.protocol.limits import Limits
from pgdecode.protocol.messages import Message

EPOCH: datetime

class MessageMaker:
    def __init__(self, cls: type) -> None: ...

def decode_one(payload: bytes, in_stream: bool, limits: Limits, strict_flags: bool) -> Message: ...
def fields_of(source: Source, row: int, in_stream: bool) -> dict[str, int | bool | str]: ...
