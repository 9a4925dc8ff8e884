from collections.abc import Sequence

from pgdecode.types.pgtypes import Decoding

class TextLayout:
    names: tuple[str, ...]
    def __init__(
        self, relation_id: int, names: Sequence[str], is_key: Sequence[bool], decodings: Sequence[Decoding]
    ) -> None: ...
