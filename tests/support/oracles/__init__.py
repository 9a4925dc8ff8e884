"""Simple decoders and printers that the package is compared with, and recorded output of servers."""
