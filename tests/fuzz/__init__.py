"""Coverage-guided fuzzing of the native code; `python -m fuzz` in the folder tests says how it is called.

A target takes a few bytes and does something with the code under test. `inputs` says how the bytes are read, `checks`
does with them in Python what a user would do and judges what comes of it; `native.pyx` does the same to the C core
without Python, which is a hundred times as fast. `corpus/` holds the inputs that reached something new.
"""
