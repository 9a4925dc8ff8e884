"""The table of codecs by name. Each family adds its own when its module is imported."""

CODECS = {}


cdef class CodecEntry:
    pass


cdef int add_codec(str name, Decoder from_text, Decoder from_binary, BlockDecoder block=NULL) except -1:
    """Add a codec; a name that is already taken makes the import fail."""
    cdef CodecEntry entry = CodecEntry()
    if name in CODECS:
        raise ImportError(f"there are two codecs {name!r}")
    entry.codec.from_text, entry.codec.from_binary, entry.codec.block = from_text, from_binary, block
    CODECS[name] = entry
    return 0
