import mmap

import pyarrow as pa

def whole_messages(
    content: bytes | mmap.mmap, at: int, in_stream: bool, abort_bytes: int, most: int
) -> tuple[int, list[pa.Buffer | None], int, bool]: ...
