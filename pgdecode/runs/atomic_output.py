"""Atomic outputs, for modules that have not moved to `datasets`."""

from pgdecode.datasets.single_file import check_target as check_target
from pgdecode.datasets.single_file import clean as clean
from pgdecode.datasets.single_file import remove as remove
from pgdecode.datasets.single_file import scratch_folder as scratch_folder
from pgdecode.datasets.single_file import spill_folder as spill_folder
from pgdecode.datasets.single_file import staged as staged
