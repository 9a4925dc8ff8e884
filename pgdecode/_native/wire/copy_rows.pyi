import pyarrow as pa

WORDING: dict[int, str]

def copied_rows(
    content: bytes | bytearray | memoryview, relation_id: int, kinds: bytes, is_binary: bool
) -> tuple[int, list[pa.Buffer | None], int]: ...
