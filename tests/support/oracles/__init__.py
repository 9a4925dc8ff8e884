"""Plain decoders and printers that the package is compared with, and what servers said."""
