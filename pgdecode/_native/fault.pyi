from pgdecode.protocol.errors import DecodeError

CLASSES: tuple[type[DecodeError] | None, ...]
HINTS: tuple[str, ...]
OF_VALUES: str
